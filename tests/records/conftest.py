"""Provide a disk that can be full, and faults at the beginning of a round of a run in this process."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
import pytorch_lightning as pl

from benchmark.errors import Stopped
from benchmark.experiment import Experiment
from benchmark.records.run import run
from tests.records.faults import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a separate file system of 20 MB."""
    (folder := tmp_path / "disk").mkdir()
    with small_disk(folder, 20) as mounted:
        if not mounted:
            pytest.skip("no file system can be mounted here")
        yield folder


class When(pl.Callback):
    """When so many rounds are done and the next one begins."""

    def __init__(self, done: int, do: Callable[[], object]) -> None:
        self._done, self._do = done, do

    def on_train_batch_start(self, trainer, pl_module, *args):
        if pl_module.rounds_done == self._done:
            self._do()


def stopped_after(rounds: int, experiment: Experiment, results: Path, **options: Any) -> None:
    """Stop a run by SIGTERM when the next round begins, so that the run's own handler must answer."""
    with pytest.raises(Stopped):
        run(experiment, results, callbacks=[When(rounds, lambda: os.kill(os.getpid(), SIGTERM))], **options)
