"""Runs on disk: the same after any interruption, on disks that are read-only or damaged, however they are measured.

A signal: the round in progress is abandoned, the last finished one is on disk, nothing is left running. At which place
one comes, and full disks: see `test_run_folder`.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl

from benchmark.errors import CannotWrite, RunningElsewhere, Stopped
from benchmark.experiment import Evaluation, Experiment
from benchmark.federated.engines import EngineOptions
from benchmark.federated.processes import load_ahead, usable_cores
from benchmark.federated.stopping import Preempted, StopOnSignal, check, received
from benchmark.files import replacing, write_atomically
from benchmark.papers.items import items
from benchmark.records.cpu_clock import CpuClock, tree_seconds
from benchmark.records.record import measurements, run_folder
from benchmark.records.recorder import Recorder
from benchmark.records.run import run
from benchmark.records.run_lock import locked
from tests.conftest import record_of, tiny_experiment
from tests.records.conftest import When, stopped_after
from tests.records.equality import differences, saved, untimed
from tests.records.forks import Child

# State at the slots, so that a resumed run needs more than the weights.
EXPERIMENT: Experiment = replace(tiny_experiment(), method=replace(tiny_experiment().method, momentum="released_code"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("unbroken")
    run(EXPERIMENT, results)
    return results


def test_a_run_that_goes_on_keeps_what_it_was_begun_under(tiny, tmp_path):
    """Begun before the rule had a version, it has none later; one that was begun under nothing gets what there is."""
    experiments = tiny, tiny.with_seed(1)
    first, second = ({"family": {"main": [name], "others": []}} for name in ("first", "second"))
    for experiment, entries in zip(experiments, ({"claims": first}, {}), strict=True):
        stopped_after(1, experiment, tmp_path, begun_under=partial(dict, entries))
    later = {"claims": second, "rule": {"version": 4, "constants": "0"}}
    for experiment in experiments:
        run(experiment, tmp_path, begun_under=lambda: later)
    kept, new = (record_of(run_folder(tmp_path, experiment)).manifest for experiment in experiments)
    assert kept["claims"] == first and "rule" not in kept
    assert {name: new[name] for name in later} == later


def test_an_unfinished_run_of_an_older_version_begins_anew_once(tmp_path, unbroken, capsys):
    """With its lease silent; all that it left is gone after it."""
    folder = run_folder(tmp_path, EXPERIMENT)
    for name in ("checkpoints/round-000001-000001-0123456789abcdef.pt", "leases/000001", "attempts/1.jsonl"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    (folder / "rounds.jsonl").write_text('{"round": 1, "old": 1}\n{"round": 2, "ha')
    (folder / ".result.json.abcd1234.tmp").write_text("half")
    stopped_after(1, EXPERIMENT, tmp_path)
    assert "an older version began this run; it starts from round 1" in capsys.readouterr().err
    names = {path.name for path in folder.iterdir()}
    assert names == {"experiment.json", "manifest.json", "progress.jsonl", "state.pt"}
    run(EXPERIMENT, tmp_path)
    assert capsys.readouterr().err == ""
    # What such a process left that was killed just after it had published goes, too.
    for name in ("checkpoints/round-000003-000001-0123456789abcdef.pt", "state.pt", "progress.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []


def test_a_folder_that_is_removed_under_its_process_ends_it_with_75(tiny, tmp_path):
    """Also where it saves no more before the end; the folder is not made again."""
    folder = run_folder(tmp_path, tiny)
    removed = When(1, lambda: folder.rename(tmp_path / "elsewhere"))
    with pytest.raises(RunningElsewhere, match="or its folder was removed") as error:
        run(tiny, tmp_path, callbacks=[removed])
    assert error.value.exit_code == 75 and not folder.exists()


def test_the_recorder_never_writes_nan(tiny, tmp_path):
    with locked(tmp_path) as lock:
        line = json.loads(Recorder(lock, tiny)._line(1, {"test/loss": float("nan"), "test/accuracy": 0.5}, 0.25))
    assert "test/loss" not in line and line["test/accuracy"] == 0.5 and line["time/server_seconds"] == 0.25


def test_a_read_only_disk_is_reported_before_any_training(disk, monkeypatch):
    run(EXPERIMENT, disk)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    monkeypatch.setattr("benchmark.records.run.FederatedModule", None)  # nothing may be trained
    with pytest.raises(CannotWrite, match="Read-only file system") as error:
        run(EXPERIMENT.with_seed(1), disk)
    assert error.value.exit_code == 73
    assert run(EXPERIMENT, disk)["status"] == "done"  # what is finished can still be read


def test_temporary_files_are_written_into_the_folder_of_the_run(disk, unbroken, monkeypatch):
    """The results on a disk of their own; the usual folder for temporary files does not even exist."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk / "nowhere"))
    run(EXPERIMENT, disk)
    assert differences(disk, unbroken, EXPERIMENT) == [] and not (disk / "nowhere").exists()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {"state": ["state.pt"], "no state": [], "what is for people": ["progress.jsonl", "experiment.json"]}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_run_goes_on_from_what_is_whole_with_the_numbers_of_an_unbroken_one(what, tmp_path, unbroken, capsys):
    """From the state, or from the start; never from half a file. What is only for people is written anew."""
    folder = run_folder(tmp_path, EXPERIMENT)
    stopped_after(2, EXPERIMENT, tmp_path)
    for name in DAMAGE[what]:
        flip(folder / name)
    if what == "no state":
        (folder / "state.pt").unlink()
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []
    damaged = what == "state"
    assert ("state.pt is damaged" in (said := capsys.readouterr().err)) == damaged
    assert ("the run starts from round 1" in said) == damaged
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert attempts[-1]["from_round"] == (0 if "state" in what else 2)


def test_a_file_system_without_links(tmp_path, unbroken, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []


def test_two_that_write_one_file_at_once_each_write_it_whole(tmp_path):
    """As two `report --commit-reference` do: the one that ends last has it, and nothing else is left."""
    path = tmp_path / "copy"
    with replacing(path) as slow:
        slow.write(b"slow")
        write_atomically(path, b"fast")
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow" and list(tmp_path.iterdir()) == [path]


def stopped_in_round_3(results: Path, *signals: int, send: Any = os.kill, **options: Any) -> tuple[str, float]:
    """Stop a run when its third round, which waits for it, has begun; return its output and the time."""
    child = Child(EXPERIMENT, results, engine="pool", workers=2, wait_in_round=3, **options)
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
    ("number", "send"),
    [
        (SIGTERM, os.killpg),  # as a scheduler sends it: to the workers, too
        (SIGINT, os.kill),  # as a terminal sends it: workers are told to leave it to their parent
    ],
)
def test_a_round_in_progress_is_abandoned(tmp_path, number, send):
    """Its first client has been trained and has kept something: that is done again."""
    said, seconds = stopped_in_round_3(tmp_path, number, send=send)
    assert seconds < 20 and f"stopped by {number.name} after round 2" in said and said.count("\n") == 1


def test_a_second_signal_ends_it_at_once(tmp_path):
    """Saving would take a minute: the second signal does not wait for it, and what was saved before is whole."""
    said, seconds = stopped_in_round_3(tmp_path, SIGTERM, SIGINT, sleep_when_stopped=60)
    assert seconds < 10 and "stopped at once" in said


def test_callbacks_hear_of_it_and_the_handlers_are_those_of_before(tmp_path):
    """What marks a run as preempted elsewhere is a callback with `on_exception`."""
    heard = []

    class Mirror(pl.Callback):
        def on_exception(self, trainer, pl_module, exception):
            heard.append(exception)

    numbers = (SIGTERM, SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(Stopped, match="after round 0"):
        run(EXPERIMENT, tmp_path, callbacks=[Mirror(), When(0, lambda: os.kill(os.getpid(), SIGTERM))])
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


def measuring(every: int, diversity: int = 0, **changes) -> Experiment:
    return tiny_experiment(evaluation=Evaluation(every=every, gradient_diversity_every=diversity, **changes))


def test_how_often_is_measured_is_no_part_of_the_key_but_under_best_on_test():
    assert measuring(1).cell_key == measuring(7).cell_key == measuring(2, 3).cell_key
    best = [measuring(every, selection="best_on_test").cell_key for every in (1, 2)]
    assert len({*best, measuring(1).cell_key}) == 3
    assert measuring(1, 2, selection="best_on_test").cell_key == best[0]
    held_out = replace(tiny_experiment(), data=replace(tiny_experiment().data, N_validation=20))
    assert replace(held_out, evaluation=Evaluation(validation=True)).cell_key != held_out.cell_key


def test_the_command_says_what_a_finished_run_was_measured_with(tmp_path, fssl):
    words = [f"--results={tmp_path}", "--wandb=off", "--federation.rounds=1", "--federation.K=4", "--federation.C=2"]
    words += ["--federation.T=1", "--json", "--evaluation.every"]
    results = []
    for every, says in (("10", ""), ("7", "is measured with every 10, not 7")):
        code, out, err = fssl("run", *words, every)
        assert code == 0 and says in err and ("measured" in err) == bool(says)
        results.append(out)
    assert results[0] == results[1]  # and is not trained again


def test_an_unfinished_run_that_is_to_measure_otherwise_begins_anew(tmp_path, capsys):
    """All rounds of a record measure the same: three, evaluated in each; exact gradient diversity in the second."""
    stopped_after(2, measuring(3), tmp_path)
    for results in (tmp_path, tmp_path / "whole"):
        run(measuring(1, 2), results)
    assert "the run starts from round 1" in capsys.readouterr().err
    folder = run_folder(tmp_path, measuring(1))
    assert untimed(folder) == untimed(run_folder(tmp_path / "whole", measuring(1)))
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [attempt["from_round"] for attempt in attempts] == [0, 0]


@pytest.mark.parametrize("profile", ["demo", "paper"])
def test_items_that_share_a_cell_measure_it_alike(profile):
    """Whoever trains it first measures what all of them show."""
    seen: dict[str, dict[str, int]] = {}
    for item in items(["all"], profile):
        for cell in item.cells:
            asked = measurements(cell.experiment.evaluation)
            assert seen.setdefault(cell.cell_key, asked) == asked, (item.name, cell.label)


BUSY = """
import sys, time
while time.process_time() < 0.3: pass
print(flush=True)
sys.stdin.read()
"""


def test_a_child_counts_while_it_lives_as_after_its_end():
    """It is busy for 0.3 s beside its start; then it waits: its time is there before it has ended, and once after."""
    clock = CpuClock()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        living = clock.lap()
        of_child = tree_seconds(child.pid)
    assert living == pytest.approx(of_child, abs=0.15) and of_child >= 0.29
    assert clock.lap() < 0.15
    assert tree_seconds(child.pid) == 0.0


@pytest.mark.skipif(usable_cores() < 2, reason="one core: the pool has one worker")
def test_a_record_holds_the_cpu_seconds_of_its_workers(tiny, tmp_path):
    """This process aggregates and evaluates; the local steps, 16 times as many as usual, are the workers'."""
    load_ahead()  # the run's cost does not include the start of the server that forks its processes
    longer = replace(tiny, federation=replace(tiny.federation, T=16 * tiny.federation.T))
    before = time.process_time()
    result = run(longer, tmp_path, engine=EngineOptions(engine="pool"))
    here = time.process_time() - before
    of_rounds = sum(line["time/cpu_seconds"] for line in record_of(run_folder(tmp_path, longer)).rounds)
    assert 0 < round(of_rounds, 3) <= result["cpu_seconds"] < of_rounds + 2.0 and result["cpu_seconds"] > 1.5 * here
