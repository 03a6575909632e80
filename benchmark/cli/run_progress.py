"""Progress of the run that this process trains."""

import time
from dataclasses import replace

import pytorch_lightning as pl

from benchmark.cli.progress import Display
from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule
from sweeps.cost import weighed
from sweeps.status import RunStatus


class RunProgress(pl.Callback):
    """Shows each finished round."""

    def __init__(self, experiment: Experiment, display: Display) -> None:
        self._experiment, self._display = experiment, display
        key, seed, rounds = experiment.cell_key, experiment.seed, experiment.federation.rounds
        self._status = RunStatus(cell_key=key, seed=seed, name="training", state="running", rounds=rounds, attempt=1)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._first, self._began = pl_module.rounds_done, time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        done, metrics = pl_module.rounds_done, pl_module.metrics
        self._status = replace(
            self._status,
            round=done,
            accuracy=metrics.get("test/accuracy", metrics.get("validation/accuracy", self._status.accuracy)),
            seconds_per_round=(time.monotonic() - self._began) / (done - self._first),
        )
        self._display.show(lambda: [weighed(self._status, self._experiment)])
