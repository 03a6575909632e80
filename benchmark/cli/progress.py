"""How far runs are, on a console: live on a terminal, else by lines. Every command that trains or watches uses it."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.experiment import Experiment
from benchmark.records.record import run_folder
from sweeps.launcher import SECONDS_BETWEEN_LOOKS, Launch
from sweeps.status import RunStatus, status_of, summary

SECONDS_BETWEEN_LINES = 15.0  # at least, and a tenth of the time so far


class Display(contextlib.ExitStack):
    """Shows the newest states on a terminal until it is closed; elsewhere prints a line at longer intervals."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        live = Live(console=console, auto_refresh=False, transient=True)
        self._console, self._live = console, self.enter_context(live) if console.is_terminal else None
        self._began = self._next = time.monotonic()  # when to show

    def show(self, look: Callable[[], Sequence[RunStatus]]) -> None:
        """Look at the runs and show them, where it is time to."""
        now = time.monotonic()
        if self._console.quiet or now < self._next:
            return
        between_lines = max(SECONDS_BETWEEN_LINES, (now - self._began) / 10)
        self._next = now + (SECONDS_BETWEEN_LOOKS if self._live else between_lines)
        runs = look()
        if self._live:
            self._live.update(view(runs), refresh=True)
        else:
            accuracies = [f"accuracy {100 * run.accuracy:.2f} %" for run in runs if run.accuracy is not None]
            line = [summary(runs).line(), *(accuracies if len(runs) == 1 else ())]
            self._console.print(", ".join(line), highlight=False, soft_wrap=True)


def view(runs: Sequence[RunStatus]) -> RenderableType:
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
    return Group(line, table) if table.row_count else line


class LaunchProgress:
    """Shows a launch: the states of its runs, read again where they may have changed."""

    def __init__(self, display: Display, runs: Sequence[Experiment], results: Path, names: Mapping[str, str]) -> None:
        """`names`: what to call a cell's runs, by cell_key."""
        self._display, self._runs, self._results, self._names = display, runs, results, names
        self._statuses: dict[Experiment, RunStatus] = {}
        self._running: set[Experiment] = set()  # in the last look
        self._finished = 0

    def watch(self, launched: Launch) -> None:
        self._display.show(lambda: self._look_at_all(launched))

    def _look_at_all(self, launched: Launch) -> Sequence[RunStatus]:
        changed = {*self._running, *launched.running, *launched.finished[self._finished :]}
        for run in changed if self._statuses else self._runs:
            name = self._names.get(run.cell_key, run.cell_key)
            self._statuses[run] = look(run_folder(self._results, run), run, name)
        self._running, self._finished = launched.running, len(launched.finished)
        return list(self._statuses.values())


def look(folder: Path, run: Experiment, name: str) -> RunStatus:
    """The run's status, its work in planned seconds. `name`: what to call its cell."""
    from sweeps.cost import weighed  # loads what trains, once the runs are at work

    return weighed(status_of(folder, name=name, rounds=run.federation.rounds), run)
