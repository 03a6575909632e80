"""How processes are started: deaf to the keyboard's interrupt, forked from one that is loaded, and none is left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, alive

STARTED = """
import pathlib, time
from benchmark.federated import start

start.LOADED = ["textwrap"]
if __name__ == "__main__":
    with start.starting(fresh=FRESH) as context:
        process = context.Process(target=time.sleep, args=(60,), daemon=True)
        process.start()
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    print(type(process).__name__, process.pid, *(line.split()[1] for line in status.splitlines() if "SigBlk" in line))
    process.kill()
    process.join()
"""

INTERRUPTED = """
import os, signal, threading, time
from benchmark.federated import start

start.LOADED = ["textwrap"]
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    with start.starting():
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
    """The words that a fresh Python prints."""
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
