"""SSFL: each cell has its line's setting, by the print and as released; stand-ins keep what a table varies."""

from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.methods.central import FixMatch
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.easgd import EASGD
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.ssfl import CRL, SSFL, FedAvg, Grouping, SelfTraining, Supervised
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item, census
from benchmark.papers.published import read_published
from benchmark.papers.scale import PROFILES, REDUCED
from benchmark.papers.ssfl import CIFAR10, ITEMS, PAPER, experiment
from reports.provenance import flat
from tests.conftest import ROOT

COHORTS = ("small", "middle", "full")
FROM_FILES = [name for name in ITEMS if name != "tab2" and not name.startswith(("fig6", "figd"))]


def item_of(name: str, profile: str = "paper") -> Item:
    """Without the bounds (tests/papers/test_table.py)."""
    (item,) = items([f"ssfl/{name}"], profile)
    return replace(item, cells=tuple(cell for cell in item.cells if cell.role != "bound"))


def key(name: str, label: str, profile: str = "paper") -> str:
    return item_of(name, profile).cell(label).cell_key


@pytest.mark.parametrize("name", FROM_FILES)
def test_the_paper_profile_is_the_file_s_line(name):
    """Every number of a line is in its experiment, by the field that the method or the federation reads."""
    item = item_of(name)
    by_setting = {PAPER.setting_of(raw): raw for raw in read_published(f"ssfl/{name}")["cells"]}
    published = [cell for cell in item.cells if cell.role in ("published", "quoted")]
    assert len(published) == len(by_setting)
    for cell, (setting, raw) in zip(published, by_setting.items(), strict=True):
        e = cell.experiment
        d = 47 if raw["data"] == "emnist_balanced" else 10
        assert (e.data.name, e.partition.R_nominal, e.model.norm) == (raw["data"], raw["R"], raw["norm"])
        assert (e.federation.K, e.federation.C, e.model.network) == (raw["K"], raw["C"], raw["network"])
        held = {
            "every_client": e.data.labels_per_client * d * raw["K"],
            "share": e.data.labelled_share * 112_800,  # EMNIST's training images
        }
        at_clients = raw.get("labels") in held
        assert e.data.N_s == (0 if at_clients else raw["N_s"] - raw["N_s"] % d)
        assert not at_clients or held[raw["labels"]] == pytest.approx(raw["N_s"])
        assert e.data.unlabelled == ("extra" if raw["data"] == "stl10" else "train")
        assert cell.printed() == raw.get("value")
        T = 16 if raw["method"] == "FixMatch" else raw["T"]  # FixMatch's rounds are reporting units
        steps = e.federation.T * e.federation.rounds
        assert (e.federation.T, e.federation.rounds) == (T, steps // T)
        assert steps == (200 * 15 if raw["network"] == "resnet9" else raw["E"] * 1024)
        if raw["method"] == "Grouping":
            assert len(e.method.averaging.group_sizes(raw["C"])) == raw["S"] == setting.S


@pytest.mark.parametrize(
    ("name", "label", "method", "objective", "labels"),
    [
        ("fig2", "Self-training/R=0", SSFL, SelfTraining, "server"),
        ("fig2", "CRL with BN/R=0.4", SSFL, CRL, "server"),
        ("fig2", "Supervised/R=0.4", SSFL, Supervised, "everywhere"),
        ("tabf1", "supervised/Grouping/K=20", SSFL, Supervised, "everywhere"),
        ("tabf1", "unlabelled/Grouping/K=47", SSFL, CRL, "server"),
        ("tab4", "Supervised FedAvg", SupervisedFL, None, "everywhere"),
        ("tabg1", "SVHN/FixMatch", FixMatch, None, "server"),
        ("tab3", "Labels-at-client (iid)/Grouping", SSFL, CRL, "every_client"),
        ("tabh1", "Grouping/R=0.4", SSFL, CRL, "share"),
        ("tabi1", "Self-training", SSFL, SelfTraining, "server"),
        ("tab4", "DataSharing", DataSharing, None, "everywhere"),
        ("tab5", "EASGD/T=2", EASGD, None, "everywhere"),
        ("tab5", "OverlapSGD/T=8", OverlapSGD, None, "everywhere"),
    ],
)
def test_methods_are_those_of_the_text(name, label, method, objective, labels):
    """Section 3.4 for the five methods, appendix F and Table 4 for the supervised ones."""
    e = item_of(name).cell(label).experiment
    assert isinstance(e.method, method) and e.data.label_setting == labels
    if objective:
        assert isinstance(e.method.objective, objective)
        assert getattr(e.method.objective, "threshold", 0.95) == 0.95


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
    counted, asked = census(items(["ssfl"], "paper")), census(items(["ssfl"], "paper", also_quoted=True))
    assert (counted["published"], counted["quoted"]) == (116 + 3 + 12, 4)
    assert asked == {**counted, "published": 135, "quoted": 0}


@pytest.mark.parametrize("profile", PROFILES)
def test_controls_differ_from_fedavg_in_the_server_s_weight_alone(profile):
    """Beside each grouping cell with FedAvg (section 3's "CRL with GN"), and nowhere else."""
    pairs = 0
    for name in (*FROM_FILES, "tab2"):
        cells = {cell.label: cell for cell in item_of(name, profile).cells}
        for label, cell in cells.items():
            partners = [label.replace("Grouping", other) for other in ("FedAvg", "CRL with GN")]
            partner = next((cells[other] for other in partners if other in cells), None)
            if "Grouping" not in label or partner is None:
                assert "Control" in label or label.replace("Grouping", "Control") not in cells or partner
                continue
            pairs += 1
            control = cells[label.replace("Grouping", "Control")]
            grouping, fedavg = cell.experiment, partner.experiment
            S = grouping.method.averaging.S
            assert isinstance(grouping.method.averaging, Grouping) and control.role == "control"
            weight = control.experiment.method.averaging.server_weight
            assert weight == pytest.approx(1 / (fedavg.federation.C / S + 1))
            same = replace(control.experiment.method, averaging=FedAvg())
            assert replace(control.experiment, method=same) == fedavg
            assert replace(grouping, method=replace(grouping.method, averaging=FedAvg())) == fedavg
    assert pairs > 13


@pytest.mark.parametrize("profile", REDUCED)
@pytest.mark.parametrize("name", [*FROM_FILES, "fig6", "figd1"])
def test_reduced_runs_have_equally_many_local_steps(name, profile):
    """T moves the number of rounds; only Table 1's E = 120 is longer, three times. The last round is measured. The runs
    that are not Table 2's are shorter than those, by a number that the page tells; on the laptop as pilots."""
    table_2 = name.startswith("fig6") or name.startswith("figd")
    steps = 16 * {"demo": (60, 12), "laptop": (100, 200)}[profile][table_2]
    notes = " ".join(item_of(name, profile).notes)
    assert table_2 or str(steps) in notes
    assert ("Pilot length" in notes) == (profile == "laptop" and not table_2)
    for cell in item_of(name, profile).cells:
        e = cell.experiment
        longer = 3 if "E=120" in cell.label else 1
        assert e.federation.T * e.federation.rounds == longer * steps
        every = e.evaluation.gradient_diversity_every
        assert not every or e.federation.rounds % every == 0
        assert every or not read_published(f"ssfl/{name}").get("measured")
        warm = getattr(e.method, "warm_start_rounds", 0) * e.federation.T
        assert warm in ((0,) if isinstance(e.method, SupervisedFL | EASGD | OverlapSGD) else (480, 320, 32))


def test_table_2_is_rows_16_and_21_of_table_a2():
    """And EMNIST's row of Table A.1: E = 100 epochs of 65536 / 64 steps, T = 16."""
    item = item_of("tab2")
    for e in (cell.experiment for cell in item.cells if cell.role == "published"):
        assert (e.partition.R_nominal, e.federation.T, e.data.N_s, e.federation.K) == (0.4, 16, 4700, 47)
        assert e.federation.rounds * e.federation.T == 100 * 65536 // 64
        assert (e.optimizer.lr, e.optimizer.weight_decay, e.optimizer.momentum) == (0.03, 1e-4, 0.9)
        schedule = cosine(e.optimizer)
        assert (schedule.c, schedule.warmup_steps, schedule.steps) == (0.4375, 0, None)
        assert (e.method.batch_size, e.method.server_batch_size, e.method.objective.threshold) == (64, 64, 0.95)
        assert e.method.warm_start_rounds == 0
    groups = {size: item.cell(f"Grouping/{size}").experiment.method.averaging.S for size in COHORTS}
    assert groups == {"small": 2, "middle": 3, "full": 5}


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
