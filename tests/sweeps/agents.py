"""W&B's own client and agent in processes of their own, pointed at the server of `tests.records.wandb_server`."""

import os
import subprocess
import sys
from pathlib import Path

from sweeps.grid import Grid
from sweeps.sweep_file import written
from tests.conftest import ROOT, record_of
from tests.records.wandb_server import ENTITY, PROJECT, Server

SWEEP = f"{ENTITY}/{PROJECT}/s1"
FSSL = [sys.executable, "-m", "benchmark.cli.main"]
WANDB = [sys.executable, "-m", "wandb"]


def environment(server: Server | None, folder: Path, **more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{plain['PATH']}"  # agents start `python`
    places = {"PATH": path, "PYTHONPATH": str(ROOT), "WANDB_DIR": str(folder), "FSSL_RESULTS": str(folder / "results")}
    # Seconds between the agent's questions and between uploads of the history: five and fifteen are a whole run here.
    places |= {"WANDB_AGENT_REPORT_INTERVAL": "1", "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1"}
    return {**plain, **places, **(server.environment if server else {}), **more}


def sweep_file(folder: Path, T: list[int]) -> Path:
    path = folder / "sweep.yaml"
    grid: Grid = {"T": T, "method": ["grouping"], "profile": ["demo"], "seed": [0]}
    path.write_text(written(grid, name="small", made_by="a test"))
    return path


def called(words: list[str], env: dict[str, str], seconds: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=env, cwd=env["WANDB_DIR"], capture_output=True, text=True, timeout=seconds)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """What W&B should have: the recorded rounds."""
    lines = record_of(folder).rounds
    return [{k: v for k, v in line.items() if k == "round" or not k.startswith(("cell_key", "seed", "time/"))}
            for line in lines]  # fmt: skip


def history_of(server: Server, name: str) -> list[dict[str, float]]:
    """What W&B has, without what its client adds."""
    return [{k: v for k, v in line.items() if not k.startswith("_")} for line in server.runs[name].history]
