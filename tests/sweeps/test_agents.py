"""W&B's own agent, unmodified, under `fssl agent`, against the server of `wandb_server`: records and exit codes."""

import json
import threading
import time

import pytest
import yaml

from benchmark.cli.agent import Missing, _devices_seen, _exit_code
from benchmark.errors import Diverged, RunningElsewhere, Stopped
from benchmark.records.claim import claimed
from benchmark.records.files import read_json
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.plan import plan_of_runs
from tests.records.wandb_server import Faults, Server
from tests.sweeps.agents import FSSL, SWEEP, WANDB, called, environment, history_of, metrics_of, sweep_file

SECONDS = 240  # a session of the agent takes 20 on an idle machine


@pytest.mark.slow
def test_a_sweep_is_run_to_its_end_whatever_the_server_does(tmp_path):
    """At first the server has nothing to hand out, as after failed runs: W&B's agent ends with 0, `fssl agent` with 1.
    Then two cells, through a failed heartbeat, an upload that is cut off, and 5 s each of status 500 and of silence.
    The sweep is deleted under the second run, which ends and is stored all the same."""
    path = sweep_file(tmp_path, [1, 2])
    with Server(Faults(heartbeat_errors=1, drops=1, outage=(5.0, 5.0))) as server:
        env = environment(server, tmp_path)
        words = [*FSSL, "agent", str(path), SWEEP]
        server.sweep = yaml.safe_load(path.read_text())
        empty = called(words, env)
        assert empty.returncode == 1 and "2 runs are missing" in empty.stderr, empty.stderr
        made = called([*WANDB, "sweep", str(path)], env)
        assert made.returncode == 0 and f"wandb agent {SWEEP}" in made.stderr, made.stderr

        def delete_once_begun() -> None:
            while "run1" not in server.runs or not server.runs["run1"].lines:
                time.sleep(0.02)
            server.faults.deleted = True

        threading.Thread(target=delete_once_begun, daemon=True).start()
        done = called(words, env, SECONDS)
        assert server.faults.deleted
        assert done.returncode == 0 and "2 of 2 runs have their record" in done.stdout, done.stderr
        assert "Traceback" not in done.stderr and server.refused > 0 and server.held > 0, done.stderr
        folders = sorted((tmp_path / "results" / "runs").glob("*/seed=0"))
        by_key = {run.config["cell_key"]["value"]: name for name, run in server.runs.items()}
        assert len(folders) == len(server.runs) == 2
        for folder in folders:
            name = by_key[folder.parent.name]
            run = server.runs[name]
            assert history_of(server, name) == [pytest.approx(line, rel=1e-6) for line in metrics_of(folder)]
            assert [line["_step"] for line in run.history] == list(range(1, 61))
            assert any("diversity/delta/l2/squared/clients" in line for line in run.history)
            assert (run.group, run.exit_code) == ("grid", 0) and "digits" in run.tags and "demo" in run.tags
            assert run.name == f"T={run.config['T']['value']} method=grouping, seed 0"
        assert set(server.unknown) <= {"OrganizationCoreWeaveOrganizationID"}  # the client asks, and does without


@pytest.mark.slow
def test_a_cell_that_is_killed_stopped_handed_out_twice_and_resumed_has_one_record(tmp_path):
    """The server tells the agent to exit, which kills its run: exit code 1. In the next session it stops the first run
    by hand, has a second copy of the cell waiting, and then resumes the first one.

    The second copy goes on where the first stopped, and finishes. The first comes back under its own id to a finished
    run, and shows what is recorded. W&B has each round once in each; the record, and what is counted, is one.
    """
    path = sweep_file(tmp_path, [8])
    words, sweep = [*FSSL, "agent", str(path), SWEEP], {"config": path.read_text()}
    with Server(Faults(exit_first=True)) as server:
        server._upsert_sweep(sweep)
        killed = called(words, environment(server, tmp_path), SECONDS)
        assert killed.returncode == 1 and "1 runs are missing" in killed.stderr, killed.stderr
    (folder,) = (tmp_path / "results").glob("runs/*/seed=0")
    assert not (folder / "result.json").exists()
    with Server(Faults(duplicate=True, stop_first=True, heartbeat_errors=1)) as server:
        server._upsert_sweep(sweep)
        env = environment(server, tmp_path)
        done = called(words, env, SECONDS)
        assert done.returncode == 0 and "1 of 1 runs have their record" in done.stdout, done.stderr
        assert [command["type"] for command in server.handed_out] == ["run", "run", "resume"]
        assert list(server.runs) == ["run0", "run1"] and server.runs["run0"].preempting
        for name in ("run0", "run1"):
            assert [line["_step"] for line in server.runs[name].history] == list(range(1, 61))
            assert history_of(server, name) == [pytest.approx(line, rel=1e-6) for line in metrics_of(folder)]
        *_, first, second = read_json(folder / "manifest.json")["attempts"]
        assert (first["wandb"]["id"], second["wandb"]["id"]) == ("run0", "run1")
        assert second["from_round"] > 0
        counted = called([*FSSL, "status", "--json"], env, SECONDS)
        assert json.loads(counted.stdout)["counts"]["done"] == 1


def test_a_sweep_that_is_not_the_files_is_refused_before_anything_runs(tmp_path):
    path = sweep_file(tmp_path, [1, 2])
    change = {"command": ["rm", "-rf", "x"], "parameters": {"T": {"values": [1, 2, 3]}}}
    with Server() as server:
        server.sweep = {**yaml.safe_load(path.read_text()), **change}
        done = called([*FSSL, "agent", str(path), SWEEP], environment(server, tmp_path))
        assert done.returncode == 65 and "nothing was run" in done.stderr and not server.handed_out, done.stderr
        assert all(f"{name}: the server has" in done.stderr for name in change)


def test_each_agent_of_several_sees_one_device(monkeypatch):
    """The numbers are those of the devices that the command itself sees."""
    name = "CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv(name, raising=False)
    assert _devices_seen(("cuda:0", "cuda:2")) == [{name: "0"}, {name: "2"}] and _devices_seen(None) == [{}]
    monkeypatch.setenv(name, "4,7")
    assert _devices_seen(("cuda:1", "cuda:0")) == [{name: "7"}, {name: "4"}]
    assert _devices_seen(("cpu", "cpu")) == [{name: ""}, {name: ""}]


def test_the_exit_code_is_that_of_the_records(tiny, tmp_path):
    runs, folder = [tiny, tiny.with_seed(1)], run_folder(tmp_path, tiny.with_seed(1))

    def code(*, stopped: bool = False) -> int:
        return _exit_code(plan_of_runs(runs, tmp_path), tmp_path, stopped)

    run(tiny, tmp_path)
    with pytest.raises(Missing, match="1 runs are missing"):
        code()
    with pytest.raises(Stopped, match="1 runs are left"):
        code(stopped=True)
    with claimed(folder), pytest.raises(RunningElsewhere, match="1 runs are left; other workers train them"):
        code()
    run(runs[1], tmp_path)
    assert code() == 0
    (folder / "result.json").write_text(json.dumps({**read_json(folder / "result.json"), "status": "diverged"}))
    assert code() == Diverged.exit_code
