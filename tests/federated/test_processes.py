"""Processes born deaf to the keyboard's interrupt."""

import signal
import subprocess
import sys

from tests.conftest import ROOT

SCRIPT = """
import multiprocessing, pathlib, signal, time
from benchmark.federated.processes import born_deaf

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    with born_deaf():
        process.start()
        print(pathlib.Path(f"/proc/{process.pid}/status").read_text())
    process.kill()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_the_first_process_of_a_parent_is_born_deaf_too(tmp_path):
    """Its mask, as the kernel shows it, has SIGINT from the start; a later process finds the resource tracker running,
    the first one of a fresh Python does not."""
    script = tmp_path / "first.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    (blocked,) = [line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("SigBlk:")]
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
