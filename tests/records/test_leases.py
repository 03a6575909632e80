"""Leases: one process at a run at a time, whatever dies, stops or wakes up in between."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from benchmark.errors import RunningElsewhere
from benchmark.experiment import Federation, to_json
from benchmark.records.lease import Lease, LeaseLost, Process, claimed, is_held, newest, this_process
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.verify import troubles_of
from tests.conftest import ROOT, record_of, tiny_experiment
from tests.records.equality import differences

# Claims the folder argv[1], says so, and publishes "theirs" when a line comes in.
HOLDER = """
import sys
from pathlib import Path
from benchmark.records.lease import LeaseLost, claimed
with claimed(Path(sys.argv[1]), beat=0.05) as lease:
    print(lease.attempt, flush=True)
    sys.stdin.readline()
    try:
        lease.publish(b'{"status": "theirs"}')
        print("published", flush=True)
    except LeaseLost:
        print("lost", flush=True)
"""


def process(code: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path):
    """Another process of this machine that holds tmp_path as its first attempt."""
    with process(HOLDER, tmp_path) as other:
        assert other.stdout is not None and other.stdout.readline() == "1\n"
        yield other
        other.kill()


def answer_of(other: subprocess.Popen[str]) -> str:
    assert other.stdin is not None and other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    return other.stdout.readline().strip()


def attempts(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "leases").iterdir())


def test_one_at_a_time_and_every_attempt_has_its_number(tmp_path):
    with claimed(tmp_path) as first:
        assert is_held(tmp_path)
        with pytest.raises(RunningElsewhere, match="another process is at this run"), claimed(tmp_path):
            pass
    assert not is_held(tmp_path)
    with claimed(tmp_path) as second:
        assert (first.attempt, second.attempt) == (1, 2)
        with pytest.raises(LeaseLost):
            first.check()
        second.check()
    assert attempts(tmp_path) == ["000001", "000002"]


def test_a_process_that_is_gone_loses_its_lease_at_once(tmp_path, holder):
    with pytest.raises(RunningElsewhere), claimed(tmp_path, patience=0.0):
        pass  # it is there, and not stopped: silence alone does not count on one machine
    holder.send_signal(SIGKILL)
    holder.wait()
    with claimed(tmp_path, patience=1e6) as lease:
        assert lease.attempt == 2


def test_a_stopped_process_is_waited_for_and_publishes_nothing_when_it_wakes(tmp_path, holder):
    """Its heart beats every 0.05 s; half a second of silence is patience enough here."""
    holder.send_signal(SIGSTOP)
    with pytest.raises(RunningElsewhere), claimed(tmp_path, patience=60.0):
        pass
    deadline = time.monotonic() + 20
    while is_held(tmp_path, patience=0.5):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with claimed(tmp_path, patience=0.5) as lease:
        holder.send_signal(SIGCONT)
        assert answer_of(holder) == "lost"
        lease.publish(b'{"status": "mine"}')
    assert json.loads((tmp_path / "result.json").read_text()) == {"status": "mine"}


def test_a_stopped_process_that_nobody_replaced_goes_on(tmp_path, holder):
    holder.send_signal(SIGSTOP)
    holder.send_signal(SIGCONT)
    assert answer_of(holder) == "published"
    assert json.loads((tmp_path / "result.json").read_text()) == {"status": "theirs"}
    assert attempts(tmp_path) == ["000001"]


@pytest.mark.parametrize(("silence", "taken"), [(110.0, False), (130.0, True)])
def test_of_another_machine_only_the_heartbeat_is_known(tmp_path, silence, taken):
    """A live process number means nothing there. 120 s are the default patience."""
    (tmp_path / "leases").mkdir()
    path = tmp_path / "leases" / "000001"
    path.write_text(json.dumps({"process": replace(this_process(), machine="elsewhere").to_json()}))
    now = time.time()
    os.utime(path, (now - silence, now - silence))
    with ExitStack() as stack:
        if not taken:
            stack.enter_context(pytest.raises(RunningElsewhere))
        assert stack.enter_context(claimed(tmp_path)).attempt == 2


def test_a_clock_that_is_an_hour_ahead_takes_nothing_over(tmp_path, monkeypatch):
    """Fault 13: ages are differences of file times, and never this machine's clock."""
    (tmp_path / "leases").mkdir()
    path = tmp_path / "leases" / "000001"
    path.write_text(json.dumps({"process": replace(this_process(), machine="elsewhere").to_json()}))
    monkeypatch.setattr(time, "time", lambda clock=time.time: clock() + 3600.0)
    with pytest.raises(RunningElsewhere), claimed(tmp_path):
        pass


def test_a_heart_beats_while_the_process_computes(tmp_path):
    with claimed(tmp_path, beat=0.02):
        path = tmp_path / "leases" / "000001"
        os.utime(path, (1000.0, 1000.0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 1000.0:
            assert time.monotonic() < deadline
    assert path.stat().st_mtime == 0.0  # given up


def test_a_number_that_is_taken_keeps_a_result_out(tmp_path):
    """Publishing is the taking of the next number: there is no moment in which both could happen."""
    with claimed(tmp_path) as lease:
        (tmp_path / "leases" / "000002").touch()
        with pytest.raises(LeaseLost):
            Unchecked(tmp_path, lease.attempt).publish(b'{"status": "done"}')
    assert not (tmp_path / "result.json").exists() and not list(tmp_path.glob(".*"))


class Unchecked(Lease):
    """Stood still after it had looked."""

    def check(self) -> None:
        pass


def test_a_result_whose_process_died_before_it_had_its_name(tmp_path):
    """What stands under a number and has a status is the result."""
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "000001").write_text("{}")
    (tmp_path / "leases" / "000002").write_text('{"status": "done"}')
    assert not is_held(tmp_path)
    with claimed(tmp_path):
        assert json.loads((tmp_path / "result.json").read_text()) == {"status": "done"}


def test_a_lease_without_content_counts_by_its_heartbeat(tmp_path):
    """Between creating and writing, or after a loss of power in that moment."""
    (tmp_path / "leases").mkdir()
    path = tmp_path / "leases" / "000001"
    path.touch()
    assert is_held(tmp_path)
    os.utime(path, (time.time() - 200,) * 2)
    assert not is_held(tmp_path)


def test_which_process_is_there():
    mine = this_process()
    assert mine.is_working() is True
    assert Process.from_json(json.loads(json.dumps(mine.to_json()))) == mine
    assert replace(mine, started=mine.started - 1).is_working() is False  # a later process with the same number
    assert replace(mine, machine="elsewhere").is_working() is None
    assert replace(mine, machine=None).is_working() is None


# For every folder of argv[2:], in an order drawn from the seed argv[1]: claim it, and publish if there is no result.
RACER = """
import random, sys
from pathlib import Path
from benchmark.errors import RunningElsewhere
from benchmark.records.lease import claimed
folders = list(map(Path, sys.argv[2:]))
random.Random(sys.argv[1]).shuffle(folders)
sys.stdin.readline()
while folders:
    folder = folders.pop()
    try:
        with claimed(folder, patience=1e6) as lease:
            if not (folder / "result.json").exists():
                lease.publish(b'{"status": "done"}')
                print(folder.name, flush=True)
    except RunningElsewhere:
        folders.insert(0, folder)
"""


def test_eight_processes_publish_two_hundred_results_once_each(tmp_path):
    """They start together; every one tries every folder until it has a result. One of them is killed on its way."""
    folders = [tmp_path / f"{number:03}" for number in range(200)]
    racers = [process(RACER, seed, *folders) for seed in range(8)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert racers[0].stdout is not None
    said = racers[0].stdout.readline()
    racers[0].kill()
    published = Counter(line for racer in racers for line in (said + racer.communicate(timeout=60)[0]).split())
    assert all(racer.returncode == 0 for racer in racers[1:])
    published.subtract({said.strip(): 7})  # it was joined to each
    assert max(published.values()) == 1
    assert len(list(tmp_path.glob("*/result.json"))) == 200 and len(published) >= 199  # it may die before it has spoken


def test_a_run_that_stood_still_is_finished_by_another_and_nothing_is_written_twice(tmp_path):
    """Fault 12, with a real run: stopped after three rounds, taken over, woken: exit code 75, and the record is whole
    and bit-equal to the unbroken run's."""
    experiment = replace(tiny_experiment(), federation=Federation(K=4, C=4, T=2, rounds=50))
    words = ["--json", "--results", str(tmp_path / "broken"), "--config", str(tmp_path / "experiment.json")]
    (tmp_path / "experiment.json").write_text(json.dumps(to_json(experiment)))
    command = [sys.executable, "-m", "benchmark.cli.main", "run", *words]
    folder = run_folder(tmp_path / "broken", experiment)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        deadline = time.monotonic() + 60
        lines = folder / "rounds.jsonl"
        while not (lines.exists() and lines.read_text().count("\n") >= 3):
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.005)
        first.send_signal(SIGSTOP)
        time.sleep(0.2)
        run(experiment, tmp_path / "broken", patience=0.1)
        before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        first.send_signal(SIGCONT)
        _, said = first.communicate(timeout=60)
    assert first.returncode == 75 and "took this run over" in said, said
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before
    run(experiment, tmp_path / "whole")
    assert differences(tmp_path / "broken", tmp_path / "whole", experiment) == []
    assert troubles_of(record_of(folder), folder) == []
    found = newest(folder)
    assert found is not None and found.attempt == 2
