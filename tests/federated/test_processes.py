"""Processes born deaf to the keyboard's interrupt."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FIRST = """
import pathlib, signal, time
from benchmark.federated.processes import births

if __name__ == "__main__":
    with births(fresh=FRESH) as process:
        born = process(time.sleep, 60, daemon=True)
        born.start()
        print(type(born).__name__)
        print(pathlib.Path(f"/proc/{born.pid}/status").read_text())
    born.kill()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""

INTERRUPTED = """
import os, signal, threading, time
from benchmark.federated.processes import births

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    with births():
        os.kill(os.getpid(), signal.NAME)
        time.sleep(0.2)
        print("born")
    print("deaf for ever")
except KeyboardInterrupt:
    print("heard")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


AHEAD = """
import os, time
from multiprocessing import forkserver
from benchmark.federated import processes

if __name__ == "__main__":
    processes.LOADED = ["loaded_here"]
    processes.load_ahead()
    server = forkserver._forkserver._forkserver_pid
    if FORKED:
        with processes.births() as process:
            born = process(print, "born", daemon=False)
            born.start()
        born.join()
        assert forkserver._forkserver._forkserver_pid == server
    else:
        print(server)
"""


def said(script: str, folder: Path, **variables: str) -> str:
    """What a fresh Python prints."""
    path = folder / "script.py"
    path.write_text(script)
    environment = {"PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, path], cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_where_no_server_can_listen_processes_are_fresh(tmp_path):
    """A socket's name has at most 108 bytes on Linux (unix(7)), and it lies in the folder of temporary files."""
    (long := tmp_path / ("long" * 40)).mkdir()
    script = FIRST.replace("FRESH", "False")
    assert said(script, tmp_path).startswith("ForkServerProcess")
    assert said(script, tmp_path, TMPDIR=str(long)).startswith("SpawnProcess")


def test_the_server_ends_with_its_parent_whose_cost_has_its_own(tmp_path):
    """Loading torch takes the server over a second, and the parent, which loads none of it, far less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    said(FIRST.replace("FRESH", "False"), tmp_path)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before > 1.0


@pytest.mark.parametrize("fresh", [False, True])
def test_the_first_process_of_a_parent_is_born_deaf_too(tmp_path, fresh):
    """Its mask, as the kernel shows it, has SIGINT from the start; a later process finds the resource tracker running,
    the first one of a fresh Python does not."""
    lines = said(FIRST.replace("FRESH", str(fresh)), tmp_path).splitlines()
    (blocked,) = [line.split()[1] for line in lines if line.startswith("SigBlk:")]
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_comes_during_a_birth_is_heard_after_it(name, tmp_path):
    """Also where another thread, which blocks nothing, is the one that the signal comes to."""
    assert said(INTERRUPTED.replace("NAME", name), tmp_path).split() == ["born", "heard"]


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked elsewhere")
def test_a_server_is_loaded_ahead_and_not_waited_for_in_vain(tmp_path):
    """It stays the server of processes made later; where none are, it is gone although it would load for an hour."""
    (tmp_path / "loaded_here.py").write_text("import time\n")
    path = f"{ROOT}:{tmp_path}"
    assert said(AHEAD.replace("FORKED", "True"), tmp_path, PYTHONPATH=path) == "born\n"
    (tmp_path / "loaded_here.py").write_text("import time\ntime.sleep(3600)\n")
    server = said(AHEAD.replace("FORKED", "False"), tmp_path, PYTHONPATH=path)
    assert not Path(f"/proc/{int(server)}").exists()
