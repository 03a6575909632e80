"""Defines the options that several commands share to name runs: tables and figures, profile and seeds."""

import argparse
import os
from pathlib import Path

from benchmark.cli.main import number
from benchmark.errors import ConfigError
from benchmark.papers.item import Item
from benchmark.papers.items import items
from sweeps.grid import Grid, checked
from sweeps.plan import Plan, Seeds, plan, plan_of_runs
from sweeps.sweep_file import read

ITEMS = "a table or figure (ssfl/tab2), a paper (ssfl), your own table (./mine.toml), or all"
ITEMS_OR_FILES = (
    "a table or figure (ssfl/tab2), a paper (ssfl), your own table (./mine.toml), all, or sweep files "
    "(sweeps/wandb/grids/*.yaml)"
)


def add_scope(command: argparse.ArgumentParser, number_of_items: str = "+", what: str = ITEMS) -> None:
    """Add the options that name runs. `number_of_items`: "+" for at least one, "*" for any number."""
    command.add_argument("items", nargs=number_of_items, metavar="ITEM", help=what)
    command.add_argument(
        "--profile", default="laptop", help="the scale of the runs: demo, laptop (default), gpu or paper"
    )
    add_seeds(command, "the profile's number of pilot runs")
    command.add_argument(
        "--main",
        action="store_true",
        help="use only the cells of a paper's primary claims, and the claims about these cells",
    )
    command.add_argument(
        "--rule",
        choices=("released_code", "paper"),
        default="released_code",
        help="which source to follow if a paper and its released code differ (only ssfl, profiles gpu and paper)",
    )
    command.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="METHOD",
        help="add a method to the method comparison, such as my_module:MyMethod; may be given several times",
    )
    command.add_argument(
        "--also-quoted",
        action="store_true",
        help="also train the cells that have numbers cited from other papers (default: only show these numbers)",
    )


def chosen_items(options: argparse.Namespace) -> list[Item]:
    """Return the tables and figures that the options name.

    Raise ConfigError for unknown names, and if --main leaves none.
    """
    chosen = items(options.items, options.profile, options.also, also_quoted=options.also_quoted, rule=options.rule)
    if not options.main:
        return chosen
    main_only = []
    for item in chosen:
        if any(claim.main for claim in item.claims):
            main_only.append(item.main_claims_only())
    if not main_only:
        raise ConfigError(
            f"--main needs a primary claim, but there is none in {', '.join(options.items)}; leave it out"
        )
    return main_only


def grids_of(options: argparse.Namespace) -> list[Grid]:
    """Return the grids of the sweep files that are named in place of tables, if any.

    Raise ConfigError for a file that is not a sweep file, and if tables or options for tables are also given.
    """
    files = [Path(name) for name in options.items if name.endswith((".yaml", ".yml"))]
    others = seeds_of(options) != Seeds() or options.also or options.also_quoted or options.main
    others = others or (options.profile, options.rule) != ("laptop", "released_code")
    if files and (len(files) < len(options.items) or others):
        more = "--also..., --main, --profile, --rule, --seeds and --pilots"
        raise ConfigError(f"a sweep file names all its runs; leave out ITEM, {more}")
    return [read(path) for path in files]


def planned(options: argparse.Namespace, *, tell: bool = True) -> Plan:
    """Plan the tables that the options name, or the sweep files in their place.

    `tell`: whether to print which records cannot be read. Raise ConfigError.
    """
    with_reference = uses_reference(options)
    if grids := grids_of(options):
        many = getattr(options, "yes", True)  # commands that only show runs have no --yes and accept any number
        runs = dict.fromkeys(run for grid in grids for run in checked(grid, many=many))
        return plan_of_runs(list(runs), options.results, with_reference=with_reference)
    seeds = seeds_of(options)
    return plan(chosen_items(options), options.results, seeds=seeds, with_reference=with_reference, tell=tell)


def add_seeds(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument(
        "--seeds",
        type=number(1, 100),
        metavar="N",
        help="use N confirmatory seeds per cell, from the first seed of each block that judges its claims (100, 200, "
        "...); claims are judged at 9, 16, 24 and 32 seeds; "
        f"`fssl plan ITEM` shows how many can decide its claims (default: no confirmatory seeds, but {default})",
    )
    command.add_argument(
        "--pilots",
        type=number(1, 100),
        metavar="N",
        help="use N exploratory seeds per cell, from 0 on, which are shown but judge no claim (default with --seeds: "
        "none)",
    )


def add_undecidable(command: argparse.ArgumentParser) -> None:
    """Add the option for commands that leave out the runs of --seeds that can decide no claim."""
    command.add_argument(
        "--undecidable",
        action="store_true",
        help="with --seeds: also use the runs that can decide no open claim at this number of seeds (default: leave "
        "them out)",
    )


def add_devices(command: argparse.ArgumentParser, whose: str) -> None:
    """Add the option for devices. `whose` names their user. `benchmark.federated.devices` parses the list."""
    command.add_argument(
        "--devices",
        "--device",
        metavar="LIST",
        help=f"devices of this machine for the {whose}. Type cuda:0,cuda:1, or 0,1 for the same; a device that is "
        "named twice is used twice at the same time; cpu uses all cores; auto uses CUDA, or the cores if there is no "
        "CUDA device or the profile is demo or laptop",
    )


def add_wandb(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wandb",
        default=os.environ.get("FSSL_WANDB") or "auto",
        metavar="MODE",
        help="mirror runs in W&B while they train: online, offline, off, or auto, which means online under a W&B "
        "agent and off without one (default: $FSSL_WANDB, or auto if it is not set)",
    )


def add_reference(command: argparse.ArgumentParser) -> None:
    reference = command.add_mutually_exclusive_group()
    reference.add_argument(
        "--with-reference",
        action="store_true",
        default=None,
        help="count committed run records as done (default, except for demo)",
    )
    reference.add_argument(
        "--no-reference",
        action="store_false",
        dest="with_reference",
        help="ignore committed run records and train these runs on this machine",
    )


def uses_reference(options: argparse.Namespace) -> bool:
    return options.profile != "demo" if options.with_reference is None else bool(options.with_reference)


def seeds_of(options: argparse.Namespace) -> Seeds:
    """Return the seeds that the options name. Raise ConfigError for --undecidable without --seeds."""
    undecidable = getattr(options, "undecidable", True)
    if options.seeds is None and getattr(options, "undecidable", False):
        raise ConfigError("--undecidable applies only to confirmatory seeds, but there are none; add --seeds N")
    return Seeds(pilots=options.pilots, confirming=options.seeds, decisive=bool(options.seeds and not undecidable))
