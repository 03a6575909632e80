"""SSFL: each cell has its line's setting, by the print and as released; stand-ins keep what a table varies."""

from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.methods.ssfl import FedAvg
from benchmark.optimizer import Cosine, Optimizer
from benchmark.papers.items import items
from benchmark.papers.published import read_published
from benchmark.papers.ssfl import CIFAR10, ITEMS, PAPER, experiment
from reports.provenance import flat
from tests.conftest import ROOT
from tests.papers.conftest import item_of


def test_the_distinct_runs_are_the_transcribed_ones(transcribed):
    """116 runs and 3 central ones behind printed cells; 12 more are in Table A.2 and in no table; 4 are quoted."""
    theirs = {
        cell["run"] for d in transcribed.values() if d.get("paper") == "ssfl" for cell in d["cells"] if cell.get("run")
    }
    assert len(theirs) == 116 + 3
    unreported = {"tab4": [24], "tab5": [28], "tabe1": [30, 31]}
    lines = [line for name in unreported for line in read_published(f"ssfl/{name}").cells if line["method"] == "FedAvg"]
    assert len([line for line in lines if line.get("row") in sum(unreported.values(), [])]) == 12
    for also_quoted, published, quoted in ((False, 116 + 3 + 12, 4), (True, 135, 0)):
        cells = [cell for item in items(["ssfl"], "paper", also_quoted=also_quoted) for cell in item.cells]
        published_keys = {cell.cell_key for cell in cells if cell.role == "published"}
        quoted_keys = {cell.cell_key for cell in cells if cell.role == "quoted"}
        assert (len(published_keys), len(quoted_keys - published_keys)) == (published, quoted)


# Settings at full size


@pytest.mark.parametrize("name", ITEMS)
def test_cells_have_the_settings_of_their_rows(name):
    """Every number of a cell is among those of its row of Table A.2, or the cell says in what it departs."""
    rows = {row["row"]: row for row in read_published("ssfl/taba2").cells}
    for cell in read_published(f"ssfl/{name}").cells:
        if "row" not in cell:
            continue
        row = rows[cell["row"]]
        departs = cell.get("departs", "").split(":")[0].split(", ")
        assert row["data"] == cell["data"]
        for key in ("R", "T", "N_s", "K", "C", "S"):
            if key in cell and row[key] and key not in departs:
                assert cell[key] in row[key], (cell, key)


BASE = replace(CIFAR10, method="Grouping", S=2)


def cosine(sgd: Optimizer) -> Cosine:
    assert isinstance(sgd.schedule, Cosine)
    return sgd.schedule


def test_the_printed_optimizer_is_table_a1():
    """gamma, c, e M/B warm-up steps, E M/B steps, the floor, momentum and weight decay of each row."""
    for row in read_published("ssfl/taba1").cells:
        sgd = experiment(replace(BASE, data=row["data"], E=row["E"]), "paper").optimizer
        epoch = row["M"] // row["B"]
        assert (sgd.lr, sgd.momentum, sgd.weight_decay) == (row["gamma"], row["momentum"], row["weight_decay"])
        assert (cosine(sgd).c, cosine(sgd).floor) == (row["c"], row["epsilon"])
        assert cosine(sgd).warmup_steps == row["e"] * epoch
        assert cosine(sgd).steps in (None, row["E"] * epoch)


def test_departures_name_every_difference_of_the_rules():
    """The page has all fields in which the settings of any item differ."""
    page = (ROOT / "reports" / "ssfl" / "departures.md").read_text()
    for name in ITEMS:
        fields = set()
        for line in read_published(f"ssfl/{name}").cells:
            released, printed = (
                flat(to_json(experiment(PAPER.setting_of(line), rule))) for rule in ("released_code", "paper")
            )
            fields |= {field for field in released.keys() | printed.keys() if released.get(field) != printed.get(field)}
        fields = {field for field in fields if not field.startswith("evaluation.")}
        assert fields and not [field for field in fields if f"`{field}`" not in page]


def test_a_rule_that_a_paper_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="rscfed/tab6.*choose an item of ssfl"):
        items(["rscfed/tab6"], "paper", rule="paper")
    with pytest.raises(ConfigError, match="ssfl/tab2-printed .* profile laptop; choose --profile gpu or paper"):
        items(["ssfl/tab2"], "laptop", rule="paper")
    assert len(items(["ssfl"], "gpu", rule="paper")) == len(ITEMS)
    assert items(["ssfl/tab2-printed"], "gpu")[0].cells == items(["ssfl/tab2"], "gpu", rule="paper")[0].cells


@pytest.mark.parametrize("profile", ["laptop", "paper"])
def test_the_server_with_all_labels_trains_on_every_image_once_a_pass(profile):
    """Section 4.1: "the server has the entire labeled training dataset", which no cell of the figure has."""
    item = item_of("ssfl/fig5_right", profile)
    all_labels = [cell for cell in item.cells if cell.label.endswith("All labels at the server")]
    published = {cell.setting["data"] for cell in item.cells if cell.role == "published"}
    assert {cell.setting["data"] for cell in all_labels} == published
    for cell in all_labels:
        e = cell.experiment
        same = item.cell(f"{cell.setting['data']}/Grouping/N_s=1000").experiment
        assert (e.method.images, e.data.label_setting, e.federation.K) == ("everyones", "everywhere", 1)
        assert replace(e.data, label_setting="server") == same.data and e.optimizer == same.optimizer
        assert (e.federation.T, e.federation.rounds) == (same.federation.T, same.federation.rounds)


def test_every_solution_of_the_paper_is_tried_with_labels_at_the_clients():
    """Appendix H: they differ from grouping only in objective, averaging and norm."""
    item = item_of("ssfl/tabh1", "paper")
    grouping = item.cell("Grouping/R=0.4").experiment
    norms = {}
    for name in ("Self-training", "CRL with BN", "CRL with GN"):
        e = item.cell(f"{name}/R=0.4").experiment
        norms[name] = e.model.norm
        assert e.method.averaging == FedAvg() and replace(e, method=grouping.method, model=grouping.model) == grouping
    assert norms == {"Self-training": "bn", "CRL with BN": "bn", "CRL with GN": "gn"}
