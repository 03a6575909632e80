"""`fssl list`: what exists and what is on this machine, without a download."""

import json

import pytest

from benchmark.cli import list as listing
from benchmark.cli.main import main
from benchmark.data.datasets import DATASETS
from benchmark.methods.catalogue import METHODS
from benchmark.models.build import NETWORKS
from benchmark.papers.catalogue import ITEMS, items


@pytest.fixture
def nothing_here(tmp_path, monkeypatch):
    """No data folder, an empty cache, no results, and a download that fails the test."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FSSL_DATA", raising=False)
    monkeypatch.setattr("benchmark.data.datasets.download", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("benchmark.data.datasets.load", lambda *_: pytest.fail("a data set was loaded"))
    return tmp_path


def test_everything_is_listed(nothing_here, capsys):
    assert main(["list", "--json", "--profile", "demo", "--results", str(nothing_here)]) == 0
    lists = json.loads(capsys.readouterr().out)
    assert [row["item"] for row in lists["items"]] == list(ITEMS)
    assert all(row["done"] == 0 and row["hours left"] is None for row in lists["items"])
    assert [row["item"] for row in lists["items"] if row["runs"] == 0] == ["fedswitch/fig2"]  # counts images alone
    assert [row["method"] for row in lists["methods"]] == list(METHODS)
    assert [row["network"] for row in lists["networks"]] == list(NETWORKS)
    assert [row["data set"] for row in lists["data"]] == list(DATASETS)
    assert all(row["what"].endswith(".") for row in lists["methods"] + lists["networks"])


def test_data_sets_are_where_they_are(nothing_here, capsys):
    (nothing_here / "here" / "mnist" / "MNIST" / "raw").mkdir(parents=True)
    assert main(["list", "data", "--data-root", str(nothing_here / "here")]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert str(nothing_here / "here" / "mnist") in lines["mnist"] and "60,000" in lines["mnist"]
    assert "with scikit-learn" in lines["digits"] and "torchvision downloads" in lines["svhn"]
    assert "no; set FSSL_DATA" in lines["ham10000_64"]


def test_done_runs_and_hours_by_hand(nothing_here, monkeypatch, capsys):
    """Of 3 runs a cell two are done, in 1,800 and 5,400 seconds: an hour each, so the other one takes one more."""

    class Run:
        def __init__(self, seconds):
            self.status, self.result = ("done", {"wall_seconds": seconds}) if seconds else ("unfinished", {})

    def read_records(results, keys, **_):
        return {key: {0: Run(1800.0), 1: Run(5400.0), 2: Run(None), 7: Run(9.0)} for key in keys if key == cell_key}

    cell_key = items(["arena/digits"], "demo")[0].trained[0].cell_key
    monkeypatch.setattr("sweeps.plan.read_records", read_records)
    monkeypatch.setattr(listing, "ITEMS", ("arena/digits",))
    main(["list", "items", "--json", "--profile", "demo"])
    (row,) = json.loads(capsys.readouterr().out)["items"]
    assert row["done"] == 2 and row["hours left"] == row["runs"] - 2
