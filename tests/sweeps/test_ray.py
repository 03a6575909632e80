"""The Ray launcher on a real cluster: a head without room and two nodes of one run each, all on this machine."""

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.errors import CannotWrite, ConfigError
from benchmark.experiment import Experiment, Federation
from benchmark.federated.engines import EngineOptions
from benchmark.records.provenance import commit
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.run_lock import read as read_claim
from sweeps.launcher import Launch, launch
from sweeps.ray_launcher import STORE, RayWorkers, fit_in, joined, train
from tests.conftest import ROOT, alive, record_of, status_of, tiny_experiment
from tests.records.equality import differences
from tests.sweeps.agents import FSSL, signalled, small_sweep
from tests.sweeps.gates import Gated, begun

pytest.importorskip("ray", reason="make setup-dev")


@pytest.fixture
def cluster() -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="r") as short, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", short)  # a socket's path takes 107 characters: pytest's folders are too long
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        started = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                started.add_node(num_cpus=1, object_store_memory=STORE)
            yield started
        finally:
            started.shutdown()


def end_node_of(pid: int, cluster: Any) -> None:
    """End the node that started this process, as if its machine had lost its power."""
    raylet = int(status_of(pid)[1])
    nodes = {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}
    cluster.remove_node(nodes[raylet], allow_graceful=False)


def gated(folder: Path) -> list[Experiment]:
    """Return two cells of 4 rounds, which wait before round 3 until GATE.3 exists."""
    method = Gated(**vars(tiny_experiment().method), folder=str(folder), rounds="3")
    tiny = replace(tiny_experiment(), method=method, federation=Federation(K=4, C=4, T=2, rounds=4))
    return [replace(tiny, optimizer=replace(tiny.optimizer, lr=lr)) for lr in (0.05, 0.06)]


@pytest.mark.slow
def test_a_killed_process_and_a_lost_node_cost_no_run_and_no_bit(cluster, tmp_path):
    """Both runs wait before round 3, with two rounds saved. The process of the first is killed; it waits there again,
    begun twice. The node of the second is ended: its run is taken over on the node that is left, and goes on. The
    records are those of runs that nothing happened to."""
    results = tmp_path / "ray"
    runs = gated(tmp_path)
    folders = [run_folder(results, experiment) for experiment in runs]
    gone: list[Any] = []  # numbers of processes

    def watch(status: Launch) -> None:
        holders = [(read_claim(folder) or {}).get("pid") for folder in folders]
        if len(gone) < 2 and all(holders) and [begun(folder) for folder in folders] == [1 + len(gone), 1]:
            gone.append(holders[len(gone)])
            if len(gone) == 1:
                os.kill(gone[0], SIGKILL)
            else:
                end_node_of(gone[1], cluster)
        elif len(gone) == 2 and not alive(gone[1]):
            (tmp_path / "GATE.3").touch()

    with joined(cluster.address):
        end = launch(RayWorkers(results), runs, results, watch=watch)
    assert (set(end.finished), end.trained) == (set(runs), 2)
    assert not list(results.glob(".*"))  # the file that nodes look for
    for experiment, folder in zip(runs, folders, strict=True):
        assert [attempt["from_round"] for attempt in record_of(folder).manifest["attempts"]] == [0, 2]
        run(experiment, tmp_path / "undisturbed", engine=EngineOptions(engine="pool", workers=1))  # as launchers train
        assert differences(results, tmp_path / "undisturbed", experiment) == []


@pytest.mark.slow
def test_the_command_stops_with_76_at_sigterm_and_prints_results_alone(cluster, tmp_path):
    """Ray's messages about its workers are not on standard output."""
    path, experiment = small_sweep(tmp_path)
    words = [*FSSL, "work", path, "--launcher", "ray", "--address", cluster.address]
    code, out, err = signalled(words, SIGTERM, results := tmp_path / "results", experiment)
    assert (code, out) == (76, "") and "fssl: stopped" in err, err
    assert (run_folder(results, experiment) / "state.pt").exists()


def test_a_node_that_cannot_take_part_says_why(tmp_path, monkeypatch):
    """It does not see the launch's folder of results, or has other code."""
    monkeypatch.setattr("sweeps.ray_launcher.SECONDS_TO_SEE", 0.0)
    (tmp_path / "there").touch()
    with pytest.raises(CannotWrite, match="does not see"):
        train({}, tmp_path / "not there", commit(), "", "cpu", None)
    with pytest.raises(ConfigError, match="commit ffffffffff"):
        train({}, tmp_path / "there", {"commit": "f" * 40, "changes": None}, "", "cpu", None)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
def test_an_address_without_a_cluster_is_refused(address, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # no cluster is noted there
    with pytest.raises(ConfigError, match=f"'{address}'.*local"), joined(address):
        pass


def test_without_ray_one_line_says_what_to_type(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # what makes `import ray` raise ImportError
    words = ["ssfl/tab2", "--profile", "demo", "--pilots", "1", "--results", str(tmp_path), "--launcher", "ray"]
    assert main(["work", *words]) == 65
    assert "which is not installed; type make setup-dev" in capsys.readouterr().err


@given(runs=st.integers(1, 64), more=st.floats(0.0, 0.99), denominator=st.integers(1, 64))
def test_a_node_takes_as_many_runs_as_fit(runs, more, denominator):
    """With `runs` shares and less than one more, that many; a GPU cut in n takes n; without a GPU it takes none."""
    share = 1.0 / denominator
    assert fit_in({"CPU": (runs + more * 0.99) * share}, share, 0.0) == runs
    assert fit_in({"CPU": 1000.0, "GPU": 1.0}, 1.0, share) == denominator
    assert fit_in({"CPU": 3.0, "GPU": 1000.0}, 1.0, share) == 3
    assert fit_in({"CPU": 8.0}, 1.0, share) == 0
