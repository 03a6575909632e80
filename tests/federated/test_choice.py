"""The engine of a run: chosen by the work, by name, or refused; both give the same record."""

import json
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import Federation
from benchmark.federated.choice import WORTH_WORKERS, build_engine, suits_workers
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.tracking.run import run
from tests.conftest import tiny_experiment


@pytest.mark.parametrize(
    ("federation", "workers", "suits"),
    [
        (Federation(K=10, C=10, T=10, rounds=100), 2, True),  # 10,000 local steps of clients
        (Federation(K=10, C=10, T=10, rounds=99), 2, False),  # a little less
        (Federation(K=10, C=1, T=100, rounds=1000), 2, False),  # one job at a time
        (Federation(K=10, C=10, T=10, rounds=100), 1, False),  # one core
    ],
)
def test_workers_where_they_pay(federation, workers, suits):
    assert WORTH_WORKERS == 10_000
    assert suits_workers(tiny_experiment(federation=federation), workers) == suits


def test_small_work_stays_in_this_process(tiny):
    assert isinstance(build_engine("auto", prepare(tiny), None, 1), ReferenceEngine)


@pytest.mark.parametrize(
    ("name", "threads", "named"), [("gpuu", 1, "one of auto, reference, cpu"), ("cpu", 2, "--threads: 2")]
)
def test_what_cannot_be_built_is_refused(tiny, name, threads, named):
    with pytest.raises(ConfigError, match=named):
        build_engine(name, prepare(tiny), None, threads)


def test_both_engines_leave_the_same_record(tiny, tmp_path):
    """Bit by bit, but for the time it took; the manifest names the engine."""
    experiment = replace(tiny, federation=replace(tiny.federation, rounds=2))
    here = run(experiment, tmp_path / "reference")
    there = run(experiment, tmp_path / "cpu", engine="cpu", workers=2)
    assert here["last"] == there["last"] and here["cost"] == there["cost"]
    for name in ("reference", "cpu"):
        (folder,) = (tmp_path / name / "runs").glob("*/seed=0")
        assert json.loads((folder / "manifest.json").read_text())["engine"]["name"] == name
