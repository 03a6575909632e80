"""Estimate the typical difference of a few seeds, with two exact tests as intervals.

The estimate is the Hodges-Lehmann estimate (pseudo-median): the median of the means of all pairs of
differences, including each difference paired with itself (Walsh averages). If the differences are
symmetric about it, all combinations of their signs are equally likely, so that the distribution of
the signed-rank test is exact for any number of seeds and any spread. The sign test needs no
symmetry; its null hypothesis is a median difference of zero. An interval contains all values that
its test does not reject. It never leaves the range of the differences, and so its values are
possible for the metric.

Example: the differences 1, 2 and 6 have the Walsh averages 1, 1.5, 2, 3.5, 4 and 6. The estimate is
their median, 2.75.
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
    """The intervals of one test. An interval is None if there are too few differences to reject any value."""

    at_error: Interval | None  # at the claim's error
    at_share: Interval | None  # at the contrast's share of the error


@dataclass(frozen=True, kw_only=True)
class Signs:
    """The exact sign test: the number of differences above and below zero, and its two-sided p-value."""

    better: int
    worse: int
    p: float


@dataclass(frozen=True, kw_only=True)
class Tested:
    """The results of both tests for the differences of one contrast."""

    typical: float
    signs: Signs
    ranks: Intervals
    medians: Intervals


def both_tests(differences: Sequence[float], error: float, error_per_contrast: float) -> Tested:
    """Return the results of the signed-rank test and the sign test, each at both errors."""
    return Tested(
        typical=typical(differences),
        signs=signs_of(differences),
        ranks=Intervals(interval(differences, error), interval(differences, error_per_contrast)),
        medians=Intervals(median_interval(differences, error), median_interval(differences, error_per_contrast)),
    )


@functools.lru_cache(maxsize=4096)  # cached because a claim is judged at several errors
def walsh_averages(differences: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the sorted means of all n (n + 1) / 2 pairs, rounded to DIGITS, so that a tie has no sign."""
    values = np.asarray(differences, dtype=np.float64)
    rows, columns = np.triu_indices(len(values))
    return np.sort(np.round((values[rows] + values[columns]) / 2, DIGITS))


def typical(differences: Sequence[float]) -> float:
    """Return the Hodges-Lehmann estimate of one or more differences."""
    averages = walsh_averages(tuple(differences))
    return float(averages[len(averages) // 2] + averages[(len(averages) - 1) // 2]) / 2


@functools.cache
def cumulative(n: int) -> NDArray[np.float64]:
    """Return P(W <= w) for w = 0, 1, ..., where W is the sum of the ranks (1 to n) of the negative differences."""
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    return np.cumsum(ways) / 2.0**n


def interval(differences: Sequence[float], error: float) -> Interval | None:
    """Return the two-sided interval of the signed-rank test at level 1 - error, or None for too few
    differences.

    It lies above zero exactly if the test rejects at that error. Differences of zero count against
    a rejection.
    """
    averages_outside = int(np.searchsorted(cumulative(len(differences)), error / 2, side="right"))  # on each side
    if averages_outside == 0:
        return None
    averages = walsh_averages(tuple(differences))
    return float(averages[averages_outside - 1]), float(averages[-averages_outside])


def median_interval(differences: Sequence[float], error: float) -> Interval | None:
    """Return the sign test's interval of the median difference, between two order statistics; None
    as in `interval`.
    """
    n = len(differences)
    outside = int(np.searchsorted(_tails(n), error / 2, side="right"))
    if outside == 0:
        return None
    ordered = sorted(round(value, DIGITS) for value in differences)
    return ordered[outside - 1], ordered[-outside]


@functools.cache
def _tails(n: int) -> NDArray[np.float64]:
    """Return P(at most k of n differences have one given sign) for k = 0, 1, ..., n // 2."""
    tails: NDArray[np.float64] = bdtr(np.arange(n // 2 + 1), n, 0.5)
    return tails


def signs_of(differences: Sequence[float]) -> Signs:
    """Return the exact sign test of the null hypothesis that the median difference is 0;
    differences of 0 are left out.
    """
    better = sum(difference > 0 for difference in differences)
    worse = sum(difference < 0 for difference in differences)
    return Signs(better=better, worse=worse, p=sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided p-value for these numbers of differences above and below zero."""
    n = better + worse
    return min(1.0, float(2 * bdtr(min(better, worse), n, 0.5)))
