"""Mean, spread and t interval over seeds; differences with their unit.

Runs of one seed share data, partition and initial weights in every cell, so differences are taken seed by seed: the
part of the noise that comes with the seed cancels. Three to five seeds are the rule here; that is too few for a
bootstrap, so intervals are Student's t (mean +- t_{n-1} std / sqrt(n), std with n - 1 in the denominator).
All values are in the metric's own unit (accuracies: fractions).
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
INTERVAL_SEEDS = 5  # below them a t interval says little: its half width at three seeds is 2.5 standard deviations
NO_SPREAD = 1e-12  # below this, relative to the mean, a standard deviation is only rounding
FRACTIONS = (  # metrics whose differences are percentage points
    *("test/accuracy", "test/auroc", "test/precision", "test/recall"),
    *("pseudo/kept", "pseudo/accuracy", "pseudo/class_balance"),
    *("aggregation/labelled_share", "aggregation/labelled_weight"),
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One sample of n values. std is None for n = 1: one run says nothing about spread."""

    mean: float
    std: float | None  # n - 1 in the denominator
    n: int

    @property
    def has_spread(self) -> bool:
        """Whether the values differ by more than rounding; without it the interval has no width and says nothing."""
        return self.std is not None and self.std > NO_SPREAD * max(1.0, abs(self.mean))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's t at `LEVEL`. None below `INTERVAL_SEEDS` values, and without spread."""
        if self.std is None or not self.has_spread or self.n < INTERVAL_SEEDS:
            return None
        half = t_factor(self.n) * self.std
        return self.mean - half, self.mean + half


@functools.cache
def t_factor(n: int) -> float:
    """Half width of the two-sided interval of n values at `LEVEL`, in their standard deviations. Needs n >= 2."""
    return float(stdtrit(n - 1, 0.5 + LEVEL / 2)) / math.sqrt(n)


def summary(values: Iterable[float]) -> Summary:
    """Mean and standard deviation. Raises ValueError for no value, or for one that is not finite
    (a diverged run must be counted by the caller, not averaged)."""
    sample = np.asarray(list(values), dtype=np.float64)
    if sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"summary needs finite values, at least one; got {sample.tolist()}")
    std = float(sample.std(ddof=1)) if sample.size > 1 else None
    return Summary(mean=float(sample.mean()), std=std, n=int(sample.size))


def contrast(coefficients: Mapping[str, float], values: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """Sum coefficient x value over the labels, per seed, for the seeds that every label has.

    `values` is label -> {seed: value}. A label that is absent has no seed, so the result is empty.
    """
    if not coefficients:
        return {}
    common = set.intersection(*(set(values.get(label, {})) for label in coefficients))
    differences = {}
    for seed in sorted(common):
        differences[seed] = math.fsum(factor * values[label][seed] for label, factor in coefficients.items())
    return differences


def paired(values_a: Mapping[int, float], values_b: Mapping[int, float]) -> Summary | None:
    """a - b over the common seeds ({seed: value} each). None where they have no seed in common."""
    differences = contrast({"a": 1.0, "b": -1.0}, {"a": values_a, "b": values_b})
    return summary(differences.values()) if differences else None


def is_fraction(metric: str) -> bool:
    return metric in FRACTIONS


def number(value: float) -> str:
    """Four significant digits, without a sign for zero."""
    return "-" if not math.isfinite(value) else f"{value + 0.0:.4g}"


def in_unit(metric: str, value: float) -> str:
    """A difference of `metric` with its unit: "1.0 points" for fractions, else four digits."""
    return f"{100 * value:.1f} points" if is_fraction(metric) else number(value)
