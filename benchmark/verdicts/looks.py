"""Compute when a claim is judged, and how much of its error each interim analysis ("look") may spend.

A claim is judged when its family has 9, 16, 24 and 32 confirmatory seeds, and at no other number. Testing after every
new seed until a claim is decided is wrong much more often than its level: 18 to 24 % instead of 5 % in simulations.
Alpha spending solves this: up to the look with n seeds, error x ln(1 + (e - 1) n / 32) may have been spent (Lan and
DeMets 1983, the spending function that resembles Pocock's). The level of each look follows from the joint distribution
of the looks, which is the distribution of a Brownian motion at the times n / 32.

Example: a claim with an error of .05 has spent .0197, .0310, .0414 and .05 after the four looks.
The two-sided levels of its tests are .0197, .0170, .0183 and .0188, which add up to more than .05
because the looks share data. If 40 claims share the error, each has .00125, and .00049 of that at
the first look. Nine differences of one sign have a p-value of 2 / 2^9 = .0039, so that none of
these claims can be decided at nine seeds. With 16 seeds it can: 2 / 2^16 = .00003 is below .00035.
"""

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc, ndtr, stdtrit  # scipy.stats and scipy.optimize need half a second to load

from benchmark.verdicts.rule import EQUIVALENCE, LOOKS

Values: TypeAlias = NDArray[np.float64]
POWER = 0.8  # of the test at the smallest difference that is called detectable
NODES = 401  # of the integral over the value of the process at the previous look


@functools.cache
def errors(error: float, looks: tuple[int, ...] = LOOKS) -> tuple[float, ...]:
    """Return the two-sided level of the test at each look, such that all looks together err with
    probability `error`.
    """
    times = [n / looks[-1] for n in looks]
    at_looks: list[float] = []
    start = np.zeros(1)  # values that the process can have
    density = np.ones(1)  # their probability weights
    spent = 0.0
    before = 0.0  # time of the previous look
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
    """Return the value that the process exceeds, in absolute value, with probability `to_spend`."""
    low, high = 0.0, 12.0
    while high - low > 1e-12:
        bound = (low + high) / 2
        beyond = ndtr((start - bound) / sigma) + ndtr((-bound - start) / sigma)
        low, high = (bound, high) if float(density @ beyond) > to_spend else (low, bound)
    return (low + high) / 2


def smallest_look(error: float, looks_had: int = 0, *, alike: bool = False, reachable: int = LOOKS[-1]) -> int:
    """Return the number of seeds of the next look that can decide a claim, or 0 if no further look can.

    A look can decide if n differences of one sign, with a p-value of 2 / 2^n, reach its level.
    `looks_had` is the number of past looks. `alike` is set for a claim of equivalence, which needs
    20 seeds. `reachable` is the largest number of seeds that can be judged.
    """
    able = [n for n, spends in zip(LOOKS, errors(error), strict=True) if 2 * 0.5**n <= spends]
    look = next((n for n in able if n in LOOKS[looks_had:] and (n >= EQUIVALENCE or not alike)), 0)
    return look if look <= reachable else 0


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """The smallest difference that a claim's test detects with a power of 80 %, given the spread of
    the seeds so far.
    """

    value: float  # in the metric's unit
    seeds: int  # it is computed for the seeds of the largest look that can be reached
    spread: float  # standard deviation of the differences
    n: int  # number of seeds for the estimate of the spread


def detectable(spread: float, n: int, error: float, reachable: int) -> Detectable:
    """Return the smallest difference that a claim's test detects with a power of 80 %.

    It is computed for the largest look that can be reached, as a single test at that look's level:
    the power of the t test by the noncentral t distribution, with the relative efficiency 3 / pi of
    signed ranks under normal differences. `spread` is the standard deviation of n differences. For
    "comparable", the result is the necessary distance of the difference from the margin.
    """
    look = max(seeds for seeds in LOOKS if seeds <= reachable)
    level = errors(error)[LOOKS.index(look)]
    critical = stdtrit(look - 1, 1 - level / 2)
    shift = nctdtrinc(look - 1, 1 - POWER, critical)
    value = float(shift * spread / math.sqrt(look * 3 / math.pi))
    return Detectable(value=value, seeds=look, spread=spread, n=n)
