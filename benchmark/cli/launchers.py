"""Where runs are trained: the options of `reproduce` and `work` about it, and the crews behind them."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

from benchmark.errors import ConfigError
from benchmark.federated.start import usable_cores
from sweeps.crew import CPU, Crew
from sweeps.local import Hands

AUTO = "auto"


def add_launcher(command: argparse.ArgumentParser) -> None:
    """`checked_launcher` is to be called before anything else."""
    command.add_argument(
        "--launcher", choices=sorted(LAUNCHERS), default="local", help="where runs are trained: here, or on Ray"
    )
    command.add_argument(
        "--jobs",
        type=int,
        help="runs side by side, on each device (default: cores on the CPU, 1 on others); on Ray, in all (default: "
        "what its nodes have room for)",
    )
    command.add_argument(
        "--devices",
        metavar="LIST",
        help=f"of this machine: cuda:0,cuda:1, or 0,1 for the same, {CPU}, or {AUTO} (default): all CUDA devices, or "
        "else the CPU",
    )
    command.add_argument(
        "--address",
        help="of a Ray cluster: HOST:PORT, or auto for the one that this machine belongs to (default: $RAY_ADDRESS, or "
        "one that is started here for the time of the command)",
    )
    command.add_argument("--cpus-per-run", type=float, help="of a node of the Ray cluster (default: 1)")
    command.add_argument("--gpus-per-run", type=float, help="such as 0.25: four runs share a GPU (default: 0)")


def checked_launcher(options: argparse.Namespace) -> None:
    """Put `devices` in order, and raise ConfigError for what cannot be right."""
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs: {options.jobs}; at least 1 would be right")
    for name in _OF_OTHERS[options.launcher]:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: not with --launcher {options.launcher}")
    if options.cpus_per_run is not None and options.cpus_per_run <= 0:
        raise ConfigError(f"--cpus-per-run: {options.cpus_per_run:g}; more than 0 would be right, such as 1")
    gpus = options.gpus_per_run or 0.0
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ConfigError(f"--gpus-per-run: {gpus:g}; a share of one, such as 0.5, or 1 would be right")
    if options.launcher == "local":
        options.devices = devices_named(AUTO if options.devices is None else options.devices)


def devices_named(text: str) -> tuple[str, ...]:
    """The devices of "cuda:0,cuda:1", "0,1", "cpu" or "auto". Raises ConfigError for one that is not there."""
    there = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if text == AUTO:
        return tuple(there) or (CPU,)
    words = [word.strip() for word in text.split(",")]
    named = tuple(f"cuda:{word}" if word.isdecimal() else word for word in words)
    if named == (CPU,):
        return named
    for word in named:
        if word not in there:
            right = ", ".join(there) or f"this machine has no CUDA device; {CPU}"
            raise ConfigError(f"--devices: {word!r} in {text!r}; {right} would be right")
    if len(set(named)) < len(named):
        raise ConfigError(f"--devices: {text!r} names one twice; --jobs 2 trains two runs side by side on each")
    return named


def side_by_side(options: argparse.Namespace) -> int:
    """Runs at a time at most, where it is known before any is started. Raises ConfigError where it is not: on Ray."""
    if options.launcher == "local":
        return (options.jobs or (usable_cores() if options.devices == (CPU,) else 1)) * len(options.devices)
    if options.jobs is None:
        raise ConfigError(f"--budget: with --launcher {options.launcher} it needs --jobs, the runs side by side")
    return int(options.jobs)


@contextlib.contextmanager
def _local(options: argparse.Namespace, runs: int) -> Iterator[Hands]:
    size = min(side_by_side(options), runs)
    yield Crew(size, options.results, options.data_root, options.takeover_after, options.devices)


@contextlib.contextmanager
def _on_ray(options: argparse.Namespace, runs: int) -> Iterator[Hands]:
    from sweeps.ray_cluster import LOCAL, Shares, joined
    from sweeps.ray_crew import RayCrew

    shares = Shares(cpus=options.cpus_per_run or 1.0, gpus=options.gpus_per_run or 0.0)
    # What Ray has to say of its workers it prints on standard output, which is for results.
    with contextlib.redirect_stdout(sys.stderr), joined(options.address or os.environ.get("RAY_ADDRESS") or LOCAL):
        yield RayCrew(options.results, options.data_root, options.takeover_after, shares=shares, at_most=options.jobs)


# The options, and how many runs there are at most at a time, give a crew.
Launcher = Callable[[argparse.Namespace, int], AbstractContextManager[Hands]]
LAUNCHERS: dict[str, Launcher] = {"local": _local, "ray": _on_ray}
_OF_OTHERS = {"local": ("address", "cpus_per_run", "gpus_per_run"), "ray": ("devices",)}
