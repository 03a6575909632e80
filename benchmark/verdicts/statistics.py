"""Compute the mean, spread and t interval over seeds, and differences with their unit.

Runs of one seed share data, partition and initial weights in every cell. Differences are therefore
taken per seed, so that the noise that all cells of a seed share cancels. Cells usually have three
to five seeds, which is too few for a bootstrap, and so intervals are Student's t (mean +- t_{n-1}
std / sqrt(n), std with n - 1 in the denominator). All values are in the metric's unit, which is a
fraction for accuracies.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from benchmark.fractions import is_fraction

LEVEL = 0.95
# With fewer seeds a t interval is too wide: at three seeds, its half width is 2.5 standard deviations.
INTERVAL_SEEDS = 5
NO_SPREAD = 1e-12  # a standard deviation below this, relative to the mean, is only rounding


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of n values. std is None for n = 1, because one run does not show a spread."""

    mean: float
    std: float | None  # with n - 1 in the denominator
    n: int

    @property
    def has_spread(self) -> bool:
        """Return whether the values differ by more than rounding; if not, the interval has no width
        and no meaning.
        """
        return self.std is not None and self.std > NO_SPREAD * max(1.0, abs(self.mean))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return Student's t interval at `LEVEL`; None below `INTERVAL_SEEDS` values, and without spread."""
        if self.std is None or not self.has_spread or self.n < INTERVAL_SEEDS:
            return None
        half = t_factor(self.n) * self.std
        return self.mean - half, self.mean + half


@functools.cache
def t_factor(n: int) -> float:
    """Return the half width of the two-sided t interval of n >= 2 values at `LEVEL`, in standard
    deviations of the values.
    """
    return float(stdtrit(n - 1, 0.5 + LEVEL / 2)) / math.sqrt(n)


def summary(values: Iterable[float]) -> Summary:
    """Compute the mean and standard deviation.

    Raise ValueError without values, or for a value that is not finite: the caller has to count a
    diverged run instead of averaging it.
    """
    sample = np.asarray(list(values), dtype=np.float64)
    if sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"summary needs finite values, at least one; got {sample.tolist()}")
    std = float(sample.std(ddof=1)) if sample.size > 1 else None
    return Summary(mean=float(sample.mean()), std=std, n=int(sample.size))


def contrast(coefficients: Mapping[str, float], values: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """Return the sum of coefficient x value over the labels, per seed, for the seeds that every label has.

    `values` is label -> {seed: value}. An absent label has no seed, so that the result is empty.
    """
    if not coefficients:
        return {}
    common = set.intersection(*(set(values.get(label, {})) for label in coefficients))
    differences = {}
    for seed in sorted(common):
        differences[seed] = math.fsum(factor * values[label][seed] for label, factor in coefficients.items())
    return differences


def paired(values_a: Mapping[int, float], values_b: Mapping[int, float]) -> Summary | None:
    """Return the summary of a - b over the common seeds ({seed: value} each), or None if they share no seed."""
    differences = contrast({"a": 1.0, "b": -1.0}, {"a": values_a, "b": values_b})
    return summary(differences.values()) if differences else None


def number(value: float) -> str:
    """Return the value with four significant digits, without a sign for zero."""
    return "-" if not math.isfinite(value) else f"{value + 0.0:.4g}"


def in_unit(metric: str, value: float) -> str:
    """Return a difference of `metric` with its unit: "1.0 points" for fractions, and four digits
    for other metrics.
    """
    return f"{100 * value:.1f} points" if is_fraction(metric) else number(value)
