"""Which device a run gets, with a real workers on the CPU; and what becomes of a run whose process dies three times."""

import os
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest
import torch

from benchmark.cli.launch import devices_named
from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, Federation
from benchmark.records.claim import PATIENCE, read
from benchmark.records.record import run_folder
from sweeps.launcher import Ended, LocalWorkers, RunFailed, launch
from sweeps.status import status_of, summary
from tests.conftest import record_of, tiny_experiment
from tests.sweeps.gates import Gated, begun

TWO = ("cpu", "cpu:0")  # one processor under two names; under the second as well


def gated(folder: Path, lr: float = 0.05) -> Experiment:
    method = Gated(**vars(tiny_experiment().method), folder=str(folder), rounds="2")
    tiny = replace(tiny_experiment(), method=method, federation=Federation(K=4, C=4, T=2, rounds=2))
    return replace(tiny, optimizer=replace(tiny.optimizer, lr=lr))


def ends(workers: LocalWorkers, number: int) -> list[Ended]:
    found: list[Ended] = []
    while len(found) < number:
        found.extend(workers.ended(timeout=60.0))
    return found


@pytest.mark.slow
def test_each_process_keeps_its_device_and_one_that_dies_leaves_it_to_the_next(tmp_path):
    """Two runs wait on two devices; the process on the first is killed, and the run goes on there in a new one."""
    one, other = gated(tmp_path), gated(tmp_path, lr=0.06)
    workers = LocalWorkers(2, tmp_path, None, PATIENCE, TWO)
    try:
        workers.start(one)
        workers.start(other)
        assert tuple(workers.places.values()) == TWO and len(workers.running) == workers.size
        first, second = workers.places
        os.kill(first, SIGKILL)
        (end,) = ends(workers, 1)
        assert (end.run, end.died) == (one, "SIGKILL (too little memory?)") and workers.places == {second: "cpu:0"}
        workers.start(one)
        assert sorted(workers.places.values()) == sorted(TWO) and first not in workers.places
        (tmp_path / "GATE.2").touch()
        assert {(end.run, end.error, end.here) for end in ends(workers, 2)} == {(one, None, True), (other, None, True)}
    finally:
        (tmp_path / "GATE.2").touch()
        workers.close()
    engines = [record_of(run_folder(tmp_path, run)).manifest["engine"] for run in (one, other)]
    assert [engine["name"] for engine in engines] == ["pool", "reference"]  # "cpu" is a pool of one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cuda:99", "--devices: no device 'cuda:99' in 'cuda:99'; "),
        ("0,99", "'cuda:" if not torch.cuda.is_available() else "'cuda:99' in '0,99'"),
        ("cpu,cpu", "'cpu' in 'cpu,cpu'"),
        ("tpu", "'tpu' in 'tpu'"),
        ("", "'' in ''"),
    ],
)
def test_devices_that_are_not_there(text, said, tmp_path, capsys):
    assert main(["reproduce", "ssfl/tab2", "--profile", "demo", "--results", str(tmp_path), "--devices", text]) == 65
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_devices_by_name():
    """Without a CUDA device there is the CPU, and the line says so; with some, they are what "auto" takes."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    assert devices_named("cpu") == ("cpu",)
    assert devices_named("auto") == (tuple(f"cuda:{index}" for index in range(count)) or ("cpu",))
    if not count:
        with pytest.raises(ConfigError, match="'cuda:0' in '0'; this machine has no CUDA device; choose cpu"):
            devices_named("0")
    else:
        assert devices_named("0") == devices_named("cuda:0") == ("cuda:0",)
        with pytest.raises(ConfigError, match="names one twice"):
            devices_named("0,cuda:0")


@pytest.mark.slow
def test_a_run_whose_process_dies_three_times_is_left_alone(tmp_path):
    """Its process is killed whenever it waits before round 2."""
    run, killed = gated(tmp_path), list[int]()
    folder = run_folder(tmp_path, run)

    def kill(standing: object) -> None:
        if begun(folder) > len(killed) and (claim := read(folder)):
            killed.append(claim["pid"])
            os.kill(killed[-1], SIGKILL)

    with pytest.raises(RunFailed, match="ended 3 times, last by SIGKILL"):
        launch(LocalWorkers(1, tmp_path), [run], tmp_path, watch=kill)
    found = status_of(folder, name="", rounds=2)
    assert (found.state, found.attempt, len(killed)) == ("dead", 3, 3)
    assert summary([found]).line() == "1 runs: 1 dead; 1/2 rounds"
