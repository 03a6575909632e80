"""Options that several commands share: which runs, and how they are trained.

Loads nothing that trains.
"""

import argparse
from typing import TYPE_CHECKING

from benchmark.cli.main import number
from benchmark.config import choose
from benchmark.errors import ConfigError
from benchmark.records.lease import BEAT, PATIENCE

if TYPE_CHECKING:  # loads what trains
    from benchmark.papers.item import Item
    from sweeps.plan import Seeds

AUTO, CPU = "auto", "cpu"


def add_scope(
    command: argparse.ArgumentParser, items: str = "+", what: str = "ssfl/tab2, a paper (ssfl), or all"
) -> None:
    """Which runs. `items`: how many names there may be ("+": at least one, "*": also none)."""
    command.add_argument("items", nargs=items, metavar="ITEM", help=what)
    command.add_argument("--profile", default="laptop", help="demo, laptop (default), gpu or paper")
    add_seeds(command, "the profile's number of pilots")
    command.add_argument(
        "--main", action="store_true", help="only the cells that a paper's main claims speak of, and the claims on them"
    )
    add_rule(command)
    command.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="METHOD",
        help="one more method in the arena, such as my_module:MyMethod; may be repeated",
    )


def chosen_items(options: argparse.Namespace) -> "list[Item]":
    """Raises ConfigError, also where --main leaves nothing."""
    from benchmark.papers.catalogue import items

    quoted = getattr(options, "also_quoted", False)
    chosen = items(options.items, options.profile, options.also, also_quoted=quoted, rule=options.rule)
    if options.main:
        chosen = [item.main_claims_only() for item in chosen if any(claim.main for claim in item.claims)]
        if not chosen:
            raise ConfigError(f"--main: no main claim in {', '.join(options.items)}; leave it out")
    return chosen


def add_seeds(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument(
        "--seeds",
        type=number(1, 100),
        metavar="N",
        help="N seeds of each cell that confirm, from 100 on: claims are judged by them, at 9, 16, 24 and 32 of them; "
        f"`fssl plan ITEM` says how many can decide its claims (default: none, and {default})",
    )
    command.add_argument(
        "--pilots",
        type=number(1, 100),
        metavar="N",
        help="N pilot seeds of each cell, from 0 on: they are shown, and judge no claim (default with --seeds: none)",
    )


def add_rule(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--rule",
        choices=("released_code", "paper"),
        default="released_code",
        help="whose word counts where a paper's released code contradicts its print (ssfl, profiles gpu and paper)",
    )


def add_quoted(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--also-quoted",
        action="store_true",
        help="train also the cells whose numbers the paper quotes from others' settings (else only shown)",
    )


def add_reference(command: argparse.ArgumentParser) -> None:
    reference = command.add_mutually_exclusive_group()
    reference.add_argument(
        "--with-reference", action="store_true", default=None, help="count committed records as done (default but demo)"
    )
    reference.add_argument("--no-reference", action="store_false", dest="with_reference", help="train them again here")


def uses_reference(options: argparse.Namespace) -> bool:
    return options.profile != "demo" if options.with_reference is None else bool(options.with_reference)


def seeds_of(options: argparse.Namespace) -> "Seeds":
    from sweeps.plan import Seeds

    return Seeds(pilots=options.pilots, confirming=options.seeds)


def add_launch(command: argparse.ArgumentParser) -> None:
    """How runs are trained; `checked_launch` is to be called before anything else."""
    command.add_argument(
        "--launcher", choices=("local", "ray"), default="local", help="where runs are trained: here, or on Ray"
    )
    command.add_argument(
        "--jobs",
        type=number(1),
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
    add_takeover(command)


def add_takeover(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--takeover-after",
        type=number(3 * BEAT, kind=float),
        default=PATIENCE,
        metavar="SECONDS",
        help=f"of silence before a run of another machine is taken over (default: {PATIENCE:g}); at once where its "
        "process ended on this machine",
    )


def checked_launch(options: argparse.Namespace) -> None:
    """Put `devices` in order, and raise ConfigError for what does not go together."""
    of_others = {"local": ("address", "cpus_per_run", "gpus_per_run"), "ray": ("devices",)}
    for name in of_others[options.launcher]:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: not with --launcher {options.launcher}")
    if options.cpus_per_run is not None and options.cpus_per_run <= 0:
        raise ConfigError(f"--cpus-per-run: {options.cpus_per_run:g}; more than 0 is needed, such as 1")
    gpus = options.gpus_per_run or 0.0
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ConfigError(f"--gpus-per-run: {gpus:g}; give a share of one, such as 0.5, or a whole number")
    if options.launcher == "local":
        options.devices = devices_named(AUTO if options.devices is None else options.devices)


def devices_named(text: str) -> tuple[str, ...]:
    """The devices of "cuda:0,cuda:1", "0,1", "cpu" or "auto". Raises ConfigError for one that is not there."""
    import torch

    there = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if text == AUTO:
        return tuple(there) or (CPU,)
    words = [word.strip() for word in text.split(",")]
    named = tuple(f"cuda:{word}" if word.isdecimal() else word for word in words)
    if named == (CPU,):
        return named
    for word in named:
        if word not in there:
            what = choose([*there, CPU]) if there else f"this machine has no CUDA device; choose {CPU}"
            raise ConfigError(f"--devices: no device {word!r} in {text!r}; {what}")
    if len(set(named)) < len(named):
        raise ConfigError(f"--devices: {text!r} names one twice; --jobs 2 trains two runs side by side on each")
    return named


def side_by_side(options: argparse.Namespace) -> int:
    """Runs at a time at most on this machine."""
    from benchmark.federated.start import usable_cores

    return (options.jobs or (usable_cores() if options.devices == (CPU,) else 1)) * len(options.devices)
