"""The launcher with real processes: numbers, devices, deaths, other launches, full disks, its own end."""

import errno
import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from benchmark.errors import DiskFull, FsslError, Stopped
from benchmark.experiment import Experiment, Federation
from benchmark.federated.engines import EngineOptions
from benchmark.federated.processes import process_context
from benchmark.files import cannot_write
from benchmark.methods.protocol import State
from benchmark.methods.server_only import ServerOnly
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.run_lock import locked, read
from sweeps import launcher
from sweeps.launcher import Launch, RunFailed, launch
from sweeps.plan import plan_of_runs
from sweeps.status import status_of
from sweeps.workers import LocalWorkers
from tests.conftest import alive, record_of, tiny_experiment, wait_until
from tests.sweeps.agents import FSSL, signalled, small_sweep
from tests.sweeps.gates import Gated
from tests.sweeps.here import Here


def test_two_workers_give_the_numbers_of_one_process(tiny, tmp_path):
    """Two gated runs are at the gate together. Then one that diverges and two seeds: as from this process."""
    wild = replace(tiny, optimizer=replace(tiny.optimizer, lr=1e30))
    gated = replace(tiny, method=Gated(folder=str(tmp_path), rounds="2"))
    runs = [gated, gated.with_seed(1), wild, tiny, tiny.with_seed(1)]
    seen = []

    def watch(status: Launch) -> None:
        seen.append((len(status.running), len(status.finished)))
        if len(status.running) == 2:
            (tmp_path / "GATE.2").touch()

    launch(LocalWorkers(2, tmp_path / "workers"), runs, tmp_path / "workers", watch=watch)
    assert seen[-1] == (0, 5)
    assert record_of(run_folder(tmp_path / "workers", wild)).status == "diverged"
    for seed in range(2):
        here = run(tiny.with_seed(seed), tmp_path / "here", engine=EngineOptions(engine="pool", workers=1))
        there = record_of(run_folder(tmp_path / "workers", tiny.with_seed(seed)))
        assert json.loads(json.dumps(here["last"])) == there.result["last"]


@dataclass(frozen=True, kw_only=True)
class EndsItsProcess(ServerOnly):
    """As a run that the system kills for its memory, whenever it is tried."""

    def round(self, state: State, world: Any) -> tuple[State, Mapping[str, float]]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_bad_run_stops_no_other(tiny, tmp_path, monkeypatch):
    """One dies three times, one diverges, one has no data, one has a folder that cannot be read: the last is done."""
    deadly = replace(tiny, method=EndsItsProcess())
    wild = replace(tiny, optimizer=replace(tiny.optimizer, lr=1e30))
    without_data = replace(tiny, data=replace(tiny.data, name=f"folder:{tmp_path}/nowhere"))
    unreadable = tiny.with_seed(1)

    def is_held(folder: Path) -> bool:
        if folder == run_folder(tmp_path, unreadable):
            raise OSError("Stale file handle")
        return False

    monkeypatch.setattr(launcher, "is_held", is_held)
    runs = [deadly, wild, without_data, unreadable, tiny]
    with pytest.raises(RunFailed, match="seed 0 ended 3 times.* SIGKILL.*; 2 more failed") as error:
        launch(LocalWorkers(1, tmp_path), runs, tmp_path)
    assert deadly.cell_key in str(error.value) and error.value.exit_code == 1
    assert record_of(run_folder(tmp_path, tiny)).status == "done"
    planned = plan_of_runs(runs, tmp_path)
    assert planned.missing == (deadly, without_data, unreadable) and planned.diverged == [wild]
    status = status_of(run_folder(tmp_path, deadly), name="", rounds=3)
    assert (status.state, status.attempt) == ("dead", 3)


def test_a_full_disk_is_waited_for(tiny, tmp_path, monkeypatch, capsys):
    """With one run, not with each of them in turn, and not for ever."""
    monkeypatch.setattr(launcher, "SECONDS_BETWEEN_TRIES", 0.01)
    runs = [tiny.with_seed(seed) for seed in range(3)]
    full = cannot_write(Path("x"), OSError(errno.ENOSPC, "full"))
    workers = Here(lambda run: full if len(workers.tried) <= 4 else None)
    assert launch(workers, runs, tmp_path).trained == 3
    assert workers.tried == [runs[0]] * 5 + runs[1:]
    assert capsys.readouterr().err.count("x cannot be written (full)") == 1
    monkeypatch.setattr(launcher, "SECONDS_OF_FULL_DISK", 0.1)
    workers = Here(lambda run: full)
    with pytest.raises(DiskFull, match="cannot be written"):
        launch(workers, runs, tmp_path)
    assert set(workers.tried) == {runs[0]}


def test_a_fork_server_that_dies_while_a_run_starts_costs_nothing(tiny, tmp_path):
    """As where memory runs out: it stands still when it is asked for a process, and is killed."""
    with process_context():
        pass
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (server, signal.SIGKILL)).start()
    launch(LocalWorkers(1, tmp_path), [tiny], tmp_path)
    assert record_of(run_folder(tmp_path, tiny)).status == "done"


TWO = ("cpu", "cpu:0")  # one processor under two names, as two devices


def test_each_process_keeps_its_device_and_one_that_dies_leaves_it_to_the_next(tmp_path):
    """Two runs wait on two devices; the process on the first is killed, and the run goes on there in a new one."""
    method = Gated(**vars(tiny_experiment().method), folder=str(tmp_path), rounds="2")
    one = replace(tiny_experiment(), method=method, federation=Federation(K=4, C=4, T=2, rounds=2))
    other = one.with_seed(1)
    workers = LocalWorkers(2, tmp_path, TWO)

    def devices() -> dict[int, str]:
        return {worker.process.pid or 0: worker.device for worker in workers._workers}

    def ended(number: int) -> dict[Experiment, FsslError | None]:
        ends: dict[Experiment, FsslError | None] = {}
        while len(ends) < number:
            ends |= workers.ended(timeout=60.0)
        return ends

    try:
        workers.start(one)
        workers.start(other)
        first, second = devices()
        assert devices() == {first: "cpu", second: "cpu:0"}
        os.kill(first, signal.SIGKILL)
        assert str(ended(1)[one]) == "SIGKILL (too little memory?)" and devices() == {second: "cpu:0"}
        workers.start(one)
        assert sorted(devices().values()) == sorted(TWO) and first not in devices()
        (tmp_path / "GATE.2").touch()
        assert ended(2) == {one: None, other: None}
    finally:
        (tmp_path / "GATE.2").touch()
        workers.close()


def test_a_run_of_another_process_is_waited_for(tiny, tmp_path):
    """Until the launch is stopped, no process is started and nothing is written."""
    folder = run_folder(tmp_path, tiny)
    seen = []

    def watch(status: Launch) -> None:
        seen.append((status.running, status.trained, status.finished[:]))
        if len(seen) == 3:
            raise KeyboardInterrupt

    with locked(folder):
        with pytest.raises(Stopped):
            launch(LocalWorkers(1, tmp_path), [tiny], tmp_path, watch=watch)
        assert [path.name for path in folder.iterdir()] == ["claim"]
    assert seen[-1] == ({tiny}, 0, []) and len(seen) == 3


@pytest.mark.slow
def test_a_run_ends_with_its_launcher_and_is_saved(tmp_path):
    path, experiment = small_sweep(tmp_path)
    folder = run_folder(tmp_path, experiment)
    signalled([*FSSL, "work", path, "--jobs", "1"], signal.SIGKILL, tmp_path, experiment)
    worker = (read(folder) or {}).get("pid")
    wait_until(lambda: worker is None or not alive(worker), 200)
    assert (folder / "state.pt").exists() and not (folder / "result.json").exists()
