"""The local launcher, with real processes."""

import json
from dataclasses import replace

import pytest

from benchmark.errors import DataError
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import LocalWorkers, Standing, launch
from tests.conftest import record_of
from tests.sweeps.gates import Gated


def test_two_workers_give_the_numbers_of_one_process(tiny, tmp_path):
    """Two that wait for each other, three seeds and one that diverges in two workers: the records are as from this
    process, and the rest went on."""
    wild = replace(tiny, optimizer=replace(tiny.optimizer, lr=1e30))
    gated = replace(tiny, method=Gated(folder=str(tmp_path), rounds="2"))
    runs = [gated, gated.with_seed(1), wild, *(tiny.with_seed(seed) for seed in range(3))]
    seen = []

    def watch(standing: Standing) -> None:
        seen.append((len(standing.running), len(standing.finished)))
        if len(standing.running) == 2:
            (tmp_path / "GATE.2").touch()

    launch(LocalWorkers(2, tmp_path / "workers"), runs, tmp_path / "workers", watch=watch)
    assert seen[-1] == (0, 6)
    assert record_of(run_folder(tmp_path / "workers", wild)).status == "diverged"
    for seed in range(3):
        here = run(tiny.with_seed(seed), tmp_path / "here", engine="pool", workers=1)
        there = record_of(run_folder(tmp_path / "workers", tiny.with_seed(seed)))
        assert json.loads(json.dumps(here["last"])) == there.result["last"]


def test_an_error_of_one_run_is_raised_in_the_end(tiny, tmp_path):
    missing = replace(tiny, data=replace(tiny.data, name="folder:" + str(tmp_path / "nowhere")))
    with pytest.raises(DataError, match="nowhere"):
        launch(LocalWorkers(1, tmp_path), [missing, tiny], tmp_path)
    assert record_of(run_folder(tmp_path, tiny)).status == "done"
