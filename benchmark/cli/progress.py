"""Shows the progress of runs on a console: live with curves on a terminal, and line by line elsewhere.

Every command that trains or watches runs uses this module.
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

SECONDS_BETWEEN_LINES = 15.0  # the minimum; the interval also grows to a tenth of the time so far
FEW_LINES = 30.0, 2.0  # the minimum seconds between lines, and the share of the time so far, if few lines are wanted


MOST_MEASURED = 20  # number of runs with a list of their own measures


class Display(contextlib.ExitStack):
    """A live display of the states on a terminal until it is closed, or a line at growing intervals elsewhere."""

    def __init__(self, console: Console, *, few_lines: bool = False) -> None:
        super().__init__()
        self._pace = FEW_LINES if few_lines else (SECONDS_BETWEEN_LINES, 0.1)
        live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._live = self.enter_context(live) if console.is_terminal else None
        self._began = self._next = time.monotonic()  # `_next`: when to show the runs again

    def show(self, look: Callable[[], Sequence[RunStatus]]) -> None:
        """Read the states of the runs and show them if the interval has passed."""
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
    """Return the summary, a line for each run that has begun and is not done, and the errors of failed runs.

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
    shown = [table] if table.row_count else []
    lines = [*failures, *measures_lines(runs)]
    return Group(line, *shown, *map(Text, lines)) if shown or lines else line


def measures_lines(runs: Sequence[RunStatus]) -> list[str]:
    """Return a line with the last own measures of each run that has some; nothing if there are many such runs."""
    measured = [run for run in runs if run.measures]
    if len(measured) > MOST_MEASURED:
        return []
    lines = []
    for run in measured:
        values = ", ".join(f"{name} {value:.4g}" for name, value in run.measures.items())
        lines.append(f"{run.name}, seed {run.seed}: {values}")
    return lines


def watching(
    display: Display, runs: Sequence[Experiment], results: Path, names: Mapping[str, str]
) -> Callable[[Launch], None]:
    """Return a function that shows a launch and reads again only the runs that may have changed.

    `names` maps a cell_key to the name of its cell.
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
    from sweeps.cost import weighed  # imports the training code, so only after the runs have started

    return weighed(status_of(folder, name=name, rounds=run.federation.rounds), run)
