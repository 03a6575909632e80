"""The Ray launcher on a real cluster: a head without room and two nodes of two runs each, all on this machine."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.errors import CannotWrite, ConfigError, Stopped
from benchmark.experiment import Experiment, Federation
from benchmark.records.claim import PATIENCE
from benchmark.records.claim import read as read_claim
from benchmark.records.provenance import commit
from benchmark.records.record import read_rounds, run_folder
from benchmark.records.run import run
from sweeps.grid import checked as checked_grid
from sweeps.launcher import Standing, launch
from sweeps.ray_launcher import STORE, Orders, RayWorkers, fit_in, joined, unfit
from sweeps.sweep_file import read, written
from tests.conftest import ROOT, alive, record_of, tiny_experiment
from tests.records.equality import differences
from tests.sweeps.gates import Gated, begun

pytest.importorskip("ray", reason="pip install 'fssl-bench[ray]'")


@dataclass(kw_only=True)
class Cluster:
    of_ray: Any
    nodes: list[Any]

    @property
    def address(self) -> str:
        return str(self.of_ray.address)

    def node_of(self, pid: int) -> Any:
        """The node whose raylet started this process."""
        raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        (node,) = [node for node in self.nodes if raylet in [p.process.pid for p in node.all_processes["raylet"]]]
        return node

    def remove(self, node: Any) -> None:
        """Gone at once, as if its machine had lost its power."""
        self.of_ray.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="r") as short, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", short)  # a socket's path takes 107 characters: pytest's folders are too long
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster as OfRay

        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        of_ray = OfRay(initialize_head=True, head_node_args=head)
        try:
            nodes = [of_ray.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(2)]
            yield Cluster(of_ray=of_ray, nodes=nodes)
        finally:
            of_ray.shutdown()


def gated(folder: Path) -> list[Experiment]:
    """Four cells of 6 rounds, which wait before rounds 3 and 5."""
    method = Gated(**vars(tiny_experiment().method), folder=str(folder), rounds="3,5")
    tiny = replace(tiny_experiment(), method=method, federation=Federation(K=4, C=4, T=2, rounds=6))
    return [replace(tiny, optimizer=replace(tiny.optimizer, lr=lr)) for lr in (0.05, 0.06, 0.07, 0.08)]


def lines(results: Path, experiment: Experiment) -> int:
    return len(read_rounds(run_folder(results, experiment)))


def attempts(results: Path, experiment: Experiment) -> list[dict[str, Any]]:
    path = run_folder(results, experiment) / "manifest.json"
    return json.loads(path.read_text())["attempts"] if path.exists() else []


def claim(results: Path, experiment: Experiment) -> dict[str, Any]:
    return read_claim(run_folder(results, experiment)) or {}


def launched(results: Path, runs: list[Experiment], watch: Callable[[Standing], None]) -> Standing:
    workers = RayWorkers(results, None, PATIENCE)
    assert workers.size == 4
    return launch(workers, runs, results, watch=watch)


def first(runs: list[Experiment], results: Path) -> Callable[[Standing], None]:
    """Ctrl-C once all runs wait before round 3."""

    def watch(standing: Standing) -> None:
        if all(lines(results, run) == 2 for run in runs):
            raise KeyboardInterrupt

    return watch


def second(runs: list[Experiment], results: Path, gates: Path, cluster: Cluster) -> Callable[[Standing], None]:
    """All wait before round 5: the process of one run is killed. It waits there again, begun for the third time: the
    other node is removed, and the gate opened once its processes have missed it and ended, which takes them a moment.
    Their runs have to wait for a place on the node that is left."""
    killed: list[int] = []
    lost: list[int] = []

    def pids() -> list[int]:
        """Of the processes that hold a run."""
        held = [claim(results, run) for run in runs]
        return [each["pid"] for each in held if "pid" in each]

    def watch(standing: Standing) -> None:
        if any(lines(results, run) != 4 for run in runs) or len(pids()) != len(runs):
            return
        if not killed:
            killed.append(pids()[0])
            os.kill(killed[0], SIGKILL)
        elif not lost and len(attempts(results, runs[0])) == 3:
            mine, *others = pids()
            lost.extend(pid for pid in others if cluster.node_of(pid) is not cluster.node_of(mine))
            cluster.remove(cluster.node_of(lost[0]))
        elif lost and not any(map(alive, lost)):
            (gates / "GATE.5").touch()

    return watch


@pytest.mark.slow
def test_ctrl_c_a_killed_worker_and_a_lost_node_cost_no_run_and_no_bit(cluster, tmp_path):
    """Attempts of three runs: to Ctrl-C, to their end by kill -9 or with their node, to the end of their rounds. One
    loses nothing. The second goes on from what Ctrl-C left after round 2, the third from the save after round 4."""
    results, runs = tmp_path / "ray", gated(tmp_path)
    with joined(cluster.address):
        with pytest.raises(Stopped, match="goes on from the last saves"):
            launched(results, runs, first(runs, results))
        assert [lines(results, run) for run in runs] == [2, 2, 2, 2]
        (tmp_path / "GATE.3").touch()
        end = launched(results, runs, second(runs, results, tmp_path, cluster))
    assert (set(end.finished), end.trained, end.failed) == (set(runs), 4, 0)
    assert not list(results.glob(".*"))  # the file that nodes look for
    begun_at = []
    for experiment in runs:
        record = record_of(run_folder(results, experiment))
        begun_at.append([attempt["from_round"] for attempt in record.manifest["attempts"]])
        assert record.status == "done"
        run(experiment, tmp_path / "whole", engine="pool", workers=1)  # as launchers train
        assert differences(results, tmp_path / "whole", experiment) == []
    assert sorted(begun_at) == [[0, 2], [0, 2, 4], [0, 2, 4], [0, 2, 4]]


@pytest.mark.slow
def test_the_command_outlives_a_killed_worker_and_stops_with_76_at_sigterm(cluster, tmp_path):
    """Standard output stays free for results, whatever Ray says of its workers."""
    path = tmp_path / "sweep.yaml"
    path.write_text(written({"T": [8], "profile": ["demo"], "seed": [0]}, name="small", made_by="a test"))
    words = [sys.executable, "-m", "benchmark.cli.main", "work", str(path), "--results", str(tmp_path / "results")]
    words += ["--launcher", "ray", "--address", cluster.address]
    results = tmp_path / "results"
    (experiment,) = checked_grid(read(path))
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        for attempt in (1, 2):
            deadline = time.monotonic() + 400
            while begun(run_folder(results, experiment)) != attempt:
                assert time.monotonic() < deadline
                assert command.poll() is None, command.communicate()
                time.sleep(0.05)
            if attempt == 1:
                os.kill(claim(results, experiment)["pid"], SIGKILL)
        command.send_signal(SIGTERM)
        told, said = command.communicate(timeout=300)
    assert (command.returncode, told) == (76, "") and "fssl: stopped" in said, said
    assert list(tmp_path.glob("results/runs/*/*/state.pt"))


def test_a_node_that_cannot_take_part_says_why(tmp_path, monkeypatch):
    """It does not see the launch's folder of results, or has other code."""
    monkeypatch.setattr("sweeps.ray_launcher.SECONDS_TO_SEE", 0.0)
    orders = Orders(
        results=tmp_path, token="t", data_root=None, usual_data=None, patience=PATIENCE, device="cpu", code=commit()
    )
    assert isinstance(unfit(orders), CannotWrite) and "does not see" in str(unfit(orders))
    (tmp_path / "t").touch()
    assert unfit(orders) is None
    other = unfit(replace(orders, code={"commit": "f" * 40, "changes": None}))
    assert isinstance(other, ConfigError) and "has other code" in str(other) and "ffffffffff there" in str(other)


def test_a_share_that_no_node_has_is_refused(cluster, tmp_path):
    with (
        joined(cluster.address),
        pytest.raises(ConfigError, match="no node of the cluster takes a run of 64 CPUs .*2 CPUs, 0 GPUs"),
    ):
        RayWorkers(tmp_path, None, PATIENCE, cpus=64)


@pytest.mark.slow
def test_without_any_node_left_the_launch_ends_and_can_go_on(cluster, tmp_path):
    """Its node is gone: the run has not failed, and another node could take it; none comes."""
    (one, _), results = gated(tmp_path), tmp_path / "ray"

    def watch(standing: Standing) -> None:
        assert standing.failed == 0
        if cluster.nodes and lines(results, one) == 2:
            for _ in list(cluster.nodes):
                cluster.of_ray.remove_node(cluster.nodes.pop(), allow_graceful=False)

    with joined(cluster.address):
        workers = RayWorkers(results, None, PATIENCE, seconds_without_nodes=1.0)
        with pytest.raises(Stopped, match="no node of the cluster takes a run of 1 CPUs any more"):
            launch(workers, [one], results, watch=watch)
    assert not list(results.glob(".*"))


def test_an_address_where_no_cluster_is_is_refused_in_bounded_time():
    began = time.monotonic()
    with (
        pytest.raises(ConfigError, match="'127.0.0.1:1': no Ray cluster answers within 3 seconds"),
        joined("127.0.0.1:1", seconds=3.0),
    ):
        pass
    assert time.monotonic() - began < 30
    with pytest.raises(ConfigError, match="'nonsense': Invalid address format"), joined("nonsense"):
        pass


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # what makes `import ray` raise ImportError
    words = ["ssfl/tab2", "--profile", "demo", "--pilots", "1", "--results", str(tmp_path), "--launcher", "ray"]
    assert main(["reproduce", *words]) == 65
    assert "pip install 'fssl-bench[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "auto"], "--address: not with --launcher local"),
        (["--gpus-per-run", "1"], "--gpus-per-run: not with --launcher local"),
        (["--launcher", "ray", "--devices", "cpu"], "--devices: not with --launcher ray"),
        (["--launcher", "ray", "--cpus-per-run", "0"], "--cpus-per-run: 0; more than 0 is needed"),
        (["--launcher", "ray", "--gpus-per-run", "1.5"], "--gpus-per-run: 1.5; give a share of one"),
        (["--launcher", "slurm"], "unknown launcher 'slurm'; choose local or ray"),
    ],
)
def test_options_that_cannot_be_right(tmp_path, capsys, words, said):
    assert main(["work", "ssfl/tab2", "--results", str(tmp_path), *words]) == 65
    assert said in capsys.readouterr().err


@given(runs=st.integers(1, 64), more=st.floats(0.0, 0.99), denominator=st.integers(1, 64))
def test_a_node_takes_as_many_runs_as_fit(runs, more, denominator):
    """With `runs` shares and less than one more, that many; a GPU cut in n takes n; what a node lacks takes none."""
    share = 1.0 / denominator
    assert fit_in({"CPU": (runs + more * 0.99) * share}, share, 0.0) == runs
    assert fit_in({"CPU": 1000.0, "GPU": 1.0}, 1.0, share) == denominator
    assert fit_in({"CPU": 3.0, "GPU": 1000.0}, 1.0, share) == 3
    assert fit_in({"CPU": 8.0}, 1.0, share) == 0
