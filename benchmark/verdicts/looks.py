"""When a claim is judged, and how much of its error each look may spend.

A claim is judged at the first 9, 16, 24 and 32 confirming seeds of its family, and at no number between. Adding seeds
until a claim is decided errs far more often than one look at its level (18 to 24 % instead of 5 %, simulated). At a
look of n seeds, error x ln(1 + (e - 1) n / 32) may have been spent (Lan and DeMets 1983, their function like Pocock's).
The levels follow from the joint distribution of the looks, that of a Brownian motion at the times n / 32.
"""

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc, ndtr, stdtrit  # scipy.stats and scipy.optimize take half a second to load

from benchmark.verdicts.rule import EQUIVALENCE, LOOKS

Values: TypeAlias = NDArray[np.float64]
POWER = 0.8  # of the smallest difference that is called detectable
NODES = 401  # of the integral over the process's value at the look before


@functools.cache
def errors(error: float, looks: tuple[int, ...] = LOOKS) -> tuple[float, ...]:
    """The two-sided error of the test at each look; all looks together err no more than `error`."""
    times = [n / looks[-1] for n in looks]
    at_looks: list[float] = []
    start, density, spent, before = np.zeros(1), np.ones(1), 0.0, 0.0  # values that the process can have, their weights
    for time in times:
        sigma = math.sqrt(time - before)
        to_spend = error * math.log(1 + (math.e - 1) * time) - spent
        bound = _bound(start, density, sigma, to_spend)
        at_looks.append(float(2 * ndtr(-bound / math.sqrt(time))))
        inside = np.linspace(-bound, bound, NODES)
        weights = np.full(NODES, inside[1] - inside[0])
        weights[[0, -1]] /= 2
        z = (inside[:, None] - start) / sigma  # of a normal distribution
        density = weights * (np.exp(-(z**2) / 2) / (math.sqrt(2 * math.pi) * sigma) @ density)
        start, spent, before = inside, spent + to_spend, time
    return tuple(at_looks)


def _bound(start: Values, density: Values, sigma: float, to_spend: float) -> float:
    """The value that the process exceeds, on either side, with probability `to_spend`."""
    low, high = 0.0, 12.0
    while high - low > 1e-12:
        bound = (low + high) / 2
        beyond = ndtr((start - bound) / sigma) + ndtr((-bound - start) / sigma)
        low, high = (bound, high) if float(density @ beyond) > to_spend else (low, bound)
    return (low + high) / 2


def smallest_look(error: float, looks_had: int = 0, *, alike: bool = False, reachable: int = LOOKS[-1]) -> int:
    """Seeds of the next look at which some differences would decide; 0 where none can.

    n differences of one sign have a p-value of 2 / 2^n. `alike`: for a claim that two things are alike. `reachable`:
    how many seeds can be judged at most.
    """
    able = [n for n, spends in zip(LOOKS, errors(error), strict=True) if 2 * 0.5**n <= spends]
    look = next((n for n in able if n in LOOKS[looks_had:] and (n >= EQUIVALENCE or not alike)), 0)
    return look if look <= reachable else 0


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """The smallest difference that the claim's test finds with a power of 80 %, by the spread of the seeds so far."""

    value: float  # in the metric's unit
    seeds: int  # at this interim analysis, the largest that can be reached
    spread: float  # standard deviation of the differences
    n: int  # of so many seeds


def detectable(spread: float, n: int, error: float, reachable: int) -> Detectable:
    """Compute the smallest difference that a claim's test finds in 80 % of cases.

    At the largest interim analysis that can be reached, as a test by itself at its level: the t test's power
    (noncentral t), with the relative efficiency 3 / pi of signed ranks under normal differences. `spread` is the
    standard deviation of n differences. For "comparable" the result is how far from the margin the difference has to
    lie.
    """
    look = max(seeds for seeds in LOOKS if seeds <= reachable)
    level = errors(error)[LOOKS.index(look)]
    critical = stdtrit(look - 1, 1 - level / 2)
    shift = nctdtrinc(look - 1, 1 - POWER, critical)
    value = float(shift * spread / math.sqrt(look * 3 / math.pi))
    return Detectable(value=value, seeds=look, spread=spread, n=n)
