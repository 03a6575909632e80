"""Claims: who is at a run, whatever dies, stops or wakes up in between."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from benchmark.errors import RunningElsewhere
from benchmark.records.run_lock import NAME, RunLockLost, is_held, locked, this_process, why_dead
from tests.conftest import ROOT, wait_until

# Claims the folder argv[1], says so, and when a line comes in whether the claim is still its own.
HOLDER = """
import sys
from pathlib import Path
from benchmark.records.run_lock import RunLockLost, locked
with locked(Path(sys.argv[1]), beat=0.5) as lock:
    print("claimed", flush=True)
    sys.stdin.readline()
    print("own" if lock.is_own() else "lost", flush=True)
"""


@pytest.fixture
def holder(tmp_path):
    """Start another process of this machine that holds the lock of tmp_path."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "claimed\n"
        yield other
        other.kill()


def of_another_machine(folder: Path) -> Path:
    """Make the lock of a process on another machine with a heartbeat just now."""
    path = folder / NAME
    path.write_text(json.dumps({"token": "theirs", **this_process(), "machine": "elsewhere"}))
    return path


def test_one_process_at_a_time_and_nothing_is_left(tmp_path):
    with locked(tmp_path) as lock:
        assert is_held(tmp_path) and lock.is_own() and lock.after is None
        with pytest.raises(RunningElsewhere, match="another process is working on this run"), locked(tmp_path):
            pass
        assert lock.is_own()
    assert not is_held(tmp_path) and not list(tmp_path.iterdir())


def test_a_live_process_keeps_its_claim_and_a_dead_one_loses_it_at_once(tmp_path, holder):
    """However short ago that one has beaten."""
    with pytest.raises(RunningElsewhere), locked(tmp_path, patience=60.0):
        pass
    holder.send_signal(SIGKILL)
    holder.wait()
    assert why_dead(tmp_path, patience=1e6) == "its process is gone"
    with locked(tmp_path, patience=1e6) as lock:
        assert lock.after == "its process is gone"


def test_a_stopped_process_loses_it_when_it_is_silent_and_notices_when_it_wakes(tmp_path, holder):
    holder.send_signal(SIGSTOP)
    with pytest.raises(RunningElsewhere), locked(tmp_path, patience=60.0):
        pass
    wait_until(lambda: not is_held(tmp_path, patience=0.5), 20)
    with locked(tmp_path, patience=0.5) as lock:
        beat = (tmp_path / NAME).stat().st_mtime_ns
        holder.send_signal(SIGCONT)
        assert holder.communicate("\n", timeout=60)[0].strip() == "lost"
        assert lock.is_own() and (tmp_path / NAME).stat().st_mtime_ns == beat  # it neither removed nor moved it
    assert lock.after == "no heartbeat"


@pytest.mark.parametrize(("silence", "taken"), [(110.0, False), (130.0, True), (-110.0, False), (-7200.0, True)])
def test_of_another_machine_only_the_heartbeat_is_known(tmp_path, silence, taken):
    """A live process number means nothing there. 120 s are the default patience. A time in the future was set before a
    clock was put back: a holder that lives sets another within seconds."""
    os.utime(of_another_machine(tmp_path), (time.time() - silence,) * 2)
    with ExitStack() as stack:
        if not taken:
            stack.enter_context(pytest.raises(RunningElsewhere))
        assert stack.enter_context(locked(tmp_path, beat=0.1)).after == "no heartbeat"


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_jumps_takes_no_run_from_its_process(tmp_path, holder, jump):
    """A beat before the jump looks an hour off, until the next one comes."""
    os.utime(tmp_path / NAME, (time.time() - jump,) * 2)
    with pytest.raises(RunningElsewhere), locked(tmp_path, patience=60.0, beat=5.0):
        pass
    assert holder.communicate("\n", timeout=60)[0].strip() == "own"


def test_a_claim_that_is_empty_or_damaged_counts_by_its_heartbeat(tmp_path):
    """Empty: between creating and writing, or after a loss of power in that moment."""
    for content in (b"", b"\xff\xfe", b"[1]", b'{"machine": [], "pid": {}}', b"[" * 5000):
        path = of_another_machine(tmp_path)
        path.write_bytes(content)
        assert is_held(tmp_path)
        os.utime(path, (time.time() - 200,) * 2)
        with locked(tmp_path, beat=0.1) as lock:
            lock.check()


@pytest.mark.parametrize("gone", ["removed", "renamed", "taken over"])
def test_a_holder_whose_claim_is_gone_is_told(tmp_path, gone):
    folder = tmp_path / "run"
    with pytest.raises(RunLockLost, match="took over the run in ") as error, locked(folder):
        if gone == "removed":
            shutil.rmtree(folder)
        elif gone == "renamed":
            folder.rename(tmp_path / "other")
        else:
            of_another_machine(folder)
        raise FileNotFoundError("whatever fails then")
    assert error.value.exit_code == 75
    assert (folder / NAME).exists() == (gone == "taken over")


@pytest.mark.parametrize(
    ("name", "silence", "held"), [("process", 10, True), ("process", 130, False), ("note", 10, False)]
)
def test_a_process_of_an_older_version_is_respected_while_its_lease_beats(tmp_path, name, silence, held):
    """A launcher of that version left notes in the place of leases, too."""
    lease = tmp_path / "leases" / "000001"
    lease.parent.mkdir()
    lease.write_text(json.dumps({name: {}}))
    os.utime(lease, (time.time() - silence,) * 2)
    assert is_held(tmp_path) is held
    with ExitStack() as stack:
        if held:
            stack.enter_context(pytest.raises(RunningElsewhere, match="another process is working on this run"))
        stack.enter_context(locked(tmp_path)).check()


def test_eight_at_fifty_runs_do_each_once(tmp_path):
    """Every one tries every folder until it has a result."""
    done: list[Path] = []

    def work(seed: int) -> None:
        folders = [tmp_path / str(number) for number in range(50)]
        random.Random(seed).shuffle(folders)
        while folders:
            folder = folders.pop()
            try:
                with locked(folder) as lock:
                    if not (folder / "result.json").exists():
                        lock.check()
                        (folder / "result.json").touch()
                        done.append(folder)
            except RunningElsewhere:
                folders.insert(0, folder)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(done) == len(set(done)) == 50
