"""Rank correlations over cells, with a third quantity held fixed, and bootstrap intervals over clusters of cells.

Cells that differ only in how the server averages share data, partition and seeds, so that they are no independent
observations: the bootstrap draws whole clusters of them. Nothing here knows what the numbers are.

Legend: N cells, B bootstrap samples.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmark.verdicts.statistics import LEVEL

Values: TypeAlias = npt.NDArray[np.float64]
SAMPLES = 2000
SEED = 20080
FEWEST_CLUSTERS = 8  # a percentile interval over fewer says little
MOST_UNDEFINED = 0.05  # share of samples without a correlation, above which there is no interval
NO_SPREAD = 1e-9  # of 1 - r^2: below it two rank orders are the same


@dataclass(frozen=True, kw_only=True)
class Association:
    """A rank correlation in [-1, 1]; None where a quantity does not vary. The interval is None where too few clusters
    or too many undefined samples leave none."""

    estimate: float | None
    interval: tuple[float, float] | None
    n: int  # cells
    clusters: int
    level: float = LEVEL


def ranks(values_N: Values) -> Values:
    """1 for the least, ties at their mean; less the mean of all, so that they sum to zero."""
    _, places_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places_N] - (len(values_N) + 1) / 2, dtype=np.float64)


def spearman(x_N: Values, y_N: Values) -> float | None:
    """Pearson's correlation of ranks, ties at their mean; None where one of them does not vary."""
    return _correlation(ranks(x_N), ranks(y_N))


def _correlation(a_N: Values, b_N: Values) -> float | None:
    scale = math.sqrt(float(a_N @ a_N) * float(b_N @ b_N))
    return float(a_N @ b_N) / scale if scale > 0 else None


def partial_spearman(x_N: Values, y_N: Values, fixed_N: Values) -> float | None:
    """Spearman's correlation of x and y with `fixed` held fixed: (r_xy - r_xf r_yf) / sqrt((1 - r_xf^2)(1 - r_yf^2)).

    The correlation of what is left of both rank orders after the least-squares line on the ranks of `fixed`
    (Kendall and Stuart, chapter 27). Where `fixed` does not vary there is nothing to hold: plain Spearman. None where
    x or y does not vary, or has the ranks of `fixed`.
    """
    a_N, b_N, c_N = ranks(x_N), ranks(y_N), ranks(fixed_N)
    r_xy, r_xf, r_yf = _correlation(a_N, b_N), _correlation(a_N, c_N), _correlation(b_N, c_N)
    if r_xy is None or r_xf is None or r_yf is None:
        return r_xy
    left = (1 - r_xf**2) * (1 - r_yf**2)
    if left < NO_SPREAD:
        return None
    return max(-1.0, min(1.0, (r_xy - r_xf * r_yf) / math.sqrt(left)))


def rank_residuals(values_N: Values, fixed_N: Values) -> Values:
    """The ranks of `values` less their least-squares line on the ranks of `fixed`: what a partial correlation is of."""
    ranks_N, line_N = ranks(values_N), ranks(fixed_N)
    spread = float(line_N @ line_N)
    return ranks_N - (float(line_N @ ranks_N) / spread if spread else 0.0) * line_N


def associated(
    columns: Mapping[str, Sequence[float]],
    clusters: Sequence[Hashable],
    statistic: Callable[[Mapping[str, Values]], float | None],
    samples: int = SAMPLES,
    level: float = LEVEL,
) -> Association:
    """`statistic` of the cells, and its percentile interval over `samples` draws of as many clusters as there are, with
    replacement. The same columns always give the same interval. `columns`: name -> a value a cell."""
    table = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    members: dict[Hashable, list[int]] = {}
    for place, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(place)
    rows = [np.asarray(places) for places in members.values()]
    estimate = statistic(table) if rows else None
    interval = None
    if estimate is not None and len(rows) >= FEWEST_CLUSTERS:
        interval = _percentiles(table, rows, statistic, samples, level)
    return Association(estimate=estimate, interval=interval, n=len(clusters), clusters=len(rows), level=level)


def _percentiles(
    table: Mapping[str, Values],
    rows: Sequence[npt.NDArray[np.int64]],
    statistic: Callable[[Mapping[str, Values]], float | None],
    samples: int,
    level: float,
) -> tuple[float, float] | None:
    draw = np.random.default_rng(SEED)
    found: list[float] = []
    for _ in range(samples):
        chosen = np.concatenate([rows[i] for i in draw.integers(len(rows), size=len(rows))])
        value = statistic({name: column[chosen] for name, column in table.items()})
        if value is not None:
            found.append(value)
    if len(found) < (1 - MOST_UNDEFINED) * samples:
        return None
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def ratio_interval(
    top: Sequence[float], bottom: Sequence[float], level: float = LEVEL
) -> tuple[float, tuple[float, float]] | None:
    """mean(top) / mean(bottom) of paired values, with Fieller's interval: all r for which a t test of top - r bottom
    does not reject zero. None for fewer than three pairs, and where the bottom's mean is not told from zero, since
    then no finite interval holds the ratio."""
    a_N, b_N = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    n = len(a_N)
    if n < 3:
        return None
    t2 = float(stats.t.ppf(0.5 + level / 2, n - 1)) ** 2 / n
    covariance = np.cov(a_N, b_N, ddof=1)
    a, b = float(a_N.mean()), float(b_N.mean())
    A = b * b - t2 * float(covariance[1, 1])
    B = a * b - t2 * float(covariance[0, 1])
    C = a * a - t2 * float(covariance[0, 0])
    if A <= 0:
        return None
    root = math.sqrt(max(0.0, B * B - A * C))
    return a / b, ((B - root) / A, (B + root) / A)
