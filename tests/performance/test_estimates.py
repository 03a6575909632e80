"""Planned times against recorded ones, by the reference processor's speed: nothing is timed here."""

from collections import defaultdict
from statistics import median

from tests.conftest import ROOT
from tests.performance.estimates import compared, share_within


def test_most_cells_take_about_as_long_as_planned():
    """At least 80 % of the cells are within a factor of 1.5, up to one factor per kind of processor."""
    ratios = defaultdict(list)
    for cell in compared(ROOT / "results", every=30):
        ratios[cell.machine].append(cell.ratio)
    usual = {machine: median(values) for machine, values in ratios.items()}
    relative = [ratio / usual[machine] for machine, values in ratios.items() for ratio in values]
    assert len(relative) > 20 and share_within(relative, 1.0) >= 0.8
    assert all(0.4 < factor < 2.5 for factor in usual.values())
