"""`fssl run --wandb`: mirror a run in W&B from its first round to its exit code."""

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule
from benchmark.federated.stopping import Preempted
from benchmark.records.record import read_run, run_folder
from benchmark.records.wandb_mirror import WandbMirror, labels_of, mode_asked


class Mirroring(pl.Callback):
    """Sends each round to W&B once it is recorded."""

    def __init__(self, mirror: WandbMirror) -> None:
        self._mirror = mirror

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._mirror.start()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._mirror.show(pl_module.rounds_done, pl_module.metrics)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, Preempted):
            self._mirror.mark_preempting()


@contextlib.contextmanager
def mirrored(
    options: argparse.Namespace, experiment: Experiment, words: Mapping[str, Any]
) -> Iterator[list[pl.Callback]]:
    """The callbacks that mirror the run; none where no mirror is wanted. `words`: see `labels_of`.

    A run that another process has finished is mirrored from its record. Raises ConfigError.
    """
    mode = mode_asked(options.wandb)
    if mode is None:
        yield []
        return
    folder = run_folder(options.results, experiment)
    mirror = WandbMirror(
        experiment,
        lambda: read_run(folder),
        labels=labels_of(experiment, words),
        mode=mode,
        wandb_folder=Path(options.results) / "wandb",
        run_folder=folder,
    )
    try:
        yield [Mirroring(mirror)]
    except FsslError as error:
        if mirror.started:  # a run that did not start here has nothing to show
            mirror.finish(error.exit_code)
        raise
    mirror.finish(0)
