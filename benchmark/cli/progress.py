"""Progress on standard error: runs, rounds, accuracy, time left; plain lines where there is no terminal.

A table's runs are trained in other processes; what trains is loaded here to plan their cost, once they are at work.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from benchmark.experiment import Experiment
from benchmark.records.record import last_round, run_folder
from sweeps.launcher import LaunchStatus
from sweeps.status import in_words

SECONDS_BETWEEN_LINES = 15.0
WHOLE = 1e9  # seconds by which the pace is taken: since work was first seen


def bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),  # all of a line is to be read on 80 columns
        TextColumn("{task.fields[rounds]} rounds", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True, min_width=7)),
        console=console,
        refresh_per_second=4,
        speed_estimate_period=WHOLE,
    )


def stop(progress: Progress) -> None:
    """Where it was never shown, rich would print an empty line."""
    if progress.console.is_terminal:
        progress.stop()


class TableProgress:
    """The bar of a whole table: all missing runs, and a line for each run in work, read from records.

    The bar and the time left go by planned CPU seconds, as `fssl plan` has them: a round of ten clients takes longer
    than a round of two, and one of a warm start, in which the server trains alone, much less than either.
    """

    def __init__(self, runs: Sequence[Experiment], results: Path, console: Console, names: Mapping[str, str]) -> None:
        self._runs, self._results, self._console = runs, results, console
        self._names = names  # what to call a cell's runs, by cell_key
        self._progress = bar(console)
        self._task = self._progress.add_task(
            "starting",
            total=None,  # until the runs are at work
            rounds=f"0/{sum(run.federation.rounds for run in runs)}",
            note="",
        )
        self._lines: dict[Experiment, TaskID] = {}
        self._newest = ""
        self._printed = -SECONDS_BETWEEN_LINES

    def __enter__(self) -> "TableProgress":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *args: object) -> None:
        stop(self._progress)

    def watch(self, status: LaunchStatus) -> None:
        from sweeps.cost import seconds_of_first

        running, finished = status.running, status.finished
        if self._progress.tasks[0].total is None:
            planned = sum(seconds_of_first(run, run.federation.rounds) for run in self._runs)
            self._progress.update(self._task, total=planned)
        done = sum(seconds_of_first(run, run.federation.rounds) for run in finished)
        rounds = sum(run.federation.rounds for run in finished)
        for run in sorted(running, key=lambda run: (run.seed, run.cell_key)):
            so_far = self._update_line(run)
            rounds += so_far
            done += seconds_of_first(run, so_far)
        for run in set(self._lines) - running:
            self._progress.remove_task(self._lines.pop(run))
        text = f"{rounds}/{sum(run.federation.rounds for run in self._runs)}"
        failed = f", {status.failed} failed" if status.failed else ""
        name = f"{len(finished)}/{len(self._runs)} runs, {len(running)} running{failed}"
        self._progress.update(self._task, completed=done, description=name, rounds=text)
        if not self._console.is_terminal and time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            seconds = self._progress.tasks[0].time_remaining
            left = f", about {in_words(seconds)} left" if seconds else ""
            newest = f", newest {self._newest}" if self._newest else ""
            self._console.print(f"{name}, {text} rounds{newest}{left}", highlight=False)

    def _update_line(self, run: Experiment) -> int:
        """Its rounds so far."""
        rounds = run.federation.rounds
        if run not in self._lines:
            name = f"  {self._names.get(run.cell_key, run.cell_key)}, seed {run.seed}"
            self._lines[run] = self._progress.add_task(name, total=rounds, rounds=f"0/{rounds}", note="")
        last = last_round(run_folder(self._results, run)) or {}
        completed = int(last.get("round", 0))
        self._progress.update(self._lines[run], completed=completed, rounds=f"{completed}/{rounds}")
        if "test/accuracy" in last:
            self._newest = f"accuracy {100 * last['test/accuracy']:.2f} %"
            self._progress.update(self._lines[run], note=self._newest)
        return completed
