"""`fssl status`: how far everything is, from another shell or another machine."""

import argparse
import contextlib
import time
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.cli.main import add_places
from benchmark.cli.scope import add_reference, add_scope, chosen_items, seeds_of, uses_reference
from benchmark.records.identity import at_hand
from benchmark.records.record import run_folder
from sweeps.plan import plan
from sweeps.status import FINISHED, RunStatus, on_disk, status_of, summary, to_json, where_apart

SECONDS_BETWEEN_LOOKS = 2.0  # of --watch on a terminal
SECONDS_BETWEEN_LINES = 15.0  # elsewhere
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
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    console = Console()
    if options.json:
        print(to_json(_look(options)))
    elif options.watch:
        with contextlib.suppress(KeyboardInterrupt):  # who stops looking stops nothing
            _watch(options, console)
    else:
        (console if console.is_terminal else Console(width=WIDTH)).print(_view(runs := _look(options)))
        for trouble in dict.fromkeys(run.trouble for run in runs if run.trouble is not None):
            print(trouble)
    return 0


def _watch(options: argparse.Namespace, console: Console) -> None:
    if console.is_terminal:
        _live(options, console)
        return
    while _left(runs := _look(options)):
        print(summary(runs).line(), flush=True)
        time.sleep(SECONDS_BETWEEN_LINES)
    print(summary(runs).line())


def _look(options: argparse.Namespace) -> list[RunStatus]:
    if not options.items:
        return on_disk(options.results)
    chosen = chosen_items(options)
    planned = plan(chosen, options.results, seeds=seeds_of(options), with_reference=uses_reference(options), tell=False)
    names = {cell.cell_key: f"{item.name} {cell.label}" for item in planned.items for cell in item.cells}
    missing = set(planned.missing)
    statuses = []
    for run in planned.runs:
        folder = run_folder(options.results, run)
        # A committed copy counts as the record of a run that was never begun here.
        finished = None if run in missing else planned.records[run.cell_key][run.seed]
        name, rounds = names.get(run.cell_key, "trial"), run.federation.rounds
        statuses.append(
            where_apart(status_of(folder, name=name, rounds=rounds, finished=finished), folder, at_hand(run))
        )
    if any(status.state == "running" for status in statuses):
        from sweeps.cost import seconds_of_first  # loads what trains: only where there is a time left

        pairs = zip(statuses, planned.runs, strict=True)
        statuses = [status.weighed(partial(seconds_of_first, run)) for status, run in pairs]
    return statuses


def _left(runs: list[RunStatus]) -> bool:
    return any(run.state not in FINISHED | {"damaged"} for run in runs)


def _live(options: argparse.Namespace, console: Console) -> None:
    with Live(_view(runs := _look(options)), console=console, auto_refresh=False) as live:
        while _left(runs):
            time.sleep(SECONDS_BETWEEN_LOOKS)
            runs = _look(options)
            live.update(_view(runs), refresh=True)


def _view(runs: list[RunStatus]) -> Group:
    """The summary, and a line for each run that was begun and is not finished."""
    table = Table(box=None, pad_edge=False)
    for column in ("cell", "seed", "state", "round", "accuracy", "attempt"):
        table.add_column(column, justify="left" if column in ("cell", "state") else "right")
    for run in runs:
        if run.state not in ("done", "missing"):
            accuracy = "" if run.accuracy is None else f"{100 * run.accuracy:.2f} %"
            progress = f"{run.round}/{run.rounds}"
            table.add_row(Text(run.name), str(run.seed), run.state, progress, accuracy, str(run.attempt))
    line = Text(summary(runs).line())
    return Group(line, table) if table.row_count else Group(line)
