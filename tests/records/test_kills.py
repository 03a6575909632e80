"""kill -9 at random moments, and inside a save: what is started again is bit-equal to the unbroken run, for every
method."""

import random
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

from benchmark.experiment import Experiment
from benchmark.methods.catalogue import METHODS, method_name
from tests.methods.golden import TRACES
from tests.records.equality import differences
from tests.records.forks import Forks, lines_of

ROUNDS = 6


def of(name: str) -> Experiment:
    return replace(TRACES[name], federation=replace(TRACES[name].federation, rounds=ROUNDS))


FIRST = {method_name(TRACES[name].method): name for name in reversed(TRACES)}  # each method's first trace
CASES = [*((name, "reference") for name in FIRST.values()), ("crl-released", "pool")]  # momentum stays at the clients


def test_every_method_is_killed():
    assert FIRST.keys() == METHODS.keys()


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_killed_twice(forks, tmp_path, name, engine):
    """At a random moment of rounds 2 to 4, and in the save of the last round."""
    experiment, draw = of(name), random.Random(f"{name}, {engine}")
    assert forks.run(experiment, tmp_path / "whole", engine=engine, workers=2)["code"] == 0
    broken = killed_somewhere(forks, experiment, tmp_path, engine, draw)
    faults = {"happens": ["killed", "in a save", ROUNDS, str(broken)]}
    second = forks.run(experiment, broken, engine=engine, workers=2, faults=faults)
    assert second["code"] == -SIGKILL, second["said"]
    last = forks.run(experiment, broken, engine=engine, workers=2)
    assert last["code"] == 0, last["said"]
    assert not second["left"] and not last["left"]
    assert differences(broken, tmp_path / "whole", experiment) == []


def killed_somewhere(forks: Forks, experiment: Experiment, folder: Path, engine: str, draw: random.Random) -> Path:
    """The results of a run that was killed after 1 to 3 rounds. On a busy machine the kill may come too late: again."""
    for attempt in range(6):
        results = folder / f"broken-{attempt}"
        lines, delay = draw.randint(1, 3), draw.uniform(0.0, 0.04)
        end = forks.run(experiment, results, engine=engine, workers=2, lines=lines, delay=delay, signals=[SIGKILL])
        assert end["code"] in (0, -SIGKILL) and not end["left"], end
        if end["code"] and 0 < lines_of(str(results)) < 5:
            return results
    raise AssertionError("the run was over before it could be killed, six times")
