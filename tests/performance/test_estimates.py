"""Planned times against recorded ones. Speeds are fixed, so that nothing depends on what else this machine does."""

from collections import defaultdict
from statistics import median

from sweeps import cost
from sweeps.speed import Speed
from tests.conftest import ROOT
from tests.performance.estimates import compared, share_within

SECONDS_PER_PIXEL = {"plain": 5e-10, "weak": 2.5e-9, "weak2": 2.5e-9, "strong": 1.2e-8}


def fixed_speed(environment, device):
    """Return about the speed of one core of an AMD EPYC, as `speed_for` has measured it."""
    pixels = environment.data.test_images_NCHW[0].numel()
    views = {view: pixels * seconds for view, seconds in SECONDS_PER_PIXEL.items()}
    return Speed(operation=1.7e-5, flop=2.8e-11, views=views)


def test_most_cells_take_about_as_long_as_planned(monkeypatch):
    """At least 80 % of the cells are within a factor of 1.5, up to one factor per kind of processor."""
    monkeypatch.setattr("sweeps.counting.speed_for", fixed_speed)
    monkeypatch.setattr("sweeps.cost._count", cost._count.__wrapped__)  # not what other tests have timed
    ratios = defaultdict(list)
    for cell in compared(ROOT / "results", every=30):
        ratios[cell.machine].append(cell.ratio)
    usual = {machine: median(values) for machine, values in ratios.items()}
    relative = [ratio / usual[machine] for machine, values in ratios.items() for ratio in values]
    assert len(relative) > 20 and share_within(relative, 1.0) >= 0.8
    assert all(0.4 < factor < 2.5 for factor in usual.values())
