"""`fssl status`: how far everything is, from another shell or another machine."""

import argparse
import time
from functools import partial

from rich.console import Console

from benchmark.cli.main import add_places
from benchmark.cli.progress import SECONDS_BETWEEN_LOOKS, Display, view
from benchmark.cli.scope import add_reference, add_scope, chosen_items, seeds_of, uses_reference
from benchmark.records.identity import at_hand
from benchmark.records.record import run_folder
from sweeps.plan import plan
from sweeps.status import FINISHED, RunStatus, on_disk, status_of, to_json, where_apart

WIDTH = 100  # columns where there is no terminal


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Reads the folder of results and changes nothing. Without ITEMs: every run that was ever begun here. A dead "
        "run's process is gone: the next worker takes it over and goes on from its last save."
    )
    add_scope(command, items="*")
    add_reference(command)
    command.add_argument("--watch", action="store_true", help="until all is done: live on a terminal, else by lines")
    command.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_places(command)
    command.set_defaults(act=act, profile=None)


def act(options: argparse.Namespace) -> int:
    console = Console()
    runs = _look(options)
    if options.watch:
        try:
            with Display(console) as display:
                while any(run.state not in FINISHED | {"damaged"} for run in runs):
                    display.show(partial(list, runs))
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    runs = _look(options)
        except KeyboardInterrupt:  # who stops looking stops nothing
            return 0
    if options.json:
        print(to_json(runs))
        return 0
    (console if console.is_terminal else Console(width=WIDTH)).print(view(runs))
    for trouble in dict.fromkeys(run.trouble for run in runs if run.trouble is not None):
        print(trouble)
    return 0


def _look(options: argparse.Namespace) -> list[RunStatus]:
    if not options.items:
        return on_disk(options.results, profile=options.profile)
    options.profile = options.profile or "laptop"
    chosen = chosen_items(options)
    planned = plan(chosen, options.results, seeds=seeds_of(options), with_reference=uses_reference(options), tell=False)
    names = {cell.cell_key: f"{item.name} {cell.label}" for item in planned.items for cell in item.cells}
    statuses = []
    for run in planned.runs:
        folder = run_folder(options.results, run)
        # A committed copy counts as the record of a run that was never begun here.
        finished = planned.finished(run)
        name, rounds = names.get(run.cell_key, "trial"), run.federation.rounds
        statuses.append(where_apart(status_of(folder, name=name, rounds=rounds, record=finished), folder, at_hand(run)))
    if any(status.state == "running" for status in statuses):
        from sweeps.cost import seconds_of_first  # loads what trains: only where there is a time left

        pairs = zip(statuses, planned.runs, strict=True)
        statuses = [status.weighed(partial(seconds_of_first, run)) for status, run in pairs]
    return statuses
