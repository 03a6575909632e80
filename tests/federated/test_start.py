"""How processes are started: deaf to the keyboard's interrupt, forked from one that is loaded, and none is left."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.federated import processes
from tests.conftest import ROOT, alive

STARTED = """
import pathlib, time
from benchmark.federated import processes

processes.LOADED = ["textwrap"]
if __name__ == "__main__":
    with processes.process_context(fresh=FRESH) as context:
        process = context.Process(target=time.sleep, args=(60,), daemon=True)
        process.start()
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    print(type(process).__name__, process.pid, *(line.split()[1] for line in status.splitlines() if "SigBlk" in line))
    process.kill()
    process.join()
"""

INTERRUPTED = """
import os, signal, threading, time
from benchmark.federated import processes

processes.LOADED = ["textwrap"]
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    with processes.process_context():
        os.kill(os.getpid(), signal.NAME)
        time.sleep(0.2)
        print("started")
    print("never heard")
except KeyboardInterrupt:
    print("heard")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def said(script: str, folder: Path, **variables: str) -> list[str]:
    """Return the words that a fresh Python prints."""
    path = folder / "script.py"
    path.write_text(script)
    environment = {"PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, path], cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


@pytest.mark.parametrize("fresh", [False, True])
def test_the_first_process_too_begins_deaf_to_the_keyboard(tmp_path, fresh):
    """The kernel shows SIGINT blocked from the start: a process that is still loading ends with no traceback."""
    kind, pid, blocked = said(STARTED.replace("FRESH", str(fresh)), tmp_path)
    assert kind == ("SpawnProcess" if fresh else "ForkServerProcess")
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
    assert not alive(int(pid))


def test_where_no_server_can_listen_processes_are_fresh(tmp_path):
    """A socket's name has at most 108 bytes on Linux (unix(7)), and it lies in the folder of temporary files."""
    (long := tmp_path / ("long" * 40)).mkdir()
    assert said(STARTED.replace("FRESH", "False"), tmp_path, TMPDIR=str(long))[0] == "SpawnProcess"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_a_start_is_heard_after_it(name, tmp_path):
    """Also where another thread, which blocks nothing, is the one that the signal comes to."""
    assert said(INTERRUPTED.replace("NAME", name), tmp_path) == ["started", "heard"]


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {}, math.inf),
        ("3:cpu,cpuacct:/x\n0::/", {"cpu,cpuacct/x/cpu.cfs_quota_us": "50000"}, 0.5),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1"}, math.inf),
        ("9:memory:/m", {"memory/m/cpu.max": "100000 100000"}, math.inf),
        ("broken", {"cpu.max": "100000 100000"}, math.inf),
    ],
)
def test_a_container_s_share_of_the_cores_is_read(tmp_path, group, files, cores):
    (tmp_path / "group").write_text(group + "\n")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
        (tmp_path / name).with_name("cpu.cfs_period_us").write_text("100000\n")
    assert processes._quota(tmp_path, tmp_path / "group") == cores


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.5, 2), (math.inf, None), (1e6, None)])
def test_there_are_no_more_workers_than_cores_and_share(monkeypatch, quota, cores):
    allowed = len(os.sched_getaffinity(0))
    monkeypatch.setattr(processes, "_quota", lambda: quota)
    assert processes.usable_cores() == min(allowed, cores or allowed)
