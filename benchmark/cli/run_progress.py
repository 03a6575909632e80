"""Progress of a single run that this process trains, and one line when its accuracy falls far."""

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import TaskID

from benchmark.cli.progress import bar, stop
from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule
from benchmark.records.fall import AGAINST_A_FALL, fall_in_words, fall_of
from sweeps.cost import seconds_of_first


class RunProgress(pl.Callback):
    """The bar of a single run."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._rounds = experiment, experiment.federation.rounds
        self._console = Console(stderr=True)
        self._progress = bar(self._console)
        self._task: TaskID | None = None
        self._seen: list[dict[str, float]] = []  # rounds with an accuracy, until a fall is reported

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        if self._console.is_terminal:
            self._progress.start()
        done = pl_module.rounds_done
        total = self._seconds_of_first(self._rounds)
        self._task = self._progress.add_task("training", total=total, note="", rounds=f"{done}/{self._rounds}")
        self._progress.update(self._task, completed=self._seconds_of_first(done))

    def _seconds_of_first(self, rounds: int) -> float:
        """What the bar goes by: planned CPU seconds; rounds where there is no terminal, and so no bar."""
        return seconds_of_first(self._experiment, rounds) if self._console.is_terminal else float(rounds)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule) and self._task is not None
        done, metrics = pl_module.rounds_done, pl_module.metrics
        self._progress.update(self._task, completed=self._seconds_of_first(done), rounds=f"{done}/{self._rounds}")
        accuracy = metrics.get("test/accuracy", metrics.get("validation/accuracy"))
        if accuracy is not None:
            note = f"accuracy {100 * accuracy:.2f} %"
            self._progress.update(self._task, note=note)
            if not self._console.is_terminal:
                self._console.print(f"round {done}/{self._rounds} {note}")
            self._report_a_fall({"round": done, "test/accuracy": accuracy})

    def _report_a_fall(self, line: dict[str, float]) -> None:
        """Once, when it is seen."""
        reported = fall_of(self._seen) is not None
        self._seen.append(line)
        if not reported and (fall := fall_of(self._seen)):
            self._console.print(f"{fall_in_words(fall)}: {AGAINST_A_FALL}", highlight=False, soft_wrap=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stop(self._progress)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        stop(self._progress)
