"""`fssl work`: one more worker at the missing runs, beside any others on this folder of results."""

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmark.cli.main import add_places
from benchmark.cli.scope import add_reference, add_scope, checked_seeds, uses_reference
from benchmark.cli.train import add_launch, checked_launch, diverged, train
from benchmark.errors import ConfigError, Diverged, RunningElsewhere
from benchmark.papers.catalogue import items
from sweeps.grid import checked
from sweeps.plan import Plan, plan, plan_of_runs
from sweeps.sweep_file import read


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Trains what is missing, and leaves each run that another worker is at alone: start as many of these as you "
        "like, on as many machines as share the folder of results. The run of a worker that died is taken over and "
        "goes on from its checkpoint. Prints no table: `fssl reproduce` does, and `fssl status` tells how far all are."
    )
    add_scope(command, what="ssfl/tab2, a paper (ssfl), all, or sweep files (sweeps/wandb/grids/*.yaml)")
    add_launch(command)
    command.add_argument(
        "--no-wait", action="store_false", dest="wait", help="end (with 75) when others are at all the runs left"
    )
    command.add_argument("--yes", action="store_true", help="take sweep files of more than 10,000 runs")
    add_reference(command)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    checked_launch(options)
    look, console = _looker(options), Console(stderr=True)
    planned = look()
    while planned.missing:  # once, or twice where trials choose what comes after them
        train(planned, options, console, wait=options.wait)
        planned = look()
        if planned.missing and not options.wait:
            raise RunningElsewhere(f"{len(planned.missing)} runs are left, and others are at them")
    lost = diverged(planned)
    print(f"{len(planned.runs)} runs done" + (f", {len(lost)} of them diverged" if lost else ""))
    return Diverged.exit_code if lost else 0


def _looker(options: argparse.Namespace) -> Callable[[], Plan]:
    """What tells the plan as it stands now: of the items, or of the grids of sweep files."""
    seeds, with_reference = checked_seeds(options.seeds), uses_reference(options)
    files = [Path(name) for name in options.items if name.endswith((".yaml", ".yml"))]
    if not files:
        chosen = items(options.items, options.profile, options.also)
        return lambda: plan(chosen, options.results, seeds=seeds, with_reference=with_reference)
    if len(files) < len(options.items) or seeds is not None or options.also:
        raise ConfigError("a sweep file names all its runs; without ITEM, --seeds and --also would be right")
    runs = list(dict.fromkeys(run for path in files for run in checked(read(path), many=options.yes)))
    return lambda: plan_of_runs(runs, options.results, with_reference=with_reference)
