"""Run commands in separate processes that may get a signal, with W&B's client and agent on `wandb_server`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmark.experiment import Experiment
from benchmark.records.record import run_folder
from sweeps.grid import checked
from sweeps.sweep_file import read, written
from tests.conftest import ROOT, record_of, wait_until
from tests.records.wandb_server import ENTITY, PROJECT, Run, Server
from tests.sweeps.gates import SECONDS, begun

SWEEP = f"{ENTITY}/{PROJECT}/s1"
FSSL = [sys.executable, "-m", "benchmark.cli.main"]


def environment(server: Server | None, folder: Path, **more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{plain['PATH']}"  # agents start `python`
    places = {"PATH": path, "PYTHONPATH": str(ROOT), "WANDB_DIR": str(folder), "FSSL_RESULTS": str(folder / "results")}
    # Seconds between the agent's questions and between uploads of the history: five and fifteen are a whole run here.
    places |= {"WANDB_AGENT_REPORT_INTERVAL": "1", "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1"}
    return {**plain, **places, **(server.environment if server else {}), **more}


def small_sweep(folder: Path, **more: list[Any]) -> tuple[Path, Experiment]:
    """Return a sweep file, and the first of its runs, which needs some seconds."""
    path = folder / "sweep.yaml"
    path.write_text(written({"T": [8], "profile": ["demo"], "seed": [0], **more}, name="small", made_by="a test"))
    return path, checked(read(path))[0]


def signalled(words: Sequence[Any], number: int, results: Path, run: Experiment, **more: str) -> tuple[int, str, str]:
    """Send a signal to a command once this run has its first round; return its exit code and output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FSSL_RESULTS": str(results), **more}
    command = [str(word) for word in words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        wait_until(lambda: begun(run_folder(results, run)) or process.poll() is not None, SECONDS)
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def called(words: list[str], env: dict[str, str], seconds: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=env, cwd=env["WANDB_DIR"], capture_output=True, text=True, timeout=seconds)


def assert_mirrored(run: Run, folder: Path) -> None:
    """Assert that W&B has each of the 60 recorded rounds once, except for the additions of its client."""
    assert [line["_step"] for line in run.history] == list(range(1, 61))
    for seen, line in zip(run.history, record_of(folder).rounds, strict=True):
        metrics = {k: v for k, v in line.items() if not k.startswith(("cell_key", "seed", "time/"))}
        assert {k: v for k, v in seen.items() if not k.startswith("_")} == pytest.approx(metrics, rel=1e-6)
