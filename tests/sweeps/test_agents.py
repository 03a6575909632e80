"""W&B's own agent and client under `fssl agent`, `fssl run --wandb` and `wandb-rebuild`, against `wandb_server`."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from signal import SIGINT, SIGTERM

import pytest
import yaml

from benchmark.cli import agent
from benchmark.cli.agent import _devices_seen, _exit_code, _run_agents
from benchmark.cli.main import main
from benchmark.errors import Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.files import read_json
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.run_lock import locked
from benchmark.records.wandb_mirror import unreachable
from sweeps.factors import experiment_of
from sweeps.plan import plan_of_runs
from tests.conftest import wait_until
from tests.records.wandb_server import PROJECT, Server
from tests.sweeps.agents import FSSL, SWEEP, assert_mirrored, called, environment, signalled, small_sweep

SECONDS = 240  # a session of the agent takes 20 on an idle machine


@pytest.mark.slow
def test_a_sweep_is_run_to_its_end_whatever_the_server_does(tmp_path):
    """At first the server has nothing to hand out, as after failed runs: W&B's agent ends with 0, `fssl agent` with 1.
    Then two cells, through an upload that is cut off. The sweep is deleted under the second run, which ends and is
    stored all the same."""
    path, _ = small_sweep(tmp_path, T=[1, 2], method=["grouping"])
    with Server(drops=1) as server:
        env = environment(server, tmp_path)
        words = [*FSSL, "agent", str(path), SWEEP]
        server.sweep = yaml.safe_load(path.read_text())
        empty = called(words, env)
        assert empty.returncode == 1 and "2 runs are missing" in empty.stderr, empty.stderr
        made = called([sys.executable, "-m", "wandb", "sweep", str(path)], env)
        assert made.returncode == 0 and f"wandb agent {SWEEP}" in made.stderr, made.stderr

        def delete_once_begun() -> None:
            wait_until(lambda: "run1" in server.runs and server.runs["run1"].lines, SECONDS)
            server.deleted = True

        threading.Thread(target=delete_once_begun, daemon=True).start()
        done = called(words, env, SECONDS)
        assert server.deleted
        assert done.returncode == 0 and "2 of 2 runs have their record" in done.stdout, done.stderr
        assert "Traceback" not in done.stderr and server.drops == 0, done.stderr
        folders = sorted((tmp_path / "results" / "runs").glob("*/seed=0"))
        by_key = {run.config["cell_key"]["value"]: name for name, run in server.runs.items()}
        assert len(folders) == len(server.runs) == 2
        for folder in folders:
            run = server.runs[by_key[folder.parent.name]]
            assert_mirrored(run, folder)
            assert any("diversity/delta/l2/squared/clients" in line for line in run.history)
            assert (run.group, run.exit_code) == ("grid", 0) and "digits" in run.tags and "demo" in run.tags
            assert run.name == f"T={run.config['T']['value']} method=grouping, seed 0"


@pytest.mark.slow
def test_a_cell_that_is_killed_stopped_handed_out_twice_and_resumed_has_one_record(tmp_path):
    """The server tells the agent to exit, which kills its run: exit code 1. In the next session it stops the first run
    by hand, has a second copy of the cell waiting, and then resumes the first one.

    The second copy goes on where the first stopped, and finishes. The first comes back under its own id to a finished
    run, and shows what is recorded. W&B has each round once in each; the record, and what is counted, is one.
    """
    path, _ = small_sweep(tmp_path, method=["grouping"])
    words = [*FSSL, "agent", str(path), SWEEP]
    sweep = yaml.safe_load(path.read_text())
    with Server(exit_first=True) as server:
        server.begin(sweep)
        killed = called(words, environment(server, tmp_path), SECONDS)
        assert killed.returncode == 1 and "1 runs are missing" in killed.stderr, killed.stderr
    (folder,) = (tmp_path / "results").glob("runs/*/seed=0")
    assert not (folder / "result.json").exists()
    with Server(duplicate=True, stop_first=True) as server:
        server.begin(sweep)
        env = environment(server, tmp_path)
        done = called(words, env, SECONDS)
        assert done.returncode == 0 and "1 of 1 runs have their record" in done.stdout, done.stderr
        assert [command["type"] for command in server.handed_out] == ["run", "run", "resume"]
        assert list(server.runs) == ["run0", "run1"] and server.runs["run0"].preempting
        for name in ("run0", "run1"):
            assert_mirrored(server.runs[name], folder)
        *_, first, second = read_json(folder / "manifest.json")["attempts"]
        assert (first["wandb"]["id"], second["wandb"]["id"]) == ("run0", "run1")
        assert second["from_round"] > 0
        counted = called([*FSSL, "status", "--json"], env, SECONDS)
        assert json.loads(counted.stdout)["counts"]["done"] == 1


def test_a_sweep_that_is_not_the_files_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    path, _ = small_sweep(tmp_path, T=[1, 2], method=["grouping"])
    change = {"command": ["rm", "-rf", "x"], "parameters": {"T": {"values": [1, 2, 3]}}}
    monkeypatch.setattr("benchmark.records.wandb_mirror.unreachable", lambda: None)
    monkeypatch.setattr(agent, "_config_on_server", lambda sweep: {**yaml.safe_load(path.read_text()), **change})
    monkeypatch.setattr(agent, "_run_agents", lambda options: pytest.fail("an agent began"))
    assert main(["agent", str(path), SWEEP, "--results", str(tmp_path / "results")]) == 65
    said = capsys.readouterr().err
    assert "nothing was run" in said and all(f"{name}: the server has" in said for name in change)


def test_each_agent_of_several_sees_one_device(monkeypatch):
    """The numbers are those of the devices that the command itself sees."""
    name = "CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv(name, raising=False)
    assert _devices_seen(("cuda:0", "cuda:2")) == [{name: "0"}, {name: "2"}] and _devices_seen(None) == [{}]
    monkeypatch.setenv(name, "4,7")
    assert _devices_seen(("cuda:1", "cuda:0")) == [{name: "7"}, {name: "4"}]
    assert _devices_seen(("cpu", "cpu")) == [{name: ""}, {name: ""}]


def test_the_exit_code_is_that_of_the_records(tiny, tmp_path):
    runs = [tiny, tiny.with_seed(1)]
    folder = run_folder(tmp_path, tiny.with_seed(1))

    def code(*, stopped: bool = False) -> int:
        return _exit_code(plan_of_runs(runs, tmp_path), tmp_path, stopped)

    run(tiny, tmp_path)
    with pytest.raises(FsslError, match="1 runs are missing"):
        code()
    with pytest.raises(Stopped, match="1 runs are missing"):
        code(stopped=True)
    with locked(folder), pytest.raises(RunningElsewhere, match="1 runs are missing"):
        code()
    run(runs[1], tmp_path)
    assert code() == 0
    (folder / "result.json").write_text(json.dumps({**read_json(folder / "result.json"), "status": "diverged"}))
    assert code() == Diverged.exit_code


def test_signals_are_passed_on_to_the_agents_each_time(tmp_path, monkeypatch):
    """The process in place of W&B's agent ends at the second one."""
    blocked = "import pathlib, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
    waiting = "for name in 'ab': pathlib.Path(name).touch(); signal.sigwait({signal.SIGTERM})"
    words = [sys.executable, "-c", blocked + waiting]
    start = subprocess.Popen
    monkeypatch.setattr("benchmark.cli.agent.subprocess.Popen", lambda *_, **__: start(words, cwd=tmp_path))

    def interrupt() -> None:
        for name, number in (("a", SIGTERM), ("b", SIGINT)):
            wait_until((tmp_path / name).exists)
            os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    assert _run_agents(Namespace(results=tmp_path, offline=False, count=None, sweep="a/b/c", devices=None))


@pytest.fixture(scope="module")
def preempted(tmp_path_factory):
    """Make a run under an agent that was stopped by SIGTERM and handed out again: its server, its record's folder and
    exit codes.

    Two uploads of the history are cut off.
    """
    folder = tmp_path_factory.mktemp("preempted")
    (folder / "config.json").write_text(json.dumps({"T": 4, "profile": "demo"}))
    with Server(drops=2) as server:
        env = environment(server, folder, WANDB_SWEEP_ID="s1", WANDB_RUN_ID="given")
        words = [*FSSL, "run", "--sweep", str(folder / "config.json")]
        run = experiment_of({"T": 4, "profile": "demo"})
        code, _, said = signalled(words, SIGTERM, folder / "results", run, **env)
        before = server.runs["given"]
        state = (code, before.preempting, len(before.lines), said)
        again = called(words, env, SECONDS)
        (record,) = folder.glob("results/runs/*/seed=0")
        yield server, record, state, again


def test_a_preempted_run_is_marked_and_goes_on_under_its_id_with_every_round_once(preempted):
    server, record, (code, marked, lines, said), again = preempted
    assert code == 76 and marked and 0 < lines < 60, said
    assert again.returncode == 0, again.stderr
    assert list(server.runs) == ["given"]
    assert_mirrored(server.runs["given"], record)
    assert server.runs["given"].exit_code == 0 and server.drops == 0
    assert read_json(record / "manifest.json")["attempts"][-1]["wandb"]["id"] == "given"


def test_wandb_runs_are_made_again_from_the_records(preempted):
    """Into an empty W&B: every round, under the id that the agent had given the run; a second time nothing is added.
    What the agents never saw gets a name of its own."""
    _, record, _, _ = preempted
    results, own = record.parents[2], record.parents[3] / "own"
    shutil.copytree(record, (other := own / "runs" / record.parent.name / "seed=0"))
    plain = json.loads((other / "manifest.json").read_text())
    for attempt in plain["attempts"]:
        assert attempt.pop("wandb") == {"id": "given", "project": PROJECT}
    (other / "manifest.json").write_text(json.dumps(plain))
    again = "import sys\nfrom benchmark.cli.main import main\n"
    again += "sys.exit(any([main(['wandb-rebuild', '--results', results]) for results in sys.argv[1:]]))"
    with Server() as server:
        done = called([sys.executable, "-c", again, *map(str, (results, results, own))], environment(server, own))
        assert done.returncode == 0 and done.stdout.count("1 of 1 runs mirrored") == 3, done.stderr
        assert list(server.runs) == ["given", f"{record.parent.name}-0"]
        for run in server.runs.values():
            assert_mirrored(run, record)


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


def test_a_key_of_one_s_own_server_is_found_by_host_and_port(tmp_path, monkeypatch):
    """As `wandb login --host http://127.0.0.1:8080` writes it."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "netrc").write_text(f"machine {host}\n  login user\n  password {'0' * 40}\n")
        monkeypatch.setenv("WANDB_BASE_URL", f"http://{host}")
        assert unreachable() is None
