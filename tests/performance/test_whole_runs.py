"""The parts of a run's CPU time are all of it, and measuring them moves no number."""

import time

import pytest

from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment
from tests.performance.whole_runs import seconds_of

pytestmark = pytest.mark.slow  # of tools for speed, which no command needs


def test_the_parts_are_the_whole(tmp_path) -> None:
    began = time.process_time()
    seconds = seconds_of(tiny_experiment(), tmp_path / "timed")
    whole = time.process_time() - began
    assert 0.2 * whole < sum(seconds.values()) < whole  # less by the rest of the process
    assert min(seconds.values()) > -0.02 * whole and seconds["bare steps"] > 0.0 < seconds["evaluation"]


def test_measuring_moves_no_number(tmp_path) -> None:
    """Equal to six digits: the fast local step is another than the reference engine's in its last bits."""
    seconds_of(tiny_experiment(), tmp_path / "timed")
    run(tiny_experiment(), tmp_path / "plain")
    timed, plain = (next((tmp_path / name).glob("runs/*/*")) for name in ("timed", "plain"))
    measured, wanted = record_of(timed).result["last"], record_of(plain).result["last"]
    assert measured.keys() == wanted.keys()
    for name, value in wanted.items():
        assert abs(measured[name] - value) < 1e-4 * max(1.0, abs(value)), name
