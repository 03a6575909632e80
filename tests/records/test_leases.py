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
from benchmark.records.lease import Lease, LeaseLost, claimed, is_held, this_process
from tests.conftest import ROOT

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
    os.utime(of_another_machine(tmp_path), (time.time() - silence,) * 2)
    with ExitStack() as stack:
        if not taken:
            stack.enter_context(pytest.raises(RunningElsewhere))
        assert stack.enter_context(claimed(tmp_path)).attempt == 2


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_moves_nothing(tmp_path, monkeypatch, hours):
    """Ages are differences of file times, and never this machine's clock: a live lease is held, a silent one is not."""
    path = of_another_machine(tmp_path)
    monkeypatch.setattr(time, "time", lambda clock=time.time: clock() + 3600.0 * hours)
    assert is_held(tmp_path)
    with pytest.raises(RunningElsewhere), claimed(tmp_path):
        pass
    now = path.stat().st_mtime
    os.utime(path, (now - 130,) * 2)
    assert not is_held(tmp_path)
    with claimed(tmp_path) as lease:
        assert (lease.attempt, lease.after) == (2, "no heartbeat")


@pytest.mark.parametrize("ahead", [7200.0, 365 * 86400.0])
def test_a_heartbeat_from_the_future_has_to_move_like_any_other(tmp_path, ahead):
    """It is set to now by who finds it: a live process goes on from there, a dead one's silence counts from there."""
    path = of_another_machine(tmp_path)
    os.utime(path, (time.time() + ahead,) * 2)
    assert is_held(tmp_path) and abs(path.stat().st_mtime - time.time()) < 60
    deadline = time.monotonic() + 20
    while is_held(tmp_path, patience=0.3):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"process": 5}', b"[1]", b'{"process": {"pid": "x"}}', b"[" * 5000])
def test_a_lease_that_is_damaged_counts_by_its_heartbeat(tmp_path, content):
    path = of_another_machine(tmp_path)
    path.write_bytes(content)
    assert is_held(tmp_path)
    os.utime(path, (time.time() - 200,) * 2)
    with claimed(tmp_path) as lease:
        assert lease.attempt == 2


def of_another_machine(folder: Path) -> Path:
    """The lease of a process there, whose heart has just beaten."""
    (folder / "leases").mkdir()
    path = folder / "leases" / "000001"
    path.write_text(json.dumps({"process": vars(replace(this_process(), machine="elsewhere"))}))
    return path


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
