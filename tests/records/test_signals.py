"""SIGTERM and Ctrl-C: the round in progress is abandoned, the last finished one is on disk, nothing is left running."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest
import pytorch_lightning as pl

from benchmark.errors import Stopped
from benchmark.experiment import Experiment
from benchmark.federated.stopping import Preempted, StopOnSignal, asked, check
from benchmark.records.record import run_folder
from benchmark.records.recorder import Recorder
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.records.equality import differences, saved, untimed

ROUNDS = 5


def with_state_at_clients() -> Experiment:
    tiny = tiny_experiment()
    return replace(
        tiny, method=replace(tiny.method, momentum="released_code"), federation=replace(tiny.federation, rounds=ROUNDS)
    )


EXPERIMENT = with_state_at_clients()


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    """The results of a run that nothing interrupts, by engine."""
    found = {}
    for engine in ("reference", "pool"):
        found[engine] = tmp_path_factory.mktemp(engine)
        assert forks.run(EXPERIMENT, found[engine], engine=engine, workers=1)["code"] == 0
    return found


def attempts(results: Path) -> list[dict]:
    return json.loads((run_folder(results, EXPERIMENT) / "manifest.json").read_text())["attempts"]


@pytest.mark.parametrize(
    ("engine", "number", "group"),
    [
        ("reference", SIGTERM, False),
        ("reference", SIGINT, False),
        ("pool", SIGTERM, True),  # as a scheduler sends it: to the workers, too
        ("pool", SIGINT, False),  # as a terminal sends it: workers are told to leave it to their parent
    ],
)
def test_a_round_of_minutes_is_abandoned(forks, whole, tmp_path, engine, number, group):
    """Round 3 takes minutes, and its first client has been trained and has kept something: it is done again.

    What is on disk is round 2; the exit code is 76.
    """
    end = forks.run(
        EXPERIMENT,
        tmp_path,
        engine=engine,
        workers=2,
        faults={"sleep_in_round": 3},
        lines=2,
        delay=0.5,
        signals=[number],
        group=group,
    )
    assert end["code"] == Stopped.exit_code and end["seconds"] < 20 and end["left"] == [], end
    assert f"stopped by {number.name} after round 2" in end["said"] and end["said"].count("\n") == 1
    folder = run_folder(tmp_path, EXPERIMENT)
    assert saved(folder, EXPERIMENT).round == len(untimed(folder)) == 2
    (attempt,) = attempts(tmp_path)
    assert attempt["stopped"]["by"] == number.name and attempt["stopped"]["after_round"] == 2
    assert forks.run(EXPERIMENT, tmp_path, engine=engine, workers=1)["code"] == 0
    assert attempts(tmp_path)[1]["from_round"] == 2
    assert differences(tmp_path, whole[engine], EXPERIMENT) == []


def test_a_second_signal_ends_it_at_once(forks, whole, tmp_path, engine="pool"):
    """Saving would take a minute: the second signal does not wait for it, and what was saved before is whole."""
    end = forks.run(
        EXPERIMENT,
        tmp_path,
        engine=engine,
        workers=2,
        faults={"sleep_in_round": 3, "sleep_when_stopped": 60},
        lines=2,
        delay=0.5,
        signals=[SIGTERM, SIGINT],
    )
    assert end["code"] == Stopped.exit_code and end["seconds"] < 10 and end["left"] == [], end
    assert "stopped at once" in end["said"]
    assert saved(run_folder(tmp_path, EXPERIMENT), EXPERIMENT).round == 2
    assert forks.run(EXPERIMENT, tmp_path)["code"] == 0
    assert differences(tmp_path, whole[engine], EXPERIMENT) == []


def test_a_round_that_is_being_recorded_is_recorded_first(tmp_path, whole, monkeypatch):
    """A signal while round 2's line is made: round 2 is saved."""
    line = Recorder._line

    def interrupted(self, round_number, metrics):
        if round_number == 2:
            os.kill(os.getpid(), SIGTERM)
        return line(self, round_number, metrics)

    monkeypatch.setattr(Recorder, "_line", interrupted)
    with pytest.raises(Stopped, match="stopped by SIGTERM after round 2"):
        run(EXPERIMENT, tmp_path)
    monkeypatch.undo()
    assert saved(run_folder(tmp_path, EXPERIMENT), EXPERIMENT).round == 2
    run(EXPERIMENT, tmp_path)
    assert untimed(run_folder(tmp_path, EXPERIMENT)) == untimed(run_folder(whole["reference"], EXPERIMENT))


def test_a_signal_while_the_last_round_is_recorded_changes_nothing(tmp_path, monkeypatch, whole):
    """There is nothing left to stop: the result is written, and is `done`."""
    publish = Recorder.publish

    def interrupted(self, *arguments):
        os.kill(os.getpid(), SIGTERM)
        return publish(self, *arguments)

    monkeypatch.setattr(Recorder, "publish", interrupted)
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert untimed(run_folder(tmp_path, EXPERIMENT)) == untimed(run_folder(whole["reference"], EXPERIMENT))


def test_callbacks_hear_of_it_and_the_handlers_are_those_of_before(tmp_path):
    """What marks a run as preempted elsewhere is a callback with `on_exception`."""
    heard = []

    class Mirror(pl.Callback):
        def on_train_batch_start(self, *args):
            os.kill(os.getpid(), SIGTERM)

        def on_exception(self, trainer, pl_module, exception):
            heard.append(exception)

    before = [signal.getsignal(number) for number in (SIGTERM, SIGINT)]
    with pytest.raises(Stopped, match="after round 0"):
        run(EXPERIMENT, tmp_path, callbacks=[Mirror()])
    (exception,) = heard
    assert isinstance(exception, Preempted) and exception.signal == "SIGTERM"
    assert [signal.getsignal(number) for number in (SIGTERM, SIGINT)] == before


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
        stop = StopOnSignal()
        with stop.listening():
            assert signal.getsignal(SIGINT) is signal.SIG_IGN and signal.getsignal(SIGTERM) == stop._ask
            os.kill(os.getpid(), SIGINT)
            assert asked() is None
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
        assert asked() == "SIGTERM"
        with pytest.raises(Preempted):
            check()
    check()  # it counts for that run alone
