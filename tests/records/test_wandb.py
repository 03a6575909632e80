"""W&B's own client as `fssl run --wandb` and `fssl wandb-rebuild` use it, against the server of `wandb_server`."""

import json
import shutil
import socket
import subprocess
import time
from signal import SIGTERM

import pytest

from benchmark.records.files import read_json
from benchmark.records.wandb_mirror import unreachable
from tests.records.wandb_server import PROJECT, Faults, Server
from tests.sweeps.agents import FSSL, called, environment, history_of, metrics_of

SECONDS = 240  # a run takes 10 on an idle machine


@pytest.fixture(scope="module")
def preempted(tmp_path_factory):
    """A run under an agent that was stopped by SIGTERM and handed out again: its server, folder and exit codes. Two
    uploads of the history are cut off, and the others take half a second each."""
    folder = tmp_path_factory.mktemp("preempted")
    (folder / "config.json").write_text(json.dumps({"T": 4, "profile": "demo"}))
    with Server(Faults(drops=2, freeze=0.5)) as server:
        env = environment(server, folder, WANDB_SWEEP_ID="s1", WANDB_RUN_ID="given")
        words = [*FSSL, "run", "--sweep", str(folder / "config.json")]
        with subprocess.Popen(words, env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as first:
            deadline = time.monotonic() + SECONDS
            while sum(path.read_text().count("\n") for path in folder.glob("results/runs/*/*/progress.jsonl")) < 8:
                assert time.monotonic() < deadline and first.poll() is None
                time.sleep(0.01)
            first.send_signal(SIGTERM)
            _, said = first.communicate(timeout=SECONDS)
        before = server.runs["given"]
        state = (first.returncode, before.preempting, len(before.lines), said)
        again = called(words, env, SECONDS)
        yield server, folder, state, again


def test_a_preempted_run_is_marked_and_goes_on_under_its_id_with_every_round_once(preempted):
    server, folder, (code, marked, lines, said), again = preempted
    assert code == 76 and marked and 8 <= lines < 60, said
    assert again.returncode == 0, again.stderr
    (record,) = folder.glob("results/runs/*/seed=0")
    assert list(server.runs) == ["given"]
    assert history_of(server, "given") == [pytest.approx(line, rel=1e-6) for line in metrics_of(record)]
    assert [line["_step"] for line in server.runs["given"].history] == list(range(1, 61))
    assert server.runs["given"].exit_code == 0 and server.faults.drops == 0
    assert read_json(record / "manifest.json")["attempts"][-1]["wandb"]["id"] == "given"


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
        for results, name, times in ((folder / "results", "given", 2), (folder / "own", f"{record.parent.name}-0", 1)):
            server.runs.clear()
            for _ in range(times):
                done = called([*FSSL, "wandb-rebuild", "--results", str(results)], env)
                assert done.returncode == 0 and "1 of 1 runs mirrored" in done.stdout, done.stderr
                assert list(server.runs) == [name]
                assert history_of(server, name) == [pytest.approx(line, rel=1e-6) for line in metrics_of(record)]


def test_without_wandb_a_run_goes_on_offline_and_says_so_in_one_line(tmp_path, monkeypatch):
    """W&B cannot be reached; nor can it without a key."""
    with socket.socket() as unused:  # bound, so that no other process takes the port; nothing listens there
        unused.bind(("127.0.0.1", 0))
        address = {"WANDB_BASE_URL": f"http://127.0.0.1:{unused.getsockname()[1]}", "WANDB_API_KEY": "0" * 40}
        env = environment(None, tmp_path, NETRC=str(tmp_path / "none"), **address)
        began = time.monotonic()
        words = ["--federation.rounds=2", "--federation.T=1", "--json", "--wandb", "online"]
        done = called([*FSSL, "run", *words], env)
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == "done", done.stderr
    lines = [line for line in done.stderr.splitlines() if "fssl: W&B" in line]
    assert len(lines) == 1 and "cannot be reached" in lines[0], done.stderr
    assert time.monotonic() - began < 60
    assert list((tmp_path / "results").rglob("run-*.wandb"))
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert "no API key" in (unreachable() or "")
