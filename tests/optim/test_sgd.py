"""Learning-rate schedules: Eq. 11 by hand, and the released ones."""

import math

import pytest

from benchmark.errors import ConfigError
from benchmark.optimizer import Cosine, Optimizer
from benchmark.papers.ssfl import CIFAR10, STEPS_PER_EPOCH, experiment


def test_eq_11_by_hand():
    """c = 7/16, no warm-up, 100 steps: step 0 gives 1, step 50 cos(pi 7/32) = 0.773, step 100 cos(pi 7/16) = 0.195."""
    factors = [Cosine(c=0.4375).factor(step, 100) for step in (0, 50, 100)]
    assert factors == pytest.approx([1.0, 0.77301, 0.19509], abs=1e-5)


def test_warm_up_is_linear_from_zero():
    schedule = Cosine(c=0.4375, warmup_steps=4)
    assert [schedule.factor(step, 104) for step in range(5)] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert schedule.factor(54, 104) == pytest.approx(math.cos(math.pi * 0.4375 / 2))


def epochs_at_floor(sgd, epochs):
    schedule = sgd.schedule
    return [e for e in range(epochs) if schedule.factor(e * STEPS_PER_EPOCH, 10**9) == schedule.floor]


def test_cifar10_literally_falls_at_epoch_69_and_comes_back():
    """cos(2.3 pi x) is 0 at x = 1 / 4.6: 5 + 295 / 4.6 = 69.1; it ends at cos(2.3 pi) = 0.588."""
    literal = experiment(CIFAR10, "paper").optimizer
    assert min(epochs_at_floor(literal, 300)) == 70
    assert literal.schedule.factor(300 * STEPS_PER_EPOCH, 10**9) == pytest.approx(0.588, abs=1e-3)
    assert literal.lr == 0.146


def test_cifar10_as_released_falls_once_by_epoch_228():
    """x = (228 - 5) / 1019 and c = 2.286: c x = 0.5003, the first zero of the cosine."""
    released = experiment(CIFAR10).optimizer
    at_floor = epochs_at_floor(released, 300)
    assert min(at_floor) == 228 and at_floor == list(range(228, 300))
    assert released.lr == pytest.approx(0.03 * 11 * 64 / 128)
    assert isinstance(released.schedule, Cosine) and released.schedule.c == pytest.approx(2.286, abs=5e-4)


def test_wrong_combinations_are_refused():
    with pytest.raises(ConfigError, match="nesterov is true, .* momentum"):
        Optimizer(momentum=0.0)
    with pytest.raises(ConfigError, match="nesterov is true, but rule 'adam' .* choose nesterov false"):
        Optimizer(rule="adam")
    with pytest.raises(ConfigError, match="steps is 5, .* warmup_steps"):
        Cosine(warmup_steps=5, steps=5)
