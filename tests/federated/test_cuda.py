"""On a CUDA device: numbers of the CPU, no wait within local training, and runs that go on. Skipped without one.

`accelerator.py` pretends a device anywhere; this is the real one, whose kernels round otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from benchmark.errors import Stopped
from benchmark.federated import jobs
from benchmark.federated.batches import LocalBatch
from benchmark.federated.engines import EngineOptions
from benchmark.federated.local import LocalModule
from benchmark.records.run import run
from tests.conftest import record_of
from tests.methods.golden import TRACES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CARD, HOST = ("cuda:0",), ("cpu",)
NO_NUMBERS = {"cell_key", "time/round_seconds", "time/cpu_seconds"}
Rounds = list[dict[str, float]]


@pytest.fixture
def refuses_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable CUDA's debug mode: an operation that makes the host wait raises, from a job's first batch to its last."""

    def watched(module: LocalModule, batches: Iterable[LocalBatch], train: Any = jobs.train) -> Any:
        if not next(module.parameters()).is_cuda:
            return train(module, batches)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return train(module, batches)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(jobs, "train", watched)
    yield


def recorded(name: str, folder: Path, devices: tuple[str, ...], *callbacks: pl.Callback, workers: int = 1) -> Rounds:
    """Run a trace as a whole, with both kinds of diversity, and read the rounds of its record."""
    trace = TRACES[name]
    evaluation = replace(trace.evaluation, gradient_diversity_every=1)
    experiment = replace(trace, evaluation=evaluation, federation=replace(trace.federation, rounds=2))
    run(experiment, folder, engine=EngineOptions(engine="pool", workers=workers, devices=devices), callbacks=callbacks)
    (place,) = (folder / "runs" / experiment.cell_key).iterdir()
    lines = record_of(place).rounds
    rounds = []
    for line in lines:
        rounds.append({key: float(value) for key, value in line.items() if key not in NO_NUMBERS})
    return rounds


def assert_near(ours: Rounds, theirs: Rounds) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-2, abs=3e-3)  # one of 360 test images


@pytest.mark.parametrize("name", TRACES)
def test_a_run_has_the_numbers_of_the_cpu_and_waits_for_nothing(name, refuses_waits, tmp_path):
    assert_near(recorded(name, tmp_path / "card", CARD), recorded(name, tmp_path / "host", HOST))


class StopAfterOne(pl.Callback):
    def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize("name", ["crl-grouping", "rscfed", "fedswitch", "fedmatch", "sage", "remixmatch"])
def test_a_run_that_was_stopped_goes_on(name, tmp_path):
    with pytest.raises(Stopped, match="after round 1"):
        recorded(name, tmp_path / "stopped", CARD, StopAfterOne())
    assert_near(recorded(name, tmp_path / "stopped", CARD), recorded(name, tmp_path / "whole", CARD))


def test_three_workers_share_a_card(tmp_path):
    many = recorded("crl-grouping", tmp_path / "pool", CARD, workers=3)
    assert_near(many, recorded("crl-grouping", tmp_path / "alone", CARD))
