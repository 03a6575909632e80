"""The typical difference of a few seeds: Hodges-Lehmann estimate, and the exact signed-rank test as an interval.

The typical difference (pseudo-median) is the middle of the means of all pairs of differences, each with itself too
(Walsh averages). Under differences symmetric about it, every way to flip their signs is equally likely: the test's
distribution is exact at any number of seeds, without a word on their spread. The interval holds all values that the
test does not reject; it never leaves the range of the differences, and so what the metric can be.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIGITS = 12


def walsh_averages(differences: Sequence[float]) -> NDArray[np.float64]:
    """Sorted means of all n (n + 1) / 2 pairs, to DIGITS: the sign of a tie must not be a rounding error's."""
    values = np.asarray(differences, dtype=np.float64)
    rows, columns = np.triu_indices(len(values))
    return np.sort(np.round((values[rows] + values[columns]) / 2, DIGITS))


def typical(differences: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate. Needs a difference."""
    return float(np.median(walsh_averages(differences)))


@functools.cache
def cumulative(n: int) -> NDArray[np.float64]:
    """P(W <= w) for w = 0, 1, ...: W is the sum of those of the ranks 1 to n whose difference is negative."""
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    return np.cumsum(ways) / 2.0**n


def interval(differences: Sequence[float], error: float) -> tuple[float, float] | None:
    """Two-sided, at level 1 - error; None where so few differences can reject nothing at that error.

    It lies above zero exactly where the signed-rank test of so small a p-value says so; differences of zero count
    against it.
    """
    left_out = int(np.searchsorted(cumulative(len(differences)), error / 2, side="right"))  # averages on each side
    if left_out == 0:
        return None
    averages = walsh_averages(differences)
    return float(averages[left_out - 1]), float(averages[-left_out])
