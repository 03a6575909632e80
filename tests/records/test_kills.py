"""kill -9 at random moments, and inside the writing of a checkpoint: what is started again is bit-equal to the unbroken
run, for every method, and for every engine."""

import random
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

from benchmark.experiment import Experiment
from benchmark.methods.catalogue import METHODS, method_name
from benchmark.records.record import run_folder
from tests.conftest import tiny_experiment
from tests.methods.golden import TRACES
from tests.records.equality import differences, last_checkpoint
from tests.records.faults import STEPS
from tests.records.forks import Forks

ROUNDS = 6


def of(name: str) -> Experiment:
    return replace(TRACES[name], federation=replace(TRACES[name].federation, rounds=ROUNDS))


FIRST = {method_name(TRACES[name].method): name for name in reversed(TRACES)}  # each method's first trace
CASES = [*((name, "reference") for name in FIRST.values()), ("crl-released", "pool")]  # momentum stays at the clients


def test_every_method_is_killed():
    assert FIRST.keys() == METHODS.keys()


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_killed_twice(forks, tmp_path, name, engine):
    """At a random moment of rounds 2 to 4, and after a random step of writing the next checkpoint."""
    experiment, draw = of(name), random.Random(f"{name}, {engine}")
    assert forks.run(experiment, tmp_path / "whole", engine=engine, workers=2)["code"] == 0
    broken = killed_somewhere(forks, experiment, tmp_path, engine, draw)
    where = [1, draw.randint(1, len(STEPS))]
    second = forks.run(experiment, broken, engine=engine, workers=2, faults={"die_in_write": where})
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
        if end["code"] and len(list(results.glob("runs/*/*/rounds.jsonl"))) and recorded(results) < 5:
            return results
    raise AssertionError("the run was over before it could be killed, six times")


def recorded(results: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in results.glob("runs/*/*/rounds.jsonl"))


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    """An unbroken run of four rounds with state at the clients."""
    results, experiment = tmp_path_factory.mktemp("whole"), four_rounds()
    assert forks.run(experiment, results)["code"] == 0
    return results


def four_rounds() -> Experiment:
    tiny = tiny_experiment()
    return replace(
        tiny, method=replace(tiny.method, momentum="released_code"), federation=replace(tiny.federation, rounds=4)
    )


RENAME = 1 + STEPS.index("replace")


@pytest.mark.parametrize("step", [1, 3, 4, RENAME - 1, RENAME, len(STEPS)])
def test_killed_after_each_step_of_writing_the_second_checkpoint(forks, whole, tmp_path, step):
    """Up to the rename the first checkpoint counts, from then on the second; half a file is never taken for one."""
    experiment = four_rounds()
    folder = run_folder(tmp_path, experiment)
    end = forks.run(experiment, tmp_path, faults={"die_in_write": [2, step]})
    assert end["code"] == -SIGKILL, end["said"]
    begun = list((folder / "checkpoints").glob(".*"))
    assert len(begun) == (1 if step < RENAME else 0)
    finished = 1 if begun else 2
    assert last_checkpoint(folder, experiment).round == finished
    again = forks.run(experiment, tmp_path)
    assert again["code"] == 0 and again["said"] == ""
    assert f'"from_round": {finished}' in (folder / "manifest.json").read_text()
    assert differences(tmp_path, whole, experiment) == []
