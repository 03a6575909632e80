"""The typical difference of a few seeds: Hodges-Lehmann estimate, and two exact tests as intervals.

The typical difference (pseudo-median) is the middle of the means of all pairs of differences, each with itself too
(Walsh averages). Under differences symmetric about it, every way to flip their signs is equally likely: the signed-rank
test's distribution is exact at any number of seeds, whatever their spread. The sign test needs no symmetry: its null is
a median difference of zero. An interval holds all values that its test does not reject; it never leaves the range of
the differences, and so what the metric can be.
"""

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

DIGITS = 12
Interval: TypeAlias = tuple[float, float]


@functools.lru_cache(maxsize=4096)  # a claim is judged at several errors
def walsh_averages(differences: tuple[float, ...]) -> NDArray[np.float64]:
    """Sorted means of all n (n + 1) / 2 pairs, rounded to DIGITS so that a tie has no sign."""
    values = np.asarray(differences, dtype=np.float64)
    rows, columns = np.triu_indices(len(values))
    return np.sort(np.round((values[rows] + values[columns]) / 2, DIGITS))


def typical(differences: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of at least one difference."""
    averages = walsh_averages(tuple(differences))
    return float(averages[len(averages) // 2] + averages[(len(averages) - 1) // 2]) / 2


@functools.cache
def cumulative(n: int) -> NDArray[np.float64]:
    """P(W <= w) for w = 0, 1, ...; W is the sum of the ranks (1 to n) of the negative differences."""
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    return np.cumsum(ways) / 2.0**n


def interval(differences: Sequence[float], error: float) -> Interval | None:
    """The signed-rank test's, two-sided at level 1 - error; None where so few differences can reject nothing.

    It lies above zero exactly where the test rejects at that error. Differences of zero count against that.
    """
    averages_outside = int(np.searchsorted(cumulative(len(differences)), error / 2, side="right"))  # on each side
    if averages_outside == 0:
        return None
    averages = walsh_averages(tuple(differences))
    return float(averages[averages_outside - 1]), float(averages[-averages_outside])


def median_interval(differences: Sequence[float], error: float) -> Interval | None:
    """The sign test's interval of the median difference, between two order statistics; None as in `interval`."""
    n = len(differences)
    tails = bdtr(np.arange(n // 2 + 1), n, 0.5)  # P(k or fewer of one sign)
    outside = int(np.searchsorted(tails, error / 2, side="right"))
    if outside == 0:
        return None
    ordered = sorted(round(value, DIGITS) for value in differences)
    return ordered[outside - 1], ordered[-outside]


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value of so many differences above and below zero; zeros are left out."""
    n = better + worse
    return min(1.0, float(2 * bdtr(min(better, worse), n, 0.5)))
