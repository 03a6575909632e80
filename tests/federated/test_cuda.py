"""On a CUDA device: numbers of the CPU, no wait within local training, and runs that go on. Skipped without one.

`accelerator.py` pretends a device anywhere; this is the real one, whose kernels round otherwise.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from benchmark.federated import jobs
from benchmark.federated.batches import LocalBatch
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.local import LocalModule
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.records.state import RunState, load, save
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference
from tests.methods.golden import FOLDER, TRACES, trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CARD = "cuda:0"
OnCard = partial(ReferenceEngine, device=CARD, fast=True)


@pytest.fixture
def refuses_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUDA's own watch: an operation for which the host waits raises, from a job's first batch to its last."""

    def watched(module: LocalModule, batches: Iterable[LocalBatch], train: Any = jobs.train) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return train(module, batches)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(jobs, "train", watched)
    yield


@pytest.mark.parametrize("name", TRACES)
def test_rounds_have_the_numbers_of_the_cpu_and_wait_for_nothing(name, refuses_waits):
    environment = prepare(TRACES[name])
    lines = trace(TRACES[name], FederatedModule(environment, OnCard(environment)))
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    for ours, theirs in zip(lines, golden, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["crl-grouping", "rscfed", "fedswitch", "fedmatch", "sage", "remixmatch"])
def test_a_run_goes_on_from_its_file(name, tmp_path):
    """With the weights of a run that was not stopped; bits are not promised on CUDA."""
    experiment = TRACES[name]
    weights = []
    for stops in (False, True):
        environment = prepare(experiment)
        module = FederatedModule(environment, OnCard(environment))
        module.training_step(1, 0)
        if stops:
            save(tmp_path, RunState(state=module.state, lines=("{}\n",), measured={}, exchange={}), "run")
            saved = load(tmp_path, "run")
            assert saved is not None
            module = FederatedModule(environment, OnCard(environment), saved.state, rounds_done=1)
        module.training_step(2, 0)
        weights.append({key: value.cpu() for key, value in next(iter(module.models().values())).items()})
    assert difference(*weights) < 1e-6


def test_two_workers_share_a_card():
    """The pool's rounds are those of one process."""
    experiment = tiny_experiment(federation=replace(tiny_experiment().federation, rounds=2))
    environment = prepare(experiment)
    weights = []
    with ProcessPool(environment, 2, (CARD,)) as pool:
        for engine in (OnCard(environment), pool):
            module = FederatedModule(environment, engine)
            for number in (1, 2):
                module.training_step(number, 0)
            weights.append({key: value.cpu() for key, value in next(iter(module.models().values())).items()})
    assert difference(*weights) < 1e-6
