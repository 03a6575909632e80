"""SSFL's settings at full size: the optimizers of Table A.1 and of the released code, and what is refused."""

from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.catalogue import items
from benchmark.papers.paper import differences
from benchmark.papers.published import read_published
from benchmark.papers.ssfl import ITEMS, PAPER, Setting, experiment, optimizer, optimizer_of
from tests.conftest import ROOT

BASE = Setting(
    data="cifar10", method="Grouping", R=0.4, T=16, N_s=1000, K=10, C=10, S=2, network="resnet18", norm="gn", E=300
)


def cosine(sgd: SGD) -> Cosine:
    assert isinstance(sgd.schedule, Cosine)
    return sgd.schedule


def test_the_printed_optimizer_is_table_a1():
    """gamma, c, e M/B warm-up steps, E M/B steps, the floor, momentum and weight decay of each row."""
    for row in read_published("ssfl/taba1")["cells"]:
        sgd = optimizer({"emnist_balanced": "emnist"}.get(row["data"], row["data"]), "paper")
        epoch = row["M"] // row["B"]
        assert (sgd.lr, sgd.momentum, sgd.weight_decay) == (row["gamma"], row["momentum"], row["weight_decay"])
        assert (cosine(sgd).c, cosine(sgd).floor) == (row["c"], row["epsilon"])
        assert cosine(sgd).warmup_steps == row["e"] * epoch
        assert cosine(sgd).steps in (None, row["E"] * epoch)


def test_the_released_optimizers():
    """By hand. SVHN divides by its own epochs: at E = 120 the peak after the floor lies three times as late, up to the
    warm-up. ResNet-9: 0.003 x 5 x 64 / 128 = 0.0075, warm-up 5 x 15 = 75 steps; after 3000 of 1024 x 15 = 15360 steps
    the factor is cos(pi x 2.2407 x 2925 / 15285) = cos(1.3471) = 0.2219. Self-training: no warm-up, full rate first."""
    short, long = (cosine(optimizer("svhn", epochs=E)) for E in (40, 120))
    assert (short.steps, long.steps) == (40 * 1024, 120 * 1024)
    assert optimizer_of(replace(BASE, data="svhn", E=120)) == optimizer("svhn", epochs=120)
    assert optimizer("svhn") == optimizer("svhn", epochs=40)
    nine = optimizer_of(replace(BASE, network="resnet9"))
    assert nine.lr == pytest.approx(0.003 * 5 * 64 / 128)
    assert nine.schedule.factor(3000, 3000) == pytest.approx(0.2219, abs=5e-5)
    assert nine.schedule.factor(15, 3000) == pytest.approx(15 / 75)
    alone = optimizer_of(replace(BASE, method="Self-training"))
    assert (alone.lr, alone.schedule.factor(0, 307_200)) == (0.03, 1.0)


def test_table_3_with_labels_at_clients_as_released():
    """Over 200 x 15 steps, by hand with c = 0.4375 (2^20 - 75) / (204800 - 75) = 2.2407: cos(pi c 625/2925) = .067;
    the cosine is negative at step 1500; cos(pi c 2425/2925) = .90. The floor is 1e-5."""
    schedule = cosine(optimizer_of(replace(BASE, network="resnet9", labels="every_client", E=200)))
    factors = [schedule.factor(step, 3000) for step in (700, 1500, 2500)]
    assert factors == pytest.approx([0.067, 1e-5, 0.90], abs=5e-3)


def test_the_print_against_the_released_code():
    """By Table A.1, section 3.3 and 3.4, remark 1 and row 50."""
    cifar = experiment(BASE, rule="paper")
    assert (cifar.optimizer.lr, cifar.optimizer.nesterov, cifar.method.client_start) == (0.146, False, "paper")
    assert cifar.data.augmentation.strong.cutout == 0.0
    part = experiment(replace(BASE, K=20), rule="paper")
    assert part.method.client_start == "released_code"  # section 3.3 is silent on clients that sat out
    emnist = replace(BASE, data="emnist_balanced", network="emnist_cnn", norm="none", N_s=4700, K=47, C=47, S=5, E=100)
    released, printed = experiment(emnist), experiment(emnist, rule="paper")
    assert (released.model.norm, printed.model.norm) == ("none", "gn")
    assert released.method.averaging.group_sizes(47) == (10, 10, 10, 10, 7)
    assert printed.method.averaging.group_sizes(47) == (10, 10, 9, 9, 9)
    row_50 = experiment(replace(BASE, network="resnet9", T=5, K=100, C=5, N_s=5000, E=200), rule="paper")
    assert (row_50.federation.T, row_50.federation.rounds) == (100, 300 * 1024 // 100)
    assert optimizer_of(replace(BASE, method="Self-training"), "paper").lr == 0.146


def test_departures_name_every_difference_of_the_rules():
    """Of all items: the page's table has all fields that differ, and an item's own notes have those of its cells."""
    page = (ROOT / "reports" / "ssfl" / "departures.md").read_text()
    for name in ITEMS:
        lines = read_published(f"ssfl/{name}")["cells"]
        fields = {field for field in differences(PAPER, lines) if not field.startswith("evaluation.")}
        assert fields and not [field for field in fields if f"`{field}`" not in page]
        (built,) = items([f"ssfl/{name}"], "paper")
        (note,) = [note for note in built.notes if note.startswith("As released where it contradicts")]
        assert all(field in note for field in fields)
        (printed,) = items([f"ssfl/{name}"], "paper", rule="paper")
        assert printed.name == f"ssfl/{name}-printed" and "by the print" in printed.title


def test_a_rule_that_a_paper_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="rscfed/tab6 has one rule; choose an item of ssfl"):
        items(["rscfed/tab6"], "paper", rule="paper")
    with pytest.raises(ConfigError, match="ssfl/tab2-printed: profile laptop .* choose --profile gpu or paper"):
        items(["ssfl/tab2"], "laptop", rule="paper")
    assert len(items(["ssfl"], "gpu", rule="paper")) == len(ITEMS)
    assert items(["ssfl/tab2-printed"], "gpu")[0].cells == items(["ssfl/tab2"], "gpu", rule="paper")[0].cells


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="'FedMix'.*Grouping"):
        experiment(replace(BASE, method="FedMix"))
    with pytest.raises(ConfigError, match="S: grouping needs"):
        experiment(replace(BASE, S=None))
