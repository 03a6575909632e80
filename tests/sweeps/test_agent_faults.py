"""W&B's faults, switched on one by one in the loopback server: what is recorded, what W&B has, and exit codes.

Two sessions of the real agent, with a heartbeat every five seconds, are marked slow; the rest starts a run as an agent
would. No key, no network, wrong commands, preemption: test_agents.py.
"""

import json
import os
import threading
import time
from pathlib import Path

import pytest
import yaml

from benchmark.experiment import Experiment
from benchmark.records.claim import claimed
from benchmark.records.files import read_json
from benchmark.records.record import run_folder
from benchmark.records.verify import record_faults
from sweeps.factors import experiment_of
from tests.conftest import record_of
from tests.records.wandb_server import Faults, Server
from tests.sweeps.test_agents import FSSL, SWEEP, called, environment, history_of, metrics_of, sweep_file

SECONDS = 240  # a session of the agent takes 20 on an idle machine


def started_as_by_an_agent(folder: Path, **factors: object) -> tuple[list[str], Experiment]:
    words = {"T": 1, "profile": "demo", **factors}
    (folder / "config.json").write_text(json.dumps(words))
    return [*FSSL, "run", "--sweep", str(folder / "config.json")], experiment_of(words)


def test_uploads_that_are_cut_off_or_frozen_cost_no_round_and_no_exit_code(tmp_path):
    """Two uploads of the history are cut off and the others take two seconds each, longer than the run itself needs."""
    words, experiment = started_as_by_an_agent(tmp_path)
    with Server(Faults(drops=2, freeze=2.0)) as server:
        env = environment(server, tmp_path, WANDB_SWEEP_ID="s1", WANDB_RUN_ID="given")
        done = called(words, env, SECONDS)
        assert done.returncode == 0 and server.faults.drops == 0, done.stderr
        folder = run_folder(tmp_path / "results", experiment)
        assert history_of(server, "given") == [pytest.approx(line, rel=1e-6) for line in metrics_of(folder)]
        assert server.runs["given"].exit_code == 0
    assert read_json(folder / "manifest.json")["attempts"][-1]["wandb"]["id"] == "given"


def test_a_cell_handed_to_two_agents_at_once_is_run_by_one(tmp_path):
    """This process is at the run: the second agent's child ends with 75, writes nothing, and shows nothing in W&B."""
    words, experiment = started_as_by_an_agent(tmp_path)
    folder = run_folder(tmp_path / "results", experiment)
    with Server() as server, claimed(folder):
        env = environment(server, tmp_path, WANDB_SWEEP_ID="s1", WANDB_RUN_ID="second")
        late = called(words, env, SECONDS)
        assert late.returncode == 75 and "another process is at this run" in late.stderr, late.stderr
        assert not server.runs and [path.name for path in folder.iterdir()] == ["claim"]


@pytest.mark.slow
def test_a_server_that_errs_and_then_hangs_costs_the_run_nothing_and_the_log_has_no_traceback(tmp_path):
    """From the run's first uploaded line on: status 500 for so many seconds, then no answer for as many.

    With OUTAGE=60 in the environment it is a minute each.
    """
    seconds = float(os.environ.get("OUTAGE", "10"))
    with Server(Faults(outage=(seconds, seconds))) as server:
        _, words, env = agent_session(server, tmp_path, T=16)
        done = called(words, env, SECONDS + 4 * seconds)
        assert done.returncode == 0 and "1 of 1 runs have their record" in done.stdout, done.stderr
        assert server.refused > 0 and server.held > 0
        assert "Traceback" not in done.stderr and "AlreadyJoinedError" not in done.stderr, done.stderr
    (folder,) = (tmp_path / "results").glob("runs/*/seed=0")
    record = record_of(folder)
    assert record_faults(record, folder) == [] and len(record.manifest["attempts"]) == 1
    assert [line["round"] for line in record.rounds] == list(range(1, 61))


def agent_session(server: Server, folder: Path, T: int) -> tuple[Path, list[str], dict[str, str]]:
    path = sweep_file(folder, [T])
    server._upsert_sweep({"config": yaml.safe_dump(yaml.safe_load(path.read_text()))})
    return path, [*FSSL, "agent", str(path), SWEEP], environment(server, folder)


@pytest.mark.slow
def test_a_cell_that_is_stopped_handed_out_twice_and_resumed_has_one_record(tmp_path):
    """The server stops the first run by hand, has the cell's second copy waiting, and then resumes the first one.

    The second copy, run1, goes on where run0 stopped and finishes; run0 comes back under its own id to a finished run
    and shows what is recorded. W&B has each round once in each; the record, and what is counted, is one.
    """
    with Server(Faults(duplicate=True, stop_first=True, heartbeat_errors=1)) as server:
        _, words, env = agent_session(server, tmp_path, T=16)
        done = called(words, env, SECONDS)
        assert done.returncode == 0 and "1 of 1 runs have their record" in done.stdout, done.stderr
        assert [command["type"] for command in server.handed_out] == ["run", "run", "resume"]
        assert list(server.runs) == ["run0", "run1"] and server.runs["run0"].preempting
        (folder,) = (tmp_path / "results").glob("runs/*/seed=0")
        for name in ("run0", "run1"):
            assert [line["_step"] for line in server.runs[name].history] == list(range(1, 61))
            assert history_of(server, name) == [pytest.approx(line, rel=1e-6) for line in metrics_of(folder)]
        first, second = read_json(folder / "manifest.json")["attempts"]
        assert (first["wandb"]["id"], second["wandb"]["id"]) == ("run0", "run1")
        assert first["stopped"]["by"] == "SIGTERM" and second["from_round"] == first["stopped"]["after_round"] > 0
        counted = called([*FSSL, "status", "--json"], env, SECONDS)
        assert json.loads(counted.stdout)["counts"]["done"] == 1


@pytest.mark.slow
def test_an_agent_told_to_exit_kills_its_run_and_a_sweep_deleted_under_the_next_one_lets_it_end(tmp_path):
    """`exit` is SIGKILL for the child: the cell is missing, and the exit code says so whatever the agent's was. The
    next session takes the cell over; its sweep is deleted (404) while it runs: the run ends, and is stored."""
    with Server(Faults(exit_first=True)) as server:
        path, words, env = agent_session(server, tmp_path, T=16)
        killed = called(words, env, SECONDS)
        assert killed.returncode == 1 and "1 runs are missing" in killed.stderr, killed.stderr
        (folder,) = (tmp_path / "results").glob("runs/*/seed=0")
        assert not (folder / "result.json").exists() and "run0" in server.runs
        server._upsert_sweep({"config": path.read_text()})
        deleting = threading.Thread(target=delete_once_begun, args=(server, "run1"), daemon=True)
        deleting.start()
        done = called(words, env, SECONDS)
        assert server.faults.deleted
        assert done.returncode == 0 and "1 of 1 runs have their record" in done.stdout, done.stderr
        assert read_json(folder / "result.json")["status"] == "done"
        assert history_of(server, "run1") == [pytest.approx(line, rel=1e-6) for line in metrics_of(folder)]


def delete_once_begun(server: Server, name: str) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not (name in server.runs and server.runs[name].lines):
        time.sleep(0.02)
    server.faults.deleted = True
