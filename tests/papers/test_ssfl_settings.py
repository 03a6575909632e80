"""SSFL's settings at full size: the optimizers of Table A.1 and of the released code, and what is refused."""

from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.catalogue import items
from benchmark.papers.published import read_published
from benchmark.papers.ssfl import (
    Setting,
    experiment,
    optimizer,
    optimizer_of,
    resnet9_optimizer,
    self_training_optimizer,
)

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
    nine = resnet9_optimizer()
    assert nine.lr == pytest.approx(0.003 * 5 * 64 / 128)
    assert nine.schedule.factor(3000, 3000) == pytest.approx(0.2219, abs=5e-5)
    assert nine.schedule.factor(15, 3000) == pytest.approx(15 / 75)
    alone = self_training_optimizer()
    assert (alone.lr, alone.schedule.factor(0, 307_200)) == (0.03, 1.0)
    assert optimizer_of(replace(BASE, method="Self-training")) == alone
    assert optimizer_of(replace(BASE, network="resnet9")) == nine


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="'FedMix'.*Grouping"):
        experiment(replace(BASE, method="FedMix"))
    with pytest.raises(ConfigError, match="S: grouping needs"):
        experiment(replace(BASE, S=None))
    with pytest.raises(ConfigError, match="'laptob'"):
        items(["ssfl/tab1"], "laptob")
