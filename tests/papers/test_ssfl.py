"""SSFL: each cell has its line's setting, by the print and as released; stand-ins keep what a table varies."""

from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.catalogue import items
from benchmark.papers.published import read_published
from benchmark.papers.ssfl import CIFAR10, ITEMS, PAPER, experiment
from reports.provenance import flat
from tests.conftest import ROOT


def test_the_distinct_runs_are_the_transcribed_ones(transcribed):
    """116 runs and 3 central ones behind printed cells; 12 more are in Table A.2 and in no table; 4 are quoted."""
    theirs = {
        cell["run"] for d in transcribed.values() if d.get("paper") == "ssfl" for cell in d["cells"] if cell.get("run")
    }
    assert len(theirs) == 116 + 3
    unreported = {"tab4": [24], "tab5": [28], "tabe1": [30, 31]}
    lines = [
        line for name in unreported for line in read_published(f"ssfl/{name}")["cells"] if line["method"] == "FedAvg"
    ]
    assert len([line for line in lines if line.get("row") in sum(unreported.values(), [])]) == 12
    for also_quoted, published, quoted in ((False, 116 + 3 + 12, 4), (True, 135, 0)):
        cells = [cell for item in items(["ssfl"], "paper", also_quoted=also_quoted) for cell in item.cells]
        keys = {role: {c.cell_key for c in cells if c.role == role} for role in ("published", "quoted")}
        assert (len(keys["published"]), len(keys["quoted"] - keys["published"])) == (published, quoted)


# Settings at full size


@pytest.mark.parametrize("name", ITEMS)
def test_cells_have_the_settings_of_their_rows(name):
    """Every number of a cell is among those of its row of Table A.2, or the cell says in what it departs."""
    rows = {row["row"]: row for row in read_published("ssfl/taba2")["cells"]}
    for cell in read_published(f"ssfl/{name}")["cells"]:
        if "row" not in cell:
            continue
        row = rows[cell["row"]]
        departs = cell.get("departs", "").split(":")[0].split(", ")
        assert row["data"] == cell["data"]
        for key in ("R", "T", "N_s", "K", "C", "S"):
            if key in cell and row[key] and key not in departs:
                assert cell[key] in row[key], (cell, key)


BASE = replace(CIFAR10, method="Grouping", S=2)
EMNIST = replace(BASE, data="emnist_balanced", network="emnist_cnn", norm="none", N_s=4700, K=47, C=47, S=5, E=100)


def cosine(sgd: SGD) -> Cosine:
    assert isinstance(sgd.schedule, Cosine)
    return sgd.schedule


def test_the_printed_optimizer_is_table_a1():
    """gamma, c, e M/B warm-up steps, E M/B steps, the floor, momentum and weight decay of each row."""
    for row in read_published("ssfl/taba1")["cells"]:
        sgd = experiment(replace(BASE, data=row["data"], E=row["E"]), "paper").optimizer
        epoch = row["M"] // row["B"]
        assert (sgd.lr, sgd.momentum, sgd.weight_decay) == (row["gamma"], row["momentum"], row["weight_decay"])
        assert (cosine(sgd).c, cosine(sgd).floor) == (row["c"], row["epsilon"])
        assert cosine(sgd).warmup_steps == row["e"] * epoch
        assert cosine(sgd).steps in (None, row["E"] * epoch)


def test_the_released_optimizers():
    """By hand. SVHN divides by its own epochs: at E = 120 the peak after the floor lies three times as late, up to the
    warm-up. ResNet-9: 0.003 x 5 x 64 / 128 = 0.0075, warm-up 5 x 15 = 75 steps; after 3000 of 1024 x 15 = 15360 steps
    the factor is cos(pi x 2.2407 x 2925 / 15285) = cos(1.3471) = 0.2219. Self-training: no warm-up, full rate first."""
    short, long = (cosine(experiment(replace(BASE, data="svhn", E=E)).optimizer) for E in (40, 120))
    assert (short.steps, long.steps) == (40 * 1024, 120 * 1024)
    for w, name in ((5 * 1024, "Grouping"), (0, "Self-training")):  # Eq. 11's c by the released formula
        c = cosine(experiment(replace(BASE, method=name)).optimizer).c
        assert c == pytest.approx(7 / 16 * (2**20 - w) / (200 * 1024 - w), rel=1e-15)
    nine = experiment(replace(BASE, network="resnet9", T=5)).optimizer
    assert cosine(nine).c == pytest.approx(7 / 16 * (2**20 - 75) / (200 * 1024 - 75), rel=1e-15)
    assert nine.lr == pytest.approx(0.003 * 5 * 64 / 128)
    assert nine.schedule.factor(3000, 3000) == pytest.approx(0.2219, abs=5e-5)
    assert nine.schedule.factor(15, 3000) == pytest.approx(15 / 75)
    alone = experiment(replace(BASE, method="Self-training")).optimizer
    assert (alone.lr, alone.schedule.factor(0, 307_200)) == (0.03, 1.0)


def test_the_print_against_the_released_code():
    """By Table A.1, section 3.3 and 3.4, remark 1 and row 50."""
    cifar = experiment(BASE, rule="paper")
    assert (cifar.optimizer.lr, cifar.optimizer.nesterov, cifar.method.client_start) == (0.146, False, "paper")
    assert cifar.data.augmentation.strong.cutout == 0.0
    part = experiment(replace(BASE, K=20), rule="paper")
    assert part.method.client_start == "released_code"  # section 3.3 is silent on clients that sat out
    released, printed = experiment(EMNIST), experiment(EMNIST, rule="paper")
    assert (released.model.norm, printed.model.norm) == ("none", "gn")
    assert released.method.averaging.group_sizes(47) == (10, 10, 10, 10, 7)
    assert printed.method.averaging.group_sizes(47) == (10, 10, 9, 9, 9)
    row_50 = experiment(replace(BASE, network="resnet9", T=5, K=100, C=5, N_s=5000, E=200), rule="paper")
    assert (row_50.federation.T, row_50.federation.rounds) == (100, 300 * 1024 // 100)
    assert experiment(replace(BASE, method="Self-training"), "paper").optimizer.lr == 0.146


def test_departures_name_every_difference_of_the_rules():
    """The page has all fields in which the settings of any item differ, and each item's notes lead there."""
    page = (ROOT / "reports" / "ssfl" / "departures.md").read_text()
    for name in ITEMS:
        fields = set()
        for line in read_published(f"ssfl/{name}")["cells"]:
            released, printed = (
                flat(to_json(experiment(PAPER.setting_of(line), rule))) for rule in ("released_code", "paper")
            )
            fields |= {field for field in released.keys() | printed.keys() if released.get(field) != printed.get(field)}
        fields = {field for field in fields if not field.startswith("evaluation.")}
        assert fields and not [field for field in fields if f"`{field}`" not in page]
        (built,) = items([f"ssfl/{name}"], "paper")
        assert any(f"ssfl/{name}-printed is by the print" in note for note in built.notes)
        (by_print,) = items([f"ssfl/{name}"], "paper", rule="paper")
        assert by_print.name == f"ssfl/{name}-printed" and "by the print" in by_print.title


def test_a_rule_that_a_paper_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="rscfed/tab6 has one rule; choose an item of ssfl"):
        items(["rscfed/tab6"], "paper", rule="paper")
    with pytest.raises(ConfigError, match="ssfl/tab2-printed: profile laptop .* choose --profile gpu or paper"):
        items(["ssfl/tab2"], "laptop", rule="paper")
    assert len(items(["ssfl"], "gpu", rule="paper")) == len(ITEMS)
    assert items(["ssfl/tab2-printed"], "gpu")[0].cells == items(["ssfl/tab2"], "gpu", rule="paper")[0].cells
