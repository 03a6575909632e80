"""Progress of a table on a terminal: runs, rounds, accuracy, time left; a plain line now and then where there is no
terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from benchmark.experiment import Experiment
from benchmark.records.record import read_rounds, run_folder
from sweeps.cost import local_steps
from sweeps.launcher import Standing
from sweeps.status import in_words

SECONDS_BETWEEN_LINES = 15.0
SECONDS_TO_SAY = 20.0  # of seen work, before a time left is worth saying


class TimeLeft:
    """Seconds left at the mean pace since work was first seen: the time that processes take to start is no work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: float | None = None  # the work that was done before this clock was started
        self._begun: tuple[float, float] | None = None  # the first moment at which more was done, and how much

    def update(self, done: float, total: float) -> float | None:
        """`done` and `total` in any unit of work. None as long as too little was seen."""
        now = self._clock()
        if self._before is None:
            self._before = done
        if self._begun is None:
            self._begun = (now, done) if done > self._before else None
            return None
        seconds, work = now - self._begun[0], done - self._begun[1]
        return (total - done) * seconds / work if seconds >= SECONDS_TO_SAY and work > 0 else None


def left_in_words(seconds: float | None) -> str:
    """ "about 12 min left"; nothing where it is not known."""
    return "" if seconds is None else f"about {in_words(seconds)} left"


def bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),  # all of a line is to be read on 80 columns
        TextColumn("{task.fields[rounds]} rounds", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        console=console,
        refresh_per_second=4,
    )


def stop(progress: Progress) -> None:
    """Where it was never shown, rich would print an empty line."""
    if progress.console.is_terminal:
        progress.stop()


class TableProgress:
    """The bar of a whole table: all missing runs, and a line for each run in work, read from records.

    The time left goes by local steps, since a round of ten clients takes longer than a round of two, and one of a warm
    start, in which the server trains alone, much less than either.
    """

    def __init__(self, runs: Sequence[Experiment], results: Path, console: Console, names: Mapping[str, str]) -> None:
        self._runs, self._results, self._console = runs, results, console
        self._names = names  # what to call a cell's runs, by cell_key
        self._steps = {run: local_steps(run) for run in runs}
        self._progress = bar(console)
        self._task = self._progress.add_task(
            "starting",
            total=sum(self._steps.values()),
            rounds=f"0/{sum(run.federation.rounds for run in runs)}",
            note="",
        )
        self._left = TimeLeft()
        self._lines: dict[Experiment, TaskID] = {}
        self._printed = time.monotonic()

    def __enter__(self) -> "TableProgress":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *args: object) -> None:
        stop(self._progress)

    def watch(self, standing: Standing) -> None:
        running, finished = standing.running, standing.finished
        steps = float(sum(self._steps[run] for run in finished))
        rounds = sum(run.federation.rounds for run in finished)
        for run in sorted(running, key=lambda run: (run.seed, run.cell_key)):
            done, taken = self._update_line(run)
            rounds += done
            steps += min(taken, self._steps[run])
        for run in set(self._lines) - running:
            self._progress.remove_task(self._lines.pop(run))
        text = f"{rounds}/{sum(run.federation.rounds for run in self._runs)}"
        failed = f", {standing.failed} failed" if standing.failed else ""
        name = f"{len(finished)}/{len(self._runs)} runs, {len(running)} running{failed}"
        left = left_in_words(self._left.update(steps, sum(self._steps.values())))
        self._progress.update(self._task, completed=steps, description=name, rounds=text, note=left)
        if not self._console.is_terminal and time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._console.print(f"{name}, {text} rounds" + (f", {left}" if left else ""), highlight=False)

    def _update_line(self, run: Experiment) -> tuple[int, float]:
        """Its rounds and its local steps so far."""
        rounds = run.federation.rounds
        if run not in self._lines:
            name = f"  {self._names.get(run.cell_key, run.cell_key)}, seed {run.seed}"
            self._lines[run] = self._progress.add_task(name, total=rounds, rounds=f"0/{rounds}", note="")
        lines = read_rounds(run_folder(self._results, run) / "rounds.jsonl")
        last = lines[-1] if lines else {}
        completed = int(last.get("round", 0))
        self._progress.update(self._lines[run], completed=completed, rounds=f"{completed}/{rounds}")
        if "test/accuracy" in last:
            self._progress.update(self._lines[run], note=f"accuracy {100 * last['test/accuracy']:.2f} %")
        return completed, sum(line.get("local_steps", 0) for line in lines)
