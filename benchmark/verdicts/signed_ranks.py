"""The typical difference of a few seeds: Hodges-Lehmann estimate, and two exact tests as intervals.

The typical difference (pseudo-median) is the middle of the means of all pairs of differences, each with itself too
(Walsh averages). Under differences symmetric about it, every way to flip their signs is equally likely: the signed-rank
test's distribution is exact at any number of seeds, whatever their spread. The sign test needs no symmetry: its null is
a median difference of zero. An interval holds all values that its test does not reject; it never leaves the range of
the differences, and so what the metric can be.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

DIGITS = 12
Interval: TypeAlias = tuple[float, float]


class Intervals(NamedTuple):
    """One test's intervals; None where so few differences can reject nothing."""

    whole: Interval | None  # at the claim's whole error
    share: Interval | None  # at the contrast's share of it


@dataclass(frozen=True, kw_only=True)
class Signs:
    """The exact sign test of the differences: how many lie above and below zero, and its two-sided p-value."""

    better: int
    worse: int
    p: float


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What the two tests say of one contrast's differences."""

    typical: float
    signs: Signs
    ranks: Intervals
    medians: Intervals


def both_tests(differences: Sequence[float], whole: float, share: float) -> Tested:
    """Make the signed-rank test and the sign test, each at both errors."""
    return Tested(
        typical=typical(differences),
        signs=signs_of(differences),
        ranks=Intervals(interval(differences, whole), interval(differences, share)),
        medians=Intervals(median_interval(differences, whole), median_interval(differences, share)),
    )


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
    outside = int(np.searchsorted(_tails(n), error / 2, side="right"))
    if outside == 0:
        return None
    ordered = sorted(round(value, DIGITS) for value in differences)
    return ordered[outside - 1], ordered[-outside]


@functools.cache
def _tails(n: int) -> NDArray[np.float64]:
    """P(k or fewer of n differences have one sign) for k = 0, 1, ..., n // 2."""
    tails: NDArray[np.float64] = bdtr(np.arange(n // 2 + 1), n, 0.5)
    return tails


def signs_of(differences: Sequence[float]) -> Signs:
    """Test exactly, by signs, the null that the median difference is 0; a difference of 0 is left out."""
    better = sum(difference > 0 for difference in differences)
    worse = sum(difference < 0 for difference in differences)
    return Signs(better=better, worse=worse, p=sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value of so many differences above and below zero; zeros are left out."""
    n = better + worse
    return min(1.0, float(2 * bdtr(min(better, worse), n, 0.5)))
