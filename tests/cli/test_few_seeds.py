"""`fssl reproduce` with confirmatory seeds that can decide nothing: it says so and trains nothing."""

import json
from dataclasses import replace

import pytest

from benchmark.cli import report, reproduce
from benchmark.papers import items as paper_items
from tests.cli.test_report import small_item

FILE = """
fields = { "federation.rounds" = 2, "federation.T" = 1, "method.warm_start_rounds" = 0 }
rows   = { A = {}, B = { "optimizer.lr" = 0.1 }, C = { "optimizer.lr" = 0.2 } }

[[claims]]
name     = "A is better"
contrast = { A = 1, B = -1 }
form     = "improves"
"""


def toy_item(profile):
    """Make two cells and a claim, which has the whole error of its family."""
    return replace(small_item(profile), name="ssfl/toy")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Collect the seeds of the runs that a command would train, instead of training them; build no pages."""
    runs: list[int] = []
    for module in (paper_items, report):
        monkeypatch.setattr(module, "ITEMS", {"ssfl/toy": toy_item})
        monkeypatch.setattr(module, "VARIANTS", {}, raising=False)
    monkeypatch.setattr(reproduce, "train", lambda wanted, *_: runs.extend(run.seed for run in wanted))
    monkeypatch.setattr(reproduce, "build_pages", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(FILE)
    return runs


@pytest.mark.parametrize("item", ["ssfl/toy", "./mine.toml"])
@pytest.mark.parametrize(("seeds", "decides"), [(1, 0), (8, 0), (9, 9), (10, 9), (16, 16)])
def test_only_runs_that_can_decide_a_claim_are_trained(item, seeds, decides, trained, fssl, tmp_path):
    """A paper's item and a custom table have a claim on two cells; the table has a third cell."""
    words = [item, "--profile", "demo", "--results", str(tmp_path / "r"), "--seeds", str(seeds)]
    cells = 3 if item.endswith(".toml") else 2
    planned = json.loads(fssl("plan", *words, "--json")[1])
    assert (planned["runs"], planned["left_out"]) == (2 * decides, cells * seeds - 2 * decides)
    code, out, err = fssl("reproduce", *words, "--json")
    assert trained == [seed for seed in range(100, 100 + decides) for _ in range(2)]
    assert ("--undecidable" in err) == (planned["left_out"] > 0)
    assert json.loads(out)["item"] and (decides or code == 0)
    trained.clear()
    fssl("reproduce", *words, "--undecidable")
    assert len(trained) == cells * seeds
    assert json.loads(fssl("plan", *words, "--undecidable", "--json")[1])["runs"] == cells * seeds


def test_pilots_are_trained_as_ever(trained, fssl, tmp_path):
    words = ["./mine.toml", "--profile", "demo", "--results", str(tmp_path / "r")]
    fssl("reproduce", *words)
    assert sorted(trained) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert fssl("reproduce", *words, "--undecidable")[0] == 65  # of no confirmatory seeds
