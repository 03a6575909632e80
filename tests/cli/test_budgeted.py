"""`--budget` from the plan to the outcome, with real workers on tiny runs."""

import argparse
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmark.cli.budgeted import spend
from benchmark.cli.main import main
from benchmark.cli.scope import budget_of
from benchmark.errors import ConfigError, FsslError
from benchmark.experiment import Experiment
from benchmark.methods.protocol import State
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Cell, Item
from benchmark.records.claim import PATIENCE
from benchmark.records.files import read_json
from benchmark.records.record import read_rounds, run_folder
from sweeps.budget import Gate
from sweeps.launcher import LocalWorkers, launch
from sweeps.plan import Plan, plan
from tests.conftest import record_of, tiny_experiment
from tests.records.equality import saved

LONG = tiny_experiment(federation=replace(tiny_experiment().federation, rounds=4000))


def item_of(**experiments: Experiment) -> Item:
    cells = tuple(Cell(label=name, setting={"name": name}, experiment=e) for name, e in experiments.items())
    return Item(name="test/item", title="t", profile="demo", cells=cells, seeds=2)


def spent(word: str, item: Item, folder: Path, said: StringIO) -> Plan:
    options = argparse.Namespace(
        budget=word,
        results=folder,
        data_root=None,
        launcher="local",
        jobs=1,
        devices=("cpu",),
        gpus_per_run=None,
        takeover_after=PATIENCE,
    )
    budget = budget_of(options)
    assert budget is not None
    console = Console(file=said, width=200)
    return spend(budget, lambda: plan([item], folder), options, console, start=time.monotonic())


@dataclass(frozen=True, kw_only=True)
class Fails(ServerOnly):
    """A method with a mistake that only its training shows."""

    def round(self, state: State, world: Any) -> tuple[State, Mapping[str, float]]:
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("a mistake")
        return super().round(state, world)


def test_what_fits_is_trained_and_what_does_not_is_named(tiny, tmp_path):
    """Two seeds of two small cells fit into ten minutes, a million rounds do not: told before anything starts. Seeds 0
    go first, then seeds 1: one cell fails each time, which costs the other nothing, and is told in the end."""
    endless = replace(tiny, federation=replace(tiny.federation, rounds=1_000_000))
    wrong = replace(tiny, method=Fails(batch_size=8))
    item, said = item_of(a=tiny, endless=endless, wrong=wrong), StringIO()
    with pytest.raises(FsslError, match=f"cell {wrong.cell_key}, seed 0: failed with RuntimeError"):
        spent("10m", item, tmp_path, said)
    assert {(run.cell_key, run.seed) for run in plan([item], tmp_path).missing} == {
        (cell.cell_key, seed) for cell in (endless, wrong) for seed in (0, 1)
    }
    before, _, after = said.getvalue().partition("runs to train")
    assert "4 of 6 missing runs fit" in before and "left out: test/item endless, seeds 0 to 1" in before
    assert "4 runs are left" in after and "missing: test/item endless, seeds 0 to 1" in after
    first, second = (run_folder(tmp_path, tiny.with_seed(seed)) for seed in (0, 1))
    assert [record_of(folder).status for folder in (first, second)] == ["done", "done"]
    assert (first / "result.json").stat().st_mtime_ns < (second / "experiment.json").stat().st_mtime_ns


def test_a_budget_into_which_nothing_fits_starts_nothing(tmp_path):
    with pytest.raises(ConfigError, match="is too short: the least missing run takes about"):
        spent("8s", item_of(long=LONG), tmp_path, StringIO())
    assert not (tmp_path / "runs").exists()


class ClosesOnceBegun:
    """A gate that closes as soon as a run has two rounds on disk: a run that took longer than was estimated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def admits(self, run: Experiment) -> bool:
        return True

    def is_closed(self) -> bool:
        return len(read_rounds(self._folder)) >= 2


def test_a_run_that_overruns_is_stopped_at_a_finished_round_and_saved(tmp_path):
    folder = run_folder(tmp_path, LONG)
    end = launch(LocalWorkers(1, tmp_path), [LONG], tmp_path, gate=ClosesOnceBegun(folder))
    assert (end.trained, end.failed) == (0, 0) and not (folder / "result.json").exists()
    rounds = len(read_rounds(folder))
    assert 2 <= saved(folder, LONG).round == rounds < 4000
    assert read_json(folder / "manifest.json")["attempts"][-1]["stopped"]["after_round"] == rounds


def test_a_run_that_the_gate_refuses_is_not_started_and_is_no_failure(tiny, tmp_path):
    gate = Gate(budget=budget("5s"), start=time.monotonic() - 60)
    end = launch(LocalWorkers(1, tmp_path), [tiny], tmp_path, gate=gate)
    assert (end.trained, end.failed, gate.refused) == (0, 0, {tiny}) and not (tmp_path / "runs").exists()


def budget(word: str):
    found = budget_of(argparse.Namespace(budget=word, launcher="local"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("soon", "'soon' is no time; write it as 90m, 2h"),
        ("2gpu-h", "'2gpu-h' is no time; write it as 90m, 2h or 4core-h"),
    ],
)
def test_a_budget_that_cannot_be_is_one_line_before_anything_else(word, said, tmp_path, capsys):
    assert main(["reproduce", "ssfl/tab2", "--profile", "demo", "--budget", word, "--results", str(tmp_path)]) == 65
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())
