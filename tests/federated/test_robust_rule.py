"""`federation.on_divergence=drop` in every engine: what one client sends is not finite, in every round."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.methods.protocol import Job, State, World
from benchmark.methods.ssfl import SSFL
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment
from tests.federated.poison import poisoned
from tests.records.equality import differences

SPOILED = 2  # the client


@dataclass(frozen=True, kw_only=True)
class OneSpoils(SSFL):
    """SSFL, in which what one client sends has a NaN in every round."""

    def round(self, state: State, world: World) -> tuple[State, dict[str, float]]:
        def spoiled(job: Job) -> Job:
            return poisoned(job) if job.key.client == SPOILED else job

        state, metrics = super().round(state, replace(world, fit=lambda jobs: world.fit([*map(spoiled, jobs)])))
        return state, dict(metrics)


TINY = tiny_experiment()
EXPERIMENT = replace(
    TINY,
    method=OneSpoils(**vars(TINY.method)),
    federation=replace(TINY.federation, on_divergence="drop"),
)


def by_engine(results: Path, **how: Any) -> None:
    run(EXPERIMENT, results, seconds_between=0.0, **how)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("reference")
    by_engine(results)
    return results


def test_it_is_counted_in_every_round_and_another_run_than_with_it(reference, tmp_path):
    """The three others and the server are averaged: the run ends finite, otherwise than with nothing spoiled."""
    record = record_of(run_folder(reference, EXPERIMENT))
    assert [line["comm/dropped"] for line in record.rounds] == [1, 1, 1] and record.status == "done"
    whole = replace(EXPERIMENT, method=TINY.method)
    run(whole, tmp_path)
    found = record_of(run_folder(tmp_path, whole))
    assert [line["comm/dropped"] for line in found.rounds] == [0, 0, 0]
    assert json.dumps(found.result["last"]) != json.dumps(record.result["last"])


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({"engine": "pool", "workers": 2}, id="pool"),
    ],
)
def test_every_engine_leaves_the_same_client_out(reference, tmp_path, engine):
    """The reference's weights, up to the rounding of other products: 1e-5, as the engines' own tests have it."""
    by_engine(tmp_path, **engine)
    assert differences(tmp_path, reference, EXPERIMENT, within=1e-5) == []
    dropped = [line["comm/dropped"] for line in record_of(run_folder(tmp_path, EXPERIMENT)).rounds]
    assert dropped == [1, 1, 1]
