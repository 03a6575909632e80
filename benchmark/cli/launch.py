"""Trains runs for the commands `reproduce` and `work`: their launch options and one launch."""

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from benchmark.cli.main import number
from benchmark.cli.progress import Display, watching
from benchmark.cli.shared_options import add_devices, add_wandb
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.devices import auto_devices, devices_named
from benchmark.federated.processes import CPU, usable_cores
from sweeps.launcher import Workers, launch
from sweeps.plan import Plan
from sweeps.workers import LocalWorkers, Mirror


def add_launch(command: argparse.ArgumentParser) -> None:
    """Add the options for the place of training and the number of simultaneous runs.

    Call `check_launch` before using them.
    """
    command.add_argument(
        "--launcher", choices=("local", "ray"), default="local", help="train on this machine (local) or on Ray"
    )
    command.add_argument(
        "--jobs",
        type=number(1),
        help="the number of runs that train at the same time on each device (default: one per core on the CPU, 1 on "
        "other devices); with Ray, the total number (default: the number that fits on its nodes)",
    )
    add_devices(command, "runs that train at the same time (default: auto, all CUDA devices)")
    add_wandb(command)
    command.add_argument(
        "--together",
        type=number(1),
        metavar="N",
        help="train up to N seeds of a cell together in one process with the stacked engine, which is fast for small "
        "networks on a GPU (default: one process per run)",
    )
    command.add_argument(
        "--address",
        help="the address of a Ray cluster: HOST:PORT, or auto for the cluster that this machine belongs to (default: "
        "$RAY_ADDRESS, or if it is not set a cluster on this machine that ends with the command)",
    )
    command.add_argument(
        "--cpus-per-run", type=number(0.01, kind=float), help="CPUs of a Ray node per run (default: 1)"
    )
    command.add_argument(
        "--gpus-per-run",
        type=number(0, kind=float),
        help="GPUs of a Ray node per run; with 0.25, four runs share a GPU (default: 0)",
    )


def mirror_of(options: argparse.Namespace, cells: Mapping[str, str]) -> Mirror | None:
    """Return the requested W&B mirror, or None if runs are not mirrored. `cells` is explained in `Mirror`.

    Raise ConfigError for an unknown mode.
    """
    if options.wandb in ("auto", "off"):  # an agent starts `fssl run`
        return None
    from benchmark.records.wandb_mirror import mode_asked  # imports the training code

    mode = mode_asked(options.wandb)
    return None if mode is None else Mirror(mode=mode, cells=cells)


def check_launch(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that exclude each other; replace `options.devices` by names, or None for auto."""
    other_launchers = {"local": ("address", "cpus_per_run", "gpus_per_run"), "ray": ("devices", "together")}
    for name in other_launchers[options.launcher]:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: not with --launcher {options.launcher}")
    gpus = options.gpus_per_run or 0.0
    if gpus > 1 and gpus != int(gpus):
        raise ConfigError(f"--gpus-per-run: {gpus:g}; give a share of one, such as 0.5, or a whole number")
    options.devices = devices_named(options.devices)
    mirror_of(options, {})


def train(runs: Sequence[Experiment], planned: Plan, options: argparse.Namespace) -> None:
    """Train these runs of the plan, with their progress on standard error. Raise FsslError as `launch` does."""
    console = Console(stderr=True)
    labels = {cell.cell_key: cell.label for item in planned.items for cell in item.cells}
    names = [f"{item.name} ({item.profile})" for item in planned.items] or ["sweep"]
    title = ", ".join(names) if len(names) < 4 else f"{len(names)} tables and figures"
    done = len(planned.runs) - len(planned.missing)
    later = f", {len(planned.waiting)} more when the trials among them are done" if planned.waiting else ""
    started = time.monotonic()
    if options.together:
        runs = by_cell(runs)
    cells = dict[str, str]()
    for item in planned.items:
        cells |= {cell.cell_key: f"{item.name}:{cell.label}" for cell in item.cells}
    with workers_for(options, runs, mirror_of(options, cells)) as workers:
        size = min(workers.size, len(runs))
        number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        console.print(f"{escape(title)}: {number} to train, {done} done, {size} side by side{later}")
        with Display(console, few_lines=options.main) as display:
            end = launch(workers, runs, options.results, watch=watching(display, runs, options.results, labels))
    others = len(end.finished) - end.trained
    elsewhere = f", {others} by others" if others else ""
    runs_trained = "1 run" if end.trained == 1 else f"{end.trained} runs"
    console.print(f"trained {runs_trained}{elsewhere} in {(time.monotonic() - started) / 60:.1f} min")


def by_cell(runs: Sequence[Experiment]) -> list[Experiment]:
    """Return the runs grouped by cell; cells are in the order of their first run."""
    cells: dict[str, list[Experiment]] = {}
    for run in runs:
        cells.setdefault(run.cell_key, []).append(run)
    return list(itertools.chain.from_iterable(cells.values()))


@contextlib.contextmanager
def workers_for(
    options: argparse.Namespace, runs: Sequence[Experiment], mirror: Mirror | None = None
) -> Iterator[Workers]:
    """Provide workers for these runs: processes of this machine, or a Ray cluster."""
    if options.launcher == "local":
        devices = options.devices or auto_devices(runs)
        at_a_time = usable_cores() if options.jobs is None and devices == (CPU,) else (options.jobs or 1) * len(devices)
        together = options.together
        processes = min(at_a_time, len(runs) if together is None else -(-len(runs) // together))
        yield LocalWorkers(processes, options.results, devices, together, mirror)
        return
    from sweeps.ray_launcher import LOCAL, RayWorkers, joined

    address = options.address or os.environ.get("RAY_ADDRESS") or LOCAL
    # Ray prints messages about its workers on standard output, which is for results.
    with contextlib.redirect_stdout(sys.stderr), joined(address):
        share = (options.cpus_per_run or 1.0, options.gpus_per_run or 0.0)
        yield RayWorkers(options.results, share, options.jobs or len(runs), mirror)
