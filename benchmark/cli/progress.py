"""The progress of runs on a console: live with curves on a terminal, else line by line.

Every command that trains or watches uses it.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.cli.curves import colour_of, curves, drawn
from benchmark.experiment import Experiment
from benchmark.records.record import run_folder
from sweeps.launcher import SECONDS_BETWEEN_LOOKS, Launch
from sweeps.status import FINISHED, RunStatus, status_of, summary

SECONDS_BETWEEN_LINES = 15.0  # at least, and a tenth of the time so far
FEW_LINES = 30.0, 2.0  # seconds between lines at least, and the share of the time so far, if few lines are wanted


class Display(contextlib.ExitStack):
    """Show the newest states on a terminal until it is closed; elsewhere print a line at growing intervals."""

    def __init__(self, console: Console, *, few_lines: bool = False) -> None:
        super().__init__()
        self._pace = FEW_LINES if few_lines else (SECONDS_BETWEEN_LINES, 0.1)
        live = Live(console=console, auto_refresh=False, transient=True)
        self._console, self._live = console, self.enter_context(live) if console.is_terminal else None
        self._began = self._next = time.monotonic()  # when to show

    def show(self, look: Callable[[], Sequence[RunStatus]]) -> None:
        """Look at the runs and show them if it is time to."""
        now = time.monotonic()
        if self._console.quiet or now < self._next:
            return
        least, share = self._pace
        between_lines = max(least, share * (now - self._began))
        self._next = now + (SECONDS_BETWEEN_LOOKS if self._live else between_lines)
        runs = look()
        if self._live:
            unicode = self._console.encoding.lower().startswith("utf")
            drawing = curves(runs, unicode=unicode)
            self._live.update(Group(view(runs), *([drawing] if drawing else [])), refresh=True)
        else:
            accuracies = [f"accuracy {100 * run.accuracy:.2f} %" for run in runs if run.accuracy is not None]
            line = [summary(runs).line(), *(accuracies if len(runs) == 1 else ())]
            self._console.print(", ".join(line), highlight=False, soft_wrap=True)


def view(runs: Sequence[RunStatus]) -> RenderableType:
    """Return the summary, a line for each run that was begun and is not finished, and what failed.

    The name of a run with a curve has the colour of the curve.
    """
    with_curve = drawn(runs)
    table = Table(box=None, pad_edge=False)
    for column in ("cell", "seed", "state", "round", "accuracy", "attempt"):
        table.add_column(column, justify="left" if column in ("cell", "state") else "right")
    for run in runs:
        if run.state not in ("done", "missing"):
            accuracy = "" if run.accuracy is None else f"{100 * run.accuracy:.2f} %"
            progress = f"{run.round}/{run.rounds}"
            table.add_row(
                Text(run.name, style=colour_of(run, with_curve)),
                str(run.seed),
                run.state,
                progress,
                accuracy,
                str(run.attempt),
            )
    line = Text(summary(runs).line())
    failures = dict.fromkeys(f"failed: {run.trouble}" for run in runs if run.state == "failed")
    return Group(line, table, *map(Text, failures)) if table.row_count else line


def watching(
    display: Display, runs: Sequence[Experiment], results: Path, names: Mapping[str, str]
) -> Callable[[Launch], None]:
    """Return a function that shows a launch, and reads those runs again that may have changed.

    `names` are the names of the cells by cell_key.
    """
    statuses: dict[Experiment, RunStatus] = {}

    def look_again(launched: Launch) -> Sequence[RunStatus]:
        over = {run for run, seen in statuses.items() if seen.state in FINISHED}
        begun = {run for run, seen in statuses.items() if seen.state == "running"}
        for run in begun.union(launched.running, launched.finished) - over if statuses else runs:
            statuses[run] = look(run_folder(results, run), run, names.get(run.cell_key, run.cell_key))
        return list(statuses.values())

    return lambda launched: display.show(lambda: look_again(launched))


def look(folder: Path, run: Experiment, name: str) -> RunStatus:
    """Return the run's status, with its work in planned seconds. `name` is the name of its cell."""
    from sweeps.cost import weighed  # loads what trains, once the runs are at work

    return weighed(status_of(folder, name=name, rounds=run.federation.rounds), run)
