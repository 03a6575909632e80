"""`fssl list`: what exists and what is on this machine, without a download."""

import json

import pytest

from benchmark.cli.list import _item
from benchmark.cli.main import main
from benchmark.data.datasets import DATASETS
from benchmark.methods.catalogue import METHODS
from benchmark.models.build import NETWORKS
from benchmark.papers.catalogue import ITEMS, items
from reports.pages import progress
from reports.reported import Reported
from sweeps.plan import plan, restricted


@pytest.fixture
def nothing_here(tmp_path, monkeypatch):
    """No data folder, an empty cache, no results, and a download that fails the test."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FSSL_DATA", "")  # which `--data-root` sets
    monkeypatch.setattr("benchmark.data.datasets.download", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("benchmark.data.datasets.load", lambda *_: pytest.fail("a data set was loaded"))
    return tmp_path


def test_everything_is_listed(nothing_here, capsys):
    assert main(["list", "--json", "--profile", "demo", "--results", str(nothing_here)]) == 0
    lists = json.loads(capsys.readouterr().out)
    assert [row["item"] for row in lists["items"]] == list(ITEMS)
    assert all(row["done"] == 0 and row["hours left"] is None for row in lists["items"])
    assert [row["item"] for row in lists["items"] if row["runs"] == 0] == ["fedswitch/fig2", "sage/fig5a"]  # images
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
    assert all("no; set FSSL_DATA" in lines[name] for name in ("ham10000_64", "cinic10"))


@pytest.mark.parametrize("name", ["ssfl/tab2", "arena/mnist"])
def test_a_table_has_one_count(name, tmp_path):
    """In the list, in the plan and on its page: committed runs of other seeds, of too few, and of trials."""
    planned = plan(items([name], "laptop"), tmp_path, tell=False)
    (item,) = planned.items
    seen, row = progress(Reported(item, restricted(planned.records, planned.shown))), _item(item, planned)
    done = len(planned.runs) - len(planned.missing)
    assert done > 0 and (row["done"], seen["runs_done"]) == (done, done)
    assert row["runs"] == seen["runs_wanted"] == len(planned.runs) + len(planned.waiting)
