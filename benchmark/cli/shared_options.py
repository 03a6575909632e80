"""Options that name runs: items, profile, seeds. Several commands share them."""

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

ITEMS = "ssfl/tab2, a paper (ssfl), or all"
ITEMS_OR_FILES = "ssfl/tab2, a paper (ssfl), all, or sweep files (sweeps/wandb/grids/*.yaml)"


def add_scope(command: argparse.ArgumentParser, number_of_items: str = "+", what: str = ITEMS) -> None:
    """Add the options that name runs. `number_of_items`: "+" for at least one, "*" for any number."""
    command.add_argument("items", nargs=number_of_items, metavar="ITEM", help=what)
    command.add_argument("--profile", default="laptop", help="demo, laptop (default), gpu or paper")
    add_seeds(command, "the profile's number of pilots")
    command.add_argument(
        "--main", action="store_true", help="only the cells of a paper's main claims, and the claims about these cells"
    )
    command.add_argument(
        "--rule",
        choices=("released_code", "paper"),
        default="released_code",
        help="which one to follow where a paper and its released code differ (ssfl, profiles gpu and paper)",
    )
    command.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="METHOD",
        help="one more method in the arena, such as my_module:MyMethod; may be given several times",
    )
    command.add_argument(
        "--also-quoted",
        action="store_true",
        help="also train the cells whose numbers the paper quotes from other settings (else they are only shown)",
    )


def chosen_items(options: argparse.Namespace) -> list[Item]:
    """Build the items that the options name. Raise ConfigError, also if --main leaves none."""
    chosen = items(options.items, options.profile, options.also, also_quoted=options.also_quoted, rule=options.rule)
    if not options.main:
        return chosen
    main_only = []
    for item in chosen:
        if any(claim.main for claim in item.claims):
            main_only.append(item.main_claims_only())
    if not main_only:
        raise ConfigError(f"--main: no main claim in {', '.join(options.items)}; leave it out")
    return main_only


def grids_of(options: argparse.Namespace) -> list[Grid]:
    """Read the grids of the sweep files that are named in place of tables, if any. Raise ConfigError."""
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
        many = getattr(options, "yes", True)  # who only looks may look at many
        runs = dict.fromkeys(run for grid in grids for run in checked(grid, many=many))
        return plan_of_runs(list(runs), options.results, with_reference=with_reference)
    seeds = seeds_of(options)
    return plan(chosen_items(options), options.results, seeds=seeds, with_reference=with_reference, tell=tell)


def add_seeds(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument(
        "--seeds",
        type=number(1, 100),
        metavar="N",
        help="N confirming seeds of each cell, from 100 on: claims are judged by them, at 9, 16, 24 and 32 seeds; "
        f"`fssl plan ITEM` says how many can decide its claims (default: none, and {default})",
    )
    command.add_argument(
        "--pilots",
        type=number(1, 100),
        metavar="N",
        help="N pilot seeds of each cell, from 0 on: shown, but they judge no claim (default with --seeds: none)",
    )


def add_undecidable(command: argparse.ArgumentParser) -> None:
    """Add the option of commands that leave out the runs of --seeds which can decide no claim."""
    command.add_argument(
        "--undecidable",
        action="store_true",
        help="with --seeds: also those runs that can decide no open claim at so many seeds (default: leave them out)",
    )


def add_devices(command: argparse.ArgumentParser, whose: str) -> None:
    """Add the option for devices. `whose` names what shares them. `benchmark.federated.devices` reads the list."""
    command.add_argument(
        "--devices",
        "--device",
        metavar="LIST",
        help=f"of this machine, for the {whose}: cuda:0,cuda:1, or 0,1 for the same; one named twice has two; cpu "
        "alone: all cores; auto: CUDA, or the cores where there is none or the profile is demo or laptop",
    )


def add_wandb(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wandb",
        default=os.environ.get("FSSL_WANDB") or "auto",
        metavar="MODE",
        help="mirror runs in W&B while they are trained: online, offline, off, or auto, which is online under a W&B "
        "agent and off elsewhere (default: $FSSL_WANDB or auto)",
    )


def add_reference(command: argparse.ArgumentParser) -> None:
    reference = command.add_mutually_exclusive_group()
    reference.add_argument(
        "--with-reference", action="store_true", default=None, help="count committed records as done (default but demo)"
    )
    reference.add_argument("--no-reference", action="store_false", dest="with_reference", help="train them again here")


def uses_reference(options: argparse.Namespace) -> bool:
    return options.profile != "demo" if options.with_reference is None else bool(options.with_reference)


def seeds_of(options: argparse.Namespace) -> Seeds:
    """Return the seeds that the options name. Raise ConfigError for --undecidable without --seeds."""
    undecidable = getattr(options, "undecidable", True)
    if options.seeds is None and getattr(options, "undecidable", False):
        raise ConfigError("--undecidable: is for confirmatory seeds, and none are asked for; add --seeds N")
    return Seeds(pilots=options.pilots, confirming=options.seeds, decisive=bool(options.seeds and not undecidable))
