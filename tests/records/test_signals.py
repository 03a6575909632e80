"""SIGTERM and Ctrl-C: the round in progress is abandoned, the last finished one is on disk, nothing is left running.

At which place a signal comes moves no number: see `test_run_folder`.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import pytest
import pytorch_lightning as pl

from benchmark.errors import Stopped
from benchmark.federated.stopping import Preempted, StopOnSignal, check, received
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.records.equality import saved
from tests.records.forks import Child

TINY = tiny_experiment()
EXPERIMENT = replace(TINY, federation=replace(TINY.federation, rounds=5))


def stopped_in_round_3(results: Path, *signals: int, send: Any = os.kill, **options: Any) -> tuple[str, float]:
    """A run is stopped when its third round, which waits for it, has begun. What it says, and how long that takes."""
    child = Child(EXPERIMENT, results, workers=2, wait_in_round=3, **options)
    child.wait_for_rounds(2)
    time.sleep(0.5)
    began = time.monotonic()
    for number in signals:
        send(child.pid, number)
        child.join(0.3)
    end = child.end()
    assert (end.code, end.left) == (Stopped.exit_code, []), end.said
    assert saved(run_folder(results, EXPERIMENT), EXPERIMENT).round == 2
    return end.said, time.monotonic() - began


@pytest.mark.parametrize(
    ("engine", "number", "send"),
    [
        ("reference", SIGINT, os.kill),
        ("pool", SIGTERM, os.killpg),  # as a scheduler sends it: to the workers, too
        ("pool", SIGINT, os.kill),  # as a terminal sends it: workers are told to leave it to their parent
    ],
)
def test_a_round_in_progress_is_abandoned(tmp_path, engine, number, send):
    """Its first client has been trained and has kept something: that is done again."""
    said, seconds = stopped_in_round_3(tmp_path, number, send=send, engine=engine)
    assert seconds < 20 and f"stopped by {number.name} after round 2" in said and said.count("\n") == 1


def test_a_second_signal_ends_it_at_once(tmp_path):
    """Saving would take a minute: the second signal does not wait for it, and what was saved before is whole."""
    said, seconds = stopped_in_round_3(tmp_path, SIGTERM, SIGINT, engine="pool", sleep_when_stopped=60)
    assert seconds < 10 and "stopped at once" in said


def test_callbacks_hear_of_it_and_the_handlers_are_those_of_before(tmp_path):
    """What marks a run as preempted elsewhere is a callback with `on_exception`."""
    heard = []

    class Mirror(pl.Callback):
        def on_train_batch_start(self, *args):
            os.kill(os.getpid(), SIGTERM)

        def on_exception(self, trainer, pl_module, exception):
            heard.append(exception)

    numbers = (SIGTERM, SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(Stopped, match="after round 0"):
        run(EXPERIMENT, tmp_path, callbacks=[Mirror()])
    (exception,) = heard
    assert isinstance(exception, Preempted) and exception.signal == "SIGTERM"
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_signal_while_data_are_loaded(tmp_path, monkeypatch):
    def slow(*arguments):
        os.kill(os.getpid(), SIGINT)
        time.sleep(60)

    monkeypatch.setattr("benchmark.records.run.prepare", slow)
    with pytest.raises(Stopped, match="stopped by SIGINT"):
        run(EXPERIMENT, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored():
    """A parent that passes Ctrl-C on as SIGTERM has its children ignore the terminal's own."""
    before = signal.signal(SIGINT, signal.SIG_IGN)
    try:
        with StopOnSignal().listening():
            os.kill(os.getpid(), SIGINT)
            assert received() is None
    finally:
        signal.signal(SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_that_was_lost_is_raised_at_the_next_look():
    """Python prints and drops what is raised while an object is freed."""

    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(SIGTERM)

    with StopOnSignal().listening():
        check()
        Freed()
        assert received() == "SIGTERM"
        with pytest.raises(Preempted):
            check()
    check()  # it counts for that run alone
