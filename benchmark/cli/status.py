"""`fssl status` shows the progress of all runs, from any shell or machine that shares the results folder."""

import argparse
import json
import time
from functools import partial

from rich.console import Console

from benchmark.cli.progress import Display, view
from benchmark.cli.shared_options import ITEMS_OR_FILES, add_reference, add_scope, planned
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, to_json
from benchmark.papers.scale import check_profile
from benchmark.records.record import run_folder
from sweeps.launcher import SECONDS_BETWEEN_LOOKS
from sweeps.status import FINISHED, RunStatus, on_disk, status_of, summary, where_apart

WIDTH = 100  # columns if there is no terminal


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    add_scope(command, "*", ITEMS_OR_FILES)
    add_reference(command)
    command.add_argument(
        "--watch",
        action="store_true",
        help="keep showing the progress until all runs are done: live on a terminal, line by line elsewhere",
    )
    command.add_argument("--json", action="store_true", help="print only one JSON object")
    command.set_defaults(profile=None, with_reference=None)


def run_command(options: argparse.Namespace) -> None:
    """Show the progress of runs. This only reads the results folder.

    Without ITEMs, the command shows every run that ever began in this folder. A run is dead if its process has ended;
    the next worker resumes it from its last save. For a failed run, the command shows the error and
    the line of the user's file.
    """
    console = Console()
    runs = _look(options)
    if options.watch:
        try:
            with Display(console) as display:
                while any(run.state not in (*FINISHED, "damaged", "failed") for run in runs):
                    display.show(partial(list, runs))
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    runs = _look(options)
        except KeyboardInterrupt:  # Ctrl-C only ends the display, not the runs
            return
    if options.json:
        print(json.dumps({**vars(summary(runs)), "runs": list(map(_plain, runs))}))
        return
    (console if console.is_terminal else Console(width=WIDTH)).print(view(runs))
    troubles = [run.trouble for run in runs if run.trouble is not None and run.state != "failed"]
    for trouble in dict.fromkeys(troubles):
        print(trouble)


def _plain(run: RunStatus) -> dict[str, object]:
    """Return the fields of a run for the JSON object, without its curve, which is in its run record."""
    return {name: value for name, value in vars(run).items() if name != "curve"}


def _look(options: argparse.Namespace) -> list[RunStatus]:
    if not options.items:
        for name in ("main", "seeds", "pilots", "also", "also_quoted", "rule", "with_reference"):
            if getattr(options, name) != options.parser.get_default(name):
                word = "no-reference" if options.with_reference is False else name.replace("_", "-")
                raise ConfigError(f"--{word} needs an ITEM; type one, such as ssfl/tab2")
        if options.profile not in (None, Experiment.profile):
            check_profile(options.profile)
        return on_disk(options.results, profile=options.profile)
    options.profile = options.profile or "laptop"
    known = planned(options, tell=False)
    names = {cell.cell_key: f"{item.name} {cell.label}" for item in known.items for cell in item.cells}
    statuses = []
    for run in known.runs:
        folder = run_folder(options.results, run)
        # A committed copy counts as the record of a run that never began in this folder.
        finished = known.finished(run)
        name = names.get(run.cell_key, "trial" if known.items else run.cell_key)
        rounds = run.federation.rounds
        statuses.append(where_apart(status_of(folder, name=name, rounds=rounds, record=finished), folder, to_json(run)))
    if any(status.state == "running" for status in statuses):
        from sweeps.cost import weighed  # imports the training code, so only if a remaining time is shown

        statuses = list(map(weighed, statuses, known.runs))
    return statuses
