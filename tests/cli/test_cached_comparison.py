"""A new method compared with the board's rows trains only its own runs: the rows' records are there already."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmark.cli import reproduce
from benchmark.experiment import to_json
from benchmark.records.copies import read_copy
from tests.conftest import ROOT

METHOD = """
from dataclasses import dataclass

from benchmark.methods.server_only import ServerOnly


@dataclass(frozen=True, kw_only=True)
class Mine(ServerOnly):
    pass
"""
TABLE = """
title = "Mine"
from = "arena/digits:FedProx-FixMatch/untuned"
seeds = 1

[rows]
Mine = { method = "newcomers_method:Mine" }
FedProx-FixMatch = {}
SemiFL = { from = "arena/digits:SemiFL/untuned" }
FedSwitch = { from = "arena/digits:FedSwitch/untuned" }
"""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return the runs that commands train, in an empty folder with a user's method."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    Path("newcomers_method.py").write_text(METHOD)
    Path("mine.toml").write_text(TABLE)
    importlib.invalidate_caches()
    runs = []
    train = reproduce.train

    def counting(chosen, *more):
        runs.extend(chosen)
        train(chosen, *more)

    monkeypatch.setattr(reproduce, "train", counting)
    monkeypatch.setattr(reproduce, "build_pages", lambda *_: None)
    yield runs
    sys.modules.pop("newcomers_method", None)


def kinds(runs):
    return [to_json(run)["method"]["kind"] for run in runs]


@pytest.mark.slow
def test_a_table_of_a_new_method_and_rows_of_the_board(trained, fssl):
    """One run of one's own is trained, once; the other rows have the numbers of their committed records."""
    words = ("reproduce", "./mine.toml", "--profile", "laptop", "--results", "results", "--json")
    code, out, err = fssl(*words)
    assert code == 0, err
    assert kinds(trained) == ["newcomers_method:Mine"]
    cells = {cell["label"]: cell for cell in json.loads(out)["cells"]}
    assert len(cells) == 4
    for label, cell in cells.items():
        assert cell["n"] >= 1
        if label != "Mine":
            committed = read_copy(ROOT / "results" / "reference" / cell["cell_key"] / "seed=0.json.gz")
            assert cell["mean"] == committed.selected("test/accuracy")
    assert fssl(*words)[0] == 0 and len(trained) == 1


def test_a_method_beside_all_others_of_an_environment(trained, fssl, monkeypatch):
    """With its trials, an equal budget for all; nothing of the others' is trained, however many rows there are."""
    monkeypatch.setattr(reproduce, "train", lambda runs, *_: trained.extend(runs))
    fssl("reproduce", "arena/mnist", "--also", "newcomers_method:Mine", "--results", "results", "--json")
    assert set(kinds(trained)) == {"newcomers_method:Mine"}
    untuned = [run for run in trained if not run.evaluation.validation]
    assert [run.seed for run in untuned] == [0, 1, 2] and len(trained) == 3 + 6
