"""SIGTERM and Ctrl-C: the round in progress is abandoned, the last finished one is on disk, nothing is left running.

At which place a signal comes moves no number: see `test_run_folder`.
"""

import os
import signal
import time
from dataclasses import replace
from signal import SIGINT, SIGTERM
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl

from benchmark.errors import Stopped
from benchmark.federated.stopping import Preempted, StopOnSignal, check, received
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.records.equality import saved

TINY = tiny_experiment()
EXPERIMENT = replace(TINY, federation=replace(TINY.federation, rounds=5))


def stopped_in_round_3(forks, results, how, *signals, **options):
    """The end of a run that is stopped when its third round, which takes minutes, has begun; `how`: of `faults`."""
    end = forks.run(EXPERIMENT, results, faults=how, lines=2, delay=0.5, signals=signals, workers=2, **options)
    assert end["code"] == Stopped.exit_code and end["left"] == [], end
    assert saved(run_folder(results, EXPERIMENT), EXPERIMENT).round == 2
    return SimpleNamespace(seconds=end["seconds"], said=end["said"])


@pytest.mark.parametrize(
    ("engine", "number", "group"),
    [
        ("reference", SIGINT, False),
        ("pool", SIGTERM, True),  # as a scheduler sends it: to the workers, too
        ("pool", SIGINT, False),  # as a terminal sends it: workers are told to leave it to their parent
    ],
)
def test_a_round_of_minutes_is_abandoned(forks, tmp_path, engine, number, group):
    """Its first client has been trained and has kept something: that is done again."""
    end = stopped_in_round_3(forks, tmp_path, {"sleep_in_round": 3}, number, engine=engine, group=group)
    assert end.seconds < 20
    assert f"stopped by {number.name} after round 2" in end.said and end.said.count("\n") == 1


def test_a_second_signal_ends_it_at_once(forks, tmp_path):
    """Saving would take a minute: the second signal does not wait for it, and what was saved before is whole."""
    slow = {"sleep_in_round": 3, "sleep_when_stopped": 60}
    end = stopped_in_round_3(forks, tmp_path, slow, SIGTERM, SIGINT, engine="pool")
    assert end.seconds < 10 and "stopped at once" in end.said


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
