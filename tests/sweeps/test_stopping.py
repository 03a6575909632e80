"""Ctrl-C and SIGTERM at the moment when worker processes have just been started: all of them end."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.errors import Stopped
from tests.conftest import ROOT, alive

# The signal comes once a process is there, and before whoever started it has noted it.
SCRIPT = """
import multiprocessing.process
import os, signal, sys
from pathlib import Path

from benchmark.errors import FsslError
from benchmark.federated.engines import EngineOptions
from benchmark.records.run import run
from sweeps.launcher import launch
from sweeps.workers import LocalWorkers
from sweeps.studies import read_study
from sweeps.tune import TuneWorker, tune
from tests.conftest import ROOT, tiny_experiment

begin = multiprocessing.process.BaseProcess.start


def signalled(process):
    begin(process)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.NAME)


def work(results):
    launch(LocalWorkers(2, results), [tiny_experiment().with_seed(seed) for seed in range(4)], results)


def search(results):
    study = read_study(str(ROOT / "tests" / "sweeps" / "toy.toml"), "demo", trials=10_000)
    tune(TuneWorker(study=study, storage=str(results / "s.journal"), results=results), jobs=2)


def train(results):
    run(tiny_experiment(), results, engine=EngineOptions(engine="pool", workers=2))


if __name__ == "__main__":
    multiprocessing.process.BaseProcess.start = signalled
    try:
        WHAT(Path(sys.argv[1]))
    except FsslError as error:
        sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("what", ["work", "search", "train"])
def test_whatever_is_started_ends_within_a_minute(what: str, name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("WHAT", what).replace("NAME", name))
    words = [sys.executable, str(script), str(tmp_path / "results")]
    env = {"PYTHONPATH": str(ROOT)}
    (tmp_path / "results").mkdir()
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            out, _ = process.communicate(timeout=120)  # 60 seconds, and the time to load
        finally:
            process.kill()
    assert process.returncode == Stopped.exit_code
    started = [int(line) for line in out.splitlines() if line.isdecimal()]
    assert started and not any(map(alive, started))
