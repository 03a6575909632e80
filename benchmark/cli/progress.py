"""Progress on a terminal: rounds, accuracy, time left; a plain line now and then where there is no terminal."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule
from benchmark.tracking.reading import last_round
from benchmark.tracking.recorder import run_folder
from sweeps.cost import local_steps
from sweeps.local import Standing

SECONDS_BETWEEN_LINES = 15.0


def bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[rounds]} rounds"),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        refresh_per_second=4,
    )


class RunProgress(pl.Callback):
    """The bar of a single run, on standard error."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._console = Console(stderr=True)
        self._progress = bar(self._console)
        self._task: TaskID | None = None
        self._accuracy = ""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        rounds = self._experiment.federation.rounds
        if self._console.is_terminal:
            self._progress.start()
        self._task = self._progress.add_task(
            "training", total=rounds, completed=pl_module.rounds_done, accuracy="", rounds=""
        )

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule) and self._task is not None
        accuracy = pl_module.metrics.get("test/accuracy", pl_module.metrics.get("validation/accuracy"))
        if accuracy is not None:
            self._accuracy = f"accuracy {100 * accuracy:.2f} %"
            if not self._console.is_terminal:
                self._console.print(
                    f"round {pl_module.rounds_done}/{self._experiment.federation.rounds} {self._accuracy}"
                )
        done = pl_module.rounds_done
        rounds = f"{done}/{self._experiment.federation.rounds}"
        self._progress.update(self._task, completed=done, accuracy=self._accuracy, rounds=rounds)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._progress.stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._progress.stop()


class TableProgress:
    """The bar of a whole table: all missing runs, and a line for each run in work, read from records.

    The time left goes by local steps, since a round of ten clients takes longer than a round of two.
    """

    def __init__(self, runs: Sequence[Experiment], results: Path, console: Console, names: Mapping[str, str]) -> None:
        self._runs, self._results, self._console = runs, results, console
        self._names = names  # what to call a cell's runs, by cell_key
        self._steps = {run: local_steps(run) for run in runs}
        self._progress = bar(console)
        self._task = self._progress.add_task("", total=sum(self._steps.values()), accuracy="", rounds="")
        self._lines: dict[Experiment, TaskID] = {}
        self._printed = time.monotonic()

    def __enter__(self) -> "TableProgress":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._progress.stop()

    def watch(self, standing: Standing) -> None:
        running, finished = standing.running, standing.finished
        steps = float(sum(self._steps[run] for run in finished))
        rounds = sum(run.federation.rounds for run in finished)
        for run in sorted(running, key=lambda run: (run.seed, run.cell_key)):
            done = self._update_line(run)
            rounds += done
            steps += self._steps[run] * done / run.federation.rounds
        for run in set(self._lines) - running:
            self._progress.remove_task(self._lines.pop(run))
        text = f"{rounds}/{sum(run.federation.rounds for run in self._runs)}"
        failed = f", {standing.failed} failed" if standing.failed else ""
        name = f"{len(finished)}/{len(self._runs)} runs, {len(running)} running{failed}"
        self._progress.update(self._task, completed=steps, description=name, rounds=text)
        if not self._console.is_terminal and time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            left = self._progress.tasks[0].time_remaining
            self._console.print(f"{name}, {text} rounds" + (f", about {left / 60:.1f} min left" if left else ""))

    def _update_line(self, run: Experiment) -> int:
        rounds = run.federation.rounds
        if run not in self._lines:
            name = f"  {self._names.get(run.cell_key, run.cell_key)}, seed {run.seed}"
            self._lines[run] = self._progress.add_task(name, total=rounds, accuracy="", rounds=f"0/{rounds}")
        last = last_round(run_folder(self._results, run)) or {}
        completed = int(last.get("round", 0))
        self._progress.update(self._lines[run], completed=completed, rounds=f"{completed}/{rounds}")
        if "test/accuracy" in last:
            self._progress.update(self._lines[run], accuracy=f"accuracy {100 * last['test/accuracy']:.2f} %")
        return completed
