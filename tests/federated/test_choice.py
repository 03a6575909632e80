"""The engine of a run: chosen by the work, by name, or refused; both give the same record."""

import contextlib
import json
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError, Stopped
from benchmark.experiment import Federation
from benchmark.federated.engines import (
    WORTH_WORKERS,
    build_engine,
    engine_again,
    layout,
    needs_workers,
    suits_workers,
)
from benchmark.federated.environment import prepare
from benchmark.federated.process_pool import ProcessPool
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.records.equality import differences
from tests.records.test_run import Interrupt


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


@pytest.mark.parametrize(
    ("name", "workers", "rounds", "device", "starts"),
    [
        ("auto", 2, 1, None, False),
        ("auto", 2, 10_000, "cpu", True),  # 20,000 local steps are enough of them
        ("reference", 2, 10_000, None, False),
        ("pool", 2, 1, None, True),
        ("pool", 1, 10_000, None, False),  # this process does one worker's work
    ],
)
def test_whether_workers_are_needed_is_known_before_there_is_data(tiny, name, workers, rounds, device, starts):
    """What is told of an experiment is what `build_engine` then makes of it."""
    federation = Federation(K=2, C=2, T=1, rounds=rounds)
    environment = prepare(replace(tiny, federation=federation))
    with contextlib.closing(build_engine(name, environment, workers, 1, device=device)) as engine:
        found = needs_workers(name, environment.experiment, workers, 1, device=device)
        assert isinstance(engine, ProcessPool) == found == starts


def test_a_pool_of_one_gives_the_bits_of_two(tiny, tmp_path):
    """One worker is this process. The record calls it by what decides its bits."""
    for workers in (1, 2):
        run(tiny, tmp_path / str(workers), engine="pool", workers=workers)
    assert differences(tmp_path / "1", tmp_path / "2", tiny) == []
    manifests = [json.loads((run_folder(tmp_path / str(n), tiny) / "manifest.json").read_text()) for n in (1, 2)]
    one, two = (manifest["engine"] for manifest in manifests)
    assert one == {**two, "workers": 1} and one["name"] == "pool"


@pytest.mark.parametrize(
    ("name", "threads", "named"),
    [("gpuu", 1, "unknown engine 'gpuu'; choose auto, reference, pool"), ("pool", 2, "--threads: 2")],
)
def test_what_cannot_be_built_is_refused(tiny, name, threads, named):
    with pytest.raises(ConfigError, match=named):
        build_engine(name, prepare(tiny), None, threads)


@pytest.mark.parametrize(
    ("C", "cores", "expected"),
    [
        (10, 2, (2, 1)),  # 11 jobs on 2 cores
        (1, 2, (2, 1)),  # the client's and the server's
        (1, 8, (2, 4)),  # 2 jobs on 8 cores: 4 threads for each
        (4, 8, (5, 1)),  # 5 jobs on 8 cores: a second thread for some would make results depend on who got it
    ],
)
def test_no_more_workers_than_jobs(C, cores, expected):
    assert layout(C, cores) == expected


def test_both_engines_leave_the_same_record(tiny, tmp_path):
    """But for the last bits, and the time it took; the manifest names the engine."""
    experiment = replace(tiny, federation=replace(tiny.federation, rounds=2))
    here = run(experiment, tmp_path / "reference")
    there = run(experiment, tmp_path / "pool", engine="pool", workers=2)
    assert here["last"] == pytest.approx(there["last"], rel=1e-5) and here["cost"] == there["cost"]
    for name in ("reference", "pool"):
        assert manifest(tmp_path / name)["name"] == name


def test_a_run_goes_on_with_the_engine_it_began_with(tiny, tmp_path):
    """Begun by workers and asked to go on with the reference: the bits are those of workers throughout."""
    whole = run(tiny, tmp_path / "whole", engine="pool", workers=1)
    with pytest.raises(Stopped):
        run(tiny, tmp_path / "broken", callbacks=[Interrupt(1)], engine="pool", workers=1)
    resumed = run(tiny, tmp_path / "broken", engine="reference")
    assert manifest(tmp_path / "broken") == manifest(tmp_path / "whole")
    assert resumed["last"] == whole["last"]


@pytest.mark.parametrize(
    "began",
    [
        {"name": "cpu", "threads": 1, "bit_equal": True},  # workers with the plain local step
        {"name": "pool", "threads": 1, "bit_equal": True, "plain": False, "confident_only": False},
    ],
)
def test_an_engine_that_is_gone_is_named(tiny, began):
    with pytest.raises(ConfigError, match=f"begun by the engine '{began['name']}', which is no longer there"):
        engine_again(began, prepare(tiny), None)


def manifest(results):
    (folder,) = (results / "runs").glob("*/seed=0")
    return json.loads((folder / "manifest.json").read_text())["engine"]
