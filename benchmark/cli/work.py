"""`fssl work`: one more worker at the missing runs, beside any others on this folder of results."""

import argparse

from rich.console import Console

from benchmark.cli.main import add_places
from benchmark.cli.reproduce import add_reference, add_scope, checked_seeds, uses_reference
from benchmark.cli.train import add_launch, checked_launch, diverged, train
from benchmark.errors import Diverged, RunningElsewhere
from benchmark.papers.catalogue import items
from sweeps.plan import plan


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Trains what is missing, and leaves each run that another worker is at alone: start as many of these as you "
        "like, on as many machines as share the folder of results. The run of a worker that died is taken over and "
        "goes on from its checkpoint. Prints no table: `fssl reproduce` does, and `fssl status` tells how far all are."
    )
    add_scope(command)
    add_launch(command)
    command.add_argument(
        "--no-wait", action="store_false", dest="wait", help="end (with 75) when others are at all the runs left"
    )
    add_reference(command)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    checked_launch(options)
    chosen, seeds = items(options.items, options.profile, options.also), checked_seeds(options.seeds)
    console = Console(stderr=True)
    planned = plan(chosen, options.results, seeds=seeds, with_reference=uses_reference(options))
    while planned.missing:  # once, or twice where trials choose what comes after them
        train(planned, options, console, wait=options.wait)
        planned = plan(chosen, options.results, seeds=seeds, with_reference=uses_reference(options))
        if planned.missing and not options.wait:
            raise RunningElsewhere(f"{len(planned.missing)} runs are left, and others are at them")
    lost = diverged(planned)
    print(f"{len(planned.runs)} runs done" + (f", {len(lost)} of them diverged" if lost else ""))
    return Diverged.exit_code if lost else 0
