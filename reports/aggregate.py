"""Many cells as one number: the interquartile mean of all runs, with a bootstrap that keeps the cells apart.

Agarwal et al. (NeurIPS 2021, "Deep RL at the edge of the statistical precipice", section 4.3): the mean of the middle
half of all values, less noisy than a median and deaf to a few failed runs; the interval resamples the runs within
each cell (strata), so that every cell keeps its weight. Values are fractions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEAST_VALUES = 4  # below, no value would be trimmed, and quartiles say nothing


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Of one method over its cells."""

    mean: float  # interquartile
    interval: tuple[float, float] | None  # percentiles of the bootstrap; None where no cell has two runs
    level: float
    n: int  # values
    cells: int


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter. As scipy's `trim_mean(values, 0.25)` it leaves out
    floor(n / 4) values at each end. Raises ValueError without any value."""
    if not len(values):
        raise ValueError("the interquartile mean needs a value")
    return float(_middle(np.asarray(values, dtype=np.float64)[None])[0])


def _middle(samples_SN: np.ndarray) -> np.ndarray:
    """S samples of N values each -> S means."""
    n = samples_SN.shape[1]
    cut = math.floor(n / 4)
    return np.sort(samples_SN, axis=1)[:, cut : n - cut].mean(axis=1)


def aggregate(strata: Mapping[str, Sequence[float]], level: float = 0.95, resamples: int = RESAMPLES) -> Aggregate:
    """`strata`: a cell's label -> the values of its runs. The same values always give the same interval: the draws
    are of a fixed seed, and strata are taken in the order of their labels. Raises ValueError without any value."""
    cells = [np.asarray(values, dtype=np.float64) for _, values in sorted(strata.items()) if len(values)]
    if not cells:
        raise ValueError("aggregate needs a cell with a value")
    everything = np.concatenate(cells)
    interval = None
    if any(len(cell) > 1 for cell in cells):
        rng = np.random.default_rng(0)
        drawn = [cell[rng.integers(0, len(cell), size=(resamples, len(cell)))] for cell in cells]
        means = _middle(np.concatenate(drawn, axis=1))
        low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
        interval = (float(low), float(high))
    return Aggregate(
        mean=interquartile_mean(everything.tolist()),
        interval=interval,
        level=level,
        n=int(everything.size),
        cells=len(cells),
    )
