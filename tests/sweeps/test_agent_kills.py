"""kill -9 of a W&B agent, and of the run under it: the table is completed, and nothing is trained twice."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
import yaml

from benchmark.records.claim import read as read_claim
from benchmark.records.record import read_rounds, run_folder
from sweeps.grid import checked
from sweeps.sweep_file import read
from tests.conftest import record_of
from tests.records.wandb_server import Server
from tests.sweeps.agents import FSSL, SWEEP, called, environment, sweep_file

ROUNDS = 5  # before the kill


@contextmanager
def begun(server: Server, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", Path, list[str]]]:
    """`fssl agent` on a sweep of one run that has done its first rounds; the run's folder, and the command."""
    path = sweep_file(folder, [4])
    (experiment,) = checked(read(path))
    run = run_folder(folder / "results", experiment)
    words, env = [*FSSL, "agent", str(path), SWEEP], environment(server, folder)
    server.begin(yaml.safe_load(path.read_text()))
    with subprocess.Popen(words, env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as agent:
        wait_for(lambda: len(read_rounds(run)) >= ROUNDS)
        try:
            yield agent, run, words
        finally:
            left = read_claim(run) or {}  # where the test has failed
            for pid in (agent.pid, *([left["pid"]] if "pid" in left else [])):
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)


def wait_for(condition, seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pid_of(run: Path) -> int:
    """The process that has claimed the run."""
    return int((read_claim(run) or {})["pid"])


def agent_under(pid: int) -> int:
    """The `wandb agent` that this process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (agent,) = [child for child in children if b"\0agent\0" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(agent)


def stat_of(pid: int) -> list[str]:
    """State, parent, and what else the system says of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@pytest.mark.slow
def test_an_orphan_keeps_its_run_from_the_next_agents_child_and_finishes_it(tmp_path):
    """The agent is killed; its child trains on, alone. Handed to a second agent, the run is refused (75) and nothing
    is begun; while that is tried the orphan stands still, so that it cannot be done before. Then it goes on."""
    with Server() as server, begun(server, tmp_path) as (agent, run, words):
        orphan = pid_of(run)
        under = agent_under(agent.pid)
        os.kill(under, SIGKILL)
        # A process that is stopped when its parent's last thread ends gets SIGHUP from the system.
        wait_for(lambda: stat_of(orphan)[1] != str(under))
        os.kill(orphan, SIGSTOP)
        assert agent.wait(200) == 75  # the orphan holds its standard error open: nothing to read to the end
        server.hand_out_again()
        second = called(words, environment(server, tmp_path), seconds=400)
        assert second.returncode == 75 and "1 runs are left; other workers train them" in second.stderr, second.stderr
        assert "another process is at this run" in second.stderr
        assert pid_of(run) == orphan
        os.kill(orphan, SIGCONT)
        wait_for(lambda: (run / "result.json").exists())
        third = called(words, environment(server, tmp_path), seconds=400)
        assert third.returncode == 0 and "1 of 1 runs have their record" in third.stdout, third.stderr
    assert len(record_of(run).manifest["attempts"]) == 1 and len(record_of(run).rounds) == 60
