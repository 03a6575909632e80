"""W&B for real: its own client and agent, unmodified, against the server of `tests.records.wandb_server`."""

import json
import shutil
import socket
import subprocess
import time
from signal import SIGTERM

import pytest
import yaml

from tests.records.wandb_server import PROJECT, Faults, Server
from tests.sweeps.agents import FSSL, SWEEP, WANDB, called, environment, history_of, metrics_of, sweep_file


@pytest.mark.slow
def test_the_real_agent_runs_a_sweep_end_to_end(tmp_path):
    """`wandb sweep` and `wandb agent` as W&B ships them; one heartbeat fails, one upload is cut off."""
    with Server(Faults(heartbeat_errors=1, drops=1)) as server:
        env = environment(server, tmp_path)
        made = called([*WANDB, "sweep", str(sweep_file(tmp_path, [1, 2]))], env)
        assert made.returncode == 0 and f"wandb agent {SWEEP}" in made.stderr, made.stderr
        done = called([*WANDB, "agent", SWEEP], env)
        assert done.returncode == 0, done.stderr
        folders = sorted((tmp_path / "results" / "runs").glob("*/seed=0"))
        assert len(folders) == len(server.runs) == 2
        by_key = {run.config["cell_key"]["value"]: name for name, run in server.runs.items()}
        for folder in folders:
            name = by_key[folder.parent.name]
            run = server.runs[name]
            assert history_of(server, name) == [pytest.approx(line, rel=1e-6) for line in metrics_of(folder)]
            assert [line["_step"] for line in run.history] == list(range(1, 61))
            assert any("diversity/delta/l2/squared/clients" in line for line in run.history)
            assert (run.group, run.exit_code) == ("grid", 0) and "digits" in run.tags and "demo" in run.tags
            assert run.name == f"T={run.config['T']['value']} method=grouping, seed 0"
        assert set(server.unknown) <= {"OrganizationCoreWeaveOrganizationID"}  # the client asks, and does without


@pytest.fixture(scope="module")
def preempted(tmp_path_factory):
    """A run under an agent that was stopped by SIGTERM and handed out again: its server, folder and exit codes."""
    folder = tmp_path_factory.mktemp("preempted")
    (folder / "config.json").write_text(json.dumps({"T": 4, "profile": "demo"}))
    with Server() as server:
        env = environment(server, folder, WANDB_SWEEP_ID="s1", WANDB_RUN_ID="given")
        words = [*FSSL, "run", "--sweep", str(folder / "config.json")]
        with subprocess.Popen(words, env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as first:
            deadline = time.monotonic() + 90
            while sum(path.read_text().count("\n") for path in folder.glob("results/runs/*/*/progress.jsonl")) < 8:
                assert time.monotonic() < deadline and first.poll() is None
                time.sleep(0.01)
            first.send_signal(SIGTERM)
            _, said = first.communicate(timeout=60)
        before = server.runs["given"]
        state = (first.returncode, before.preempting, len(before.lines), said)
        again = called(words, env)
        yield server, folder, state, again


def test_a_preempted_run_is_marked_and_resumes_under_its_id_without_duplicate_rounds(preempted):
    server, folder, (code, marked, lines, said), again = preempted
    assert code == 76 and marked and 8 <= lines < 60, said
    assert again.returncode == 0, again.stderr
    (record,) = folder.glob("results/runs/*/seed=0")
    assert list(server.runs) == ["given"]
    assert history_of(server, "given") == [pytest.approx(line, rel=1e-6) for line in metrics_of(record)]
    assert [line["_step"] for line in server.runs["given"].history] == list(range(1, 61))
    assert server.runs["given"].exit_code == 0


def test_wandb_runs_are_made_again_from_the_records(preempted):
    """Into an empty W&B: every round, under the id that the agent had given the run; a second time nothing is added.
    What the agents never saw gets a name of its own."""
    _, folder, _, _ = preempted
    (record,) = folder.glob("results/runs/*/seed=0")
    shutil.copytree(record, (other := folder / "own" / "runs" / record.parent.name / "seed=0"))
    plain = json.loads((other / "manifest.json").read_text())
    for attempt in plain["attempts"]:
        assert attempt.pop("wandb") == {"id": "given", "project": PROJECT}
    (other / "manifest.json").write_text(json.dumps(plain))
    with Server() as server:
        env = environment(server, folder)
        for results, name in ((folder / "results", "given"), (folder / "own", f"{record.parent.name}-0")):
            server.runs.clear()
            for _ in range(2):
                done = called([*FSSL, "wandb-rebuild", "--results", str(results)], env)
                assert done.returncode == 0 and "1 of 1 runs mirrored" in done.stdout, done.stderr
                assert list(server.runs) == [name]
                assert history_of(server, name) == [pytest.approx(line, rel=1e-6) for line in metrics_of(record)]


@pytest.mark.parametrize("change", [{"command": ["rm", "-rf", "x"]}, {"parameters": {"T": {"values": [1, 2, 3]}}}])
def test_a_sweep_that_is_not_the_files_is_refused_before_anything_runs(tmp_path, change):
    path = sweep_file(tmp_path, [1, 2])
    with Server() as server:
        server.sweep = {**yaml.safe_load(path.read_text()), **change}
        done = called([*FSSL, "agent", str(path), SWEEP], environment(server, tmp_path))
        assert done.returncode == 65 and "nothing was run" in done.stderr and not server.handed_out, done.stderr
        assert next(iter(change)) in done.stderr


@pytest.mark.slow
def test_the_agents_exit_code_is_that_of_the_records(tmp_path):
    """The server has nothing left to hand out, as after failed runs: the agent ends with 0, `fssl agent` with 1. Then
    it hands the cell out; the run's history goes to a file."""
    path = sweep_file(tmp_path, [1])
    with Server() as server:
        server.sweep = yaml.safe_load(path.read_text())
        env = environment(server, tmp_path)
        words = [*FSSL, "agent", str(path), SWEEP]
        empty = called(words, env)
        assert empty.returncode == 1 and "1 runs are missing" in empty.stderr, empty.stderr
        called([*WANDB, "sweep", str(path)], env)
        done = called([*words, "--offline"], env)
        assert done.returncode == 0 and "1 of 1 runs have their record" in done.stdout, done.stderr
        assert not server.runs and list((tmp_path / "results").rglob("run-*.wandb"))


@pytest.mark.parametrize(("key", "said"), [("", "no API key"), ("0" * 40, "cannot be reached")])
def test_without_wandb_a_run_goes_on_offline_and_says_so_in_one_line(tmp_path, key, said):
    with socket.socket() as unused:  # bound, so that nobody else takes the port, and listened to by nobody
        unused.bind(("127.0.0.1", 0))
        where = {"WANDB_BASE_URL": f"http://127.0.0.1:{unused.getsockname()[1]}", "WANDB_API_KEY": key}
        env = environment(None, tmp_path, NETRC=str(tmp_path / "none"), **where)
        words = ["--federation.rounds=2", "--federation.T=1", "--json", "--wandb", "online"]
        began = time.monotonic()
        done = called([*FSSL, "run", *words], env)
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == "done", done.stderr
    assert [line for line in done.stderr.splitlines() if "fssl: W&B" in line and said in line], done.stderr
    assert time.monotonic() - began < 60
    assert list((tmp_path / "results").rglob("run-*.wandb"))
