"""Progress of a single run on a terminal: rounds, accuracy, time left; plain lines where there is no terminal."""

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import TaskID

from benchmark.cli.progress import TimeLeft, bar, left_in_words, stop
from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule


class RunProgress(pl.Callback):
    """The bar of a single run, on standard error."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._console = Console(stderr=True)
        self._progress = bar(self._console)
        self._task: TaskID | None = None
        self._accuracy, self._left = "", TimeLeft()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        rounds = self._experiment.federation.rounds
        if self._console.is_terminal:
            self._progress.start()
        self._task = self._progress.add_task(
            "training", total=rounds, completed=pl_module.rounds_done, note="", rounds=f"0/{rounds}"
        )
        self._left.update(pl_module.rounds_done, rounds)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule) and self._task is not None
        accuracy = pl_module.metrics.get("test/accuracy", pl_module.metrics.get("validation/accuracy"))
        if accuracy is not None:
            self._accuracy = f"accuracy {100 * accuracy:.2f} %"
            if not self._console.is_terminal:
                self._console.print(
                    f"round {pl_module.rounds_done}/{self._experiment.federation.rounds} {self._accuracy}"
                )
        done, total = pl_module.rounds_done, self._experiment.federation.rounds
        left = left_in_words(self._left.update(done, total)) if done < total else ""
        note = ", ".join(filter(None, (self._accuracy, left)))
        self._progress.update(self._task, completed=done, rounds=f"{done}/{total}", note=note)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stop(self._progress)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        stop(self._progress)
