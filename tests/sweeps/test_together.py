"""`fssl work --together N`: seeds of a cell in one process, which ends for all of them or for none."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli import launch as cli_launch
from benchmark.cli.main import main
from benchmark.errors import ConfigError, FsslError, Stopped
from benchmark.experiment import Experiment
from benchmark.federated.engines import EngineOptions
from benchmark.methods.protocol import State, World
from benchmark.methods.ssfl import SSFL
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.run_lock import is_held
from benchmark.streams import numpy_stream
from sweeps.launcher import RunFailed, launch
from sweeps.workers import LocalWorkers
from tests.conftest import record_of, tiny_experiment
from tests.sweeps.agents import small_sweep
from tests.sweeps.gates import Gated, begun
from tests.sweeps.here import Here


def manifest_of(results: Path, one: Experiment) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((run_folder(results, one) / "manifest.json").read_text())
    return manifest


def test_seeds_of_a_cell_are_in_one_process_and_two_cells_in_two(tiny, tmp_path):
    """Two seeds and two of a cell that diverges, in processes for two each; then their records are whole."""
    wild = replace(tiny, optimizer=replace(tiny.optimizer, lr=1e30))
    runs = [tiny, wild, tiny.with_seed(1), wild.with_seed(1)]
    workers = LocalWorkers(2, tmp_path, together=2)
    assert workers.size == 4
    ends: dict[Experiment, FsslError | None] = {}
    try:
        for each in runs:
            workers.start(each)
        ends |= workers.ended(timeout=0.0)
        assert [list(worker.runs.values()) for worker in workers._workers] == [runs[::2], runs[1::2]]
        while len(ends) < len(runs):
            ends |= workers.ended(timeout=60.0)
    finally:
        workers.close()
    assert [type(ends[each]).__name__ for each in runs] == ["NoneType", "Diverged"] * 2
    for seed in range(2):
        assert record_of(run_folder(tmp_path, wild.with_seed(seed))).status == "diverged"
        there = record_of(run_folder(tmp_path, tiny.with_seed(seed))).result
        here = run(tiny.with_seed(seed), tmp_path / "here", engine=EngineOptions(engine="stacked"))
        assert there["last"]["test/loss"] == pytest.approx(here["last"]["test/loss"], abs=1e-4)
        assert manifest_of(tmp_path, tiny.with_seed(seed))["engine"]["name"] == "stacked"


@dataclass(frozen=True, kw_only=True)
class EndsSomeProcesses(SSFL):
    """As a run that the system kills for its memory, for some seeds."""

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        if world.round == 1 and world.generator("dies").random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().round(state, world)


def is_deadly(seed: int) -> bool:
    return bool(numpy_stream(seed, "round", 1, "dies").random() < 0.5)


def test_a_process_that_dies_costs_only_the_run_that_ended_it(tiny, tmp_path):
    """After its first death each of its runs has a process of its own."""
    cell = replace(tiny, method=EndsSomeProcesses(**vars(tiny.method)))
    deadly = next(seed for seed in range(100) if is_deadly(seed))
    others = [seed for seed in range(100) if not is_deadly(seed)][:2]
    runs = [cell.with_seed(seed) for seed in (others[0], deadly, others[1])]
    with pytest.raises(RunFailed, match=f"seed {deadly} ended 3 times"):
        launch(LocalWorkers(1, tmp_path, together=3), runs, tmp_path)
    for seed in others:
        assert record_of(run_folder(tmp_path, cell.with_seed(seed))).status == "done"


def test_a_launch_that_is_stopped_saves_all_runs_of_a_process(tmp_path):
    method = Gated(**vars(tiny_experiment().method), folder=str(tmp_path), rounds="3")
    runs = [replace(tiny_experiment(), method=method).with_seed(seed) for seed in range(2)]

    def watch(*_: object) -> None:
        if all(begun(run_folder(tmp_path, each)) for each in runs):
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        launch(LocalWorkers(1, tmp_path, together=2), runs, tmp_path, watch=watch)
    for each in runs:
        folder = run_folder(tmp_path, each)
        assert (folder / "state.pt").exists() and not (folder / "result.json").exists() and not is_held(folder)
    (tmp_path / "GATE.3").touch()
    assert launch(LocalWorkers(1, tmp_path, together=2), runs, tmp_path).trained == 2
    assert [manifest_of(tmp_path, each)["attempts"][1]["from_round"] > 0 for each in runs] == [True, True]


def test_the_command_gathers_the_seeds_of_each_cell(tmp_path, monkeypatch):
    path, _ = small_sweep(tmp_path, T=[1, 2], seed=[0, 1, 2])
    made: list[tuple[Any, ...]] = []
    workers = Here(lambda experiment: Stopped("as if"))

    def recording(*given: Any) -> Here:
        made.append(given)
        return workers

    monkeypatch.setattr(cli_launch, "LocalWorkers", recording)
    words = ["work", str(path), "--results", str(tmp_path), "--devices", "cpu"]
    assert main([*words, "--together", "2", "--jobs", "8"]) == Stopped.exit_code
    assert made == [(3, tmp_path, ("cpu",), 2, None)]  # six runs are three processes' work


def test_runs_of_a_cell_are_one_after_another(tiny):
    other = replace(tiny, optimizer=replace(tiny.optimizer, lr=0.1))
    runs = [tiny, other, tiny.with_seed(1), other.with_seed(1)]
    assert cli_launch.by_cell(runs) == [runs[0], runs[2], runs[1], runs[3]]


@pytest.mark.parametrize("words", [["queue", "--minutes", "1"], ["ssfl/tab2", "--launcher", "ray"]])
def test_it_is_refused_with_a_queue_and_on_ray(words, tmp_path):
    assert main(["work", *words, "--results", str(tmp_path), "--together", "2"]) == ConfigError.exit_code
