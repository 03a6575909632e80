"""Whatever comes to a run, wherever it comes: the record is that of an unbroken run, bit by bit, clocks apart, and
nothing is lost but the rounds since the last save."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGKILL
from typing import Any

import pytest

from benchmark.experiment import Federation
from benchmark.federated.engines import EngineOptions
from benchmark.methods.registry import METHODS, method_name
from benchmark.records import recorder
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.sharing.verify import record_faults
from tests.conftest import record_of, tiny_experiment
from tests.methods.golden import TRACES
from tests.records.conftest import When
from tests.records.equality import differences, saved
from tests.records.faults import FAULTS, PLACES
from tests.records.forks import Child

ROUNDS, AT = 3, 2  # a run's rounds, and the one in which something happens
TINY = tiny_experiment()
# State at the clients, so that a run that goes on needs more than the weights.
EXPERIMENT = replace(
    TINY,
    method=replace(TINY.method, momentum="released_code"),
    federation=Federation(K=2, C=2, T=2, rounds=ROUNDS),
)
ENGINES: dict[str, dict[str, Any]] = {
    "reference": {"engine": "reference"},
    "pool of one": {"engine": "pool", "workers": 1},
    "pool of two": {"engine": "pool", "workers": 2},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    """Return the results of an unbroken run, by engine."""
    folders = {name: tmp_path_factory.mktemp("whole") for name in ENGINES}
    for name, options in ENGINES.items():
        assert Child(EXPERIMENT, folders[name], **options).end().code == 0
    return folders


def expected_code(fault: str, place: str) -> int:
    """Return the expected exit code.

    A run that has been published or is about to be has nothing left to stop, and adopts the existing result.
    """
    if place == "at publishing" and fault in ("stopped", "woken"):
        return 0
    return {"killed": -SIGKILL, "stopped": 76, "woken": 75, "disk full": 73}[fault]


def expected_round(fault: str, place: str) -> int:
    """Return the round that a run resumes from. A signal lets a save finish; a round in progress is abandoned."""
    if place == "at publishing":
        return ROUNDS
    done = place == "after a save" or (fault == "stopped" and place in ("before a save", "in a save"))
    return AT if done else AT - 1


def all_combinations() -> Iterator[Any]:
    """Return all faults by place: each with one engine in the quick tests, and with the two others in the slow ones."""
    for number, (place, fault) in enumerate(itertools.product(PLACES, FAULTS)):
        for turn, engine in enumerate(ENGINES):
            quick = turn == (number + number // len(FAULTS)) % len(ENGINES)
            yield pytest.param(place, fault, engine, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("place", "fault", "engine"), list(all_combinations()))
def test_the_record_is_that_of_an_unbroken_run(request, whole, tmp_path, place, fault, engine):
    results = request.getfixturevalue("disk") if fault == "disk full" else tmp_path / "results"
    child = Child(EXPERIMENT, results, **ENGINES[engine], happens=(fault, place, AT, results))
    if fault == "woken":
        child.wait_until_stopped()
        time.sleep(0.2)  # it may have begun, and beaten, less than that ago
        successor = Child(EXPERIMENT, results, **ENGINES[engine], patience=0.2).end()
        assert successor.code == 0, successor.said
        os.kill(child.pid, SIGCONT)
    end = child.end()
    assert (end.code, end.left) == (expected_code(fault, place), []), end.said
    folder = run_folder(results, EXPERIMENT)
    if fault == "woken":
        assert end.code == 0 or "another process took over the run" in end.said
    elif end.code != 0:
        (results / "filler").unlink(missing_ok=True)
        assert not (folder / "result.json").exists()
        assert saved(folder, EXPERIMENT).round == expected_round(fault, place)
        again = Child(EXPERIMENT, results, **ENGINES[engine]).end()
        assert (again.code, again.said) == (0, "")
    assert differences(results, whole[engine], EXPERIMENT) == []
    record = record_of(folder)
    assert record_faults(record) == []
    starts = [attempt["from_round"] for attempt in record.manifest["attempts"]]
    assert starts == ([0] if fault == "stopped" and end.code == 0 else [0, expected_round(fault, place)])


def test_it_goes_on_with_other_workers_and_each_attempt_has_its_code_packages_and_processor(whole, tmp_path):
    """Killed with a pool of two, taken up by a process that is told the reference engine: it goes on as a pool of one,
    whose bits are equal."""
    killed = Child(EXPERIMENT, tmp_path, **ENGINES["pool of two"], happens=("killed", "in a job", AT, tmp_path))
    assert killed.end().code == -SIGKILL
    path = run_folder(tmp_path, EXPERIMENT) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["attempts"][0]["packages"]["torch"] = "1.0"
    path.write_text(json.dumps(manifest))
    assert Child(EXPERIMENT, tmp_path, workers=1).end().code == 0
    assert json.loads(path.read_text())["engine"]["name"] == "pool"
    first, second = json.loads(path.read_text())["attempts"]
    assert (first["packages"]["torch"], first.get("after")) == ("1.0", None)
    assert second["packages"] == manifest["packages"] != first["packages"]
    assert second["after"] == "its process is gone" and second["hardware"] and second["code"]
    assert differences(tmp_path, whole["pool of two"], EXPERIMENT) == []


FIRST = {method_name(TRACES[name].method): TRACES[name] for name in reversed(TRACES)}  # each method's first trace


@pytest.mark.parametrize(
    ("name", "engine"), [*((name, "reference") for name in METHODS), ("flfl", "pool"), ("cbafed", "pool")]
)
def test_every_method_goes_on_from_its_saved_state(tmp_path, monkeypatch, name, engine):
    """Of a copy of the run's folder, without its claim: as a process leaves it that is killed after round 1."""
    monkeypatch.setattr(recorder, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    experiment = replace(FIRST[name], federation=replace(FIRST[name].federation, rounds=2))
    options = EngineOptions(engine=engine, workers=1 if engine == "pool" else None)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    left, found = (run_folder(results, experiment) for results in (whole, broken))
    copied = When(1, lambda: shutil.copytree(left, found, ignore=shutil.ignore_patterns("claim")))
    run(experiment, whole, callbacks=[copied], engine=options)
    run(experiment, broken, engine=options)
    assert differences(broken, whole, experiment) == []
    assert record_of(run_folder(broken, experiment)).manifest["attempts"][-1]["from_round"] == 1


def test_a_run_by_the_engine_stacked_resumes_with_it(tmp_path, monkeypatch):
    """Whatever engine is asked for then; the manifest names it, and promises no equal bits."""
    monkeypatch.setattr(recorder, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    experiment = replace(FIRST["ssfl"], federation=replace(FIRST["ssfl"].federation, rounds=2))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    left, found = (run_folder(results, experiment) for results in (whole, broken))
    copied = When(1, lambda: shutil.copytree(left, found, ignore=shutil.ignore_patterns("claim")))
    run(experiment, whole, callbacks=[copied], engine=EngineOptions(engine="stacked"))
    run(experiment, broken, engine=EngineOptions(engine="pool", workers=1))
    assert differences(broken, whole, experiment) == []
    engine = record_of(found).manifest["engine"]
    assert engine == record_of(left).manifest["engine"]
    assert (engine["name"], engine["bit_equal"]) == ("stacked", False)
    assert record_of(found).trained_by == ("stacked", "a CPU")
