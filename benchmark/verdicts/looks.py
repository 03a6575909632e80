"""When a claim is judged, and how much of its error each look may spend.

The first 9, 16, 24 and 32 confirming seeds of a claim's family are looked at, and nothing between: who adds seeds until
a claim is decided errs far more often than one look at its level (18 to 24 % instead of 5 %, simulated). At look k of n
seeds in all, error ln(1 + (e - 1) n / 32) may have been spent (Lan and DeMets 1983, the function that is like
Pocock's); the levels follow from the joint distribution of the looks, that of a Brownian motion at the times n / 32.
"""

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # scipy.stats and scipy.optimize take half a second to load

from benchmark.papers.item import Claim
from benchmark.verdicts.statistics import summary

Values: TypeAlias = NDArray[np.float64]
LOOKS = (9, 16, 24, 32)  # confirming seeds
EQUIVALENCE = 20  # seeds from which on a difference can be called none
NODES = 401  # of the integral over where the process was at the look before
POWER, FUTILE = 0.8, 0.1
SIGNED_RANKS = 3 / math.pi  # their efficiency at normal differences: what a seed counts against a t test's


@functools.cache
def errors(error: float, looks: tuple[int, ...] = LOOKS) -> tuple[float, ...]:
    """The two-sided error of the test at each look, so that all looks together err no more than `error`."""
    times = [n / looks[-1] for n in looks]
    found: list[float] = []
    start, density, spent, before = np.zeros(1), np.ones(1), 0.0, 0.0  # weights of where the process can be
    for time in times:
        sigma = math.sqrt(time - before)
        to_spend = error * math.log(1 + (math.e - 1) * time) - spent
        bound = _bound(start, density, sigma, to_spend)
        found.append(float(2 * ndtr(-bound / math.sqrt(time))))
        place = np.linspace(-bound, bound, NODES)
        weights = np.full(NODES, place[1] - place[0])
        weights[[0, -1]] /= 2
        density = weights * (_normal(place[:, None], start, sigma) @ density)
        start, spent, before = place, spent + to_spend, time
    return tuple(found)


def _normal(place: Values, mean: Values, sigma: float) -> Values:
    """The density."""
    return np.exp(-(((place - mean) / sigma) ** 2) / 2) / (math.sqrt(2 * math.pi) * sigma)


def _bound(start: Values, density: Values, sigma: float, to_spend: float) -> float:
    """What the process goes beyond, on either side, with just that chance."""
    low, high = 0.0, 12.0
    while high - low > 1e-12:
        bound = (low + high) / 2
        beyond = ndtr((start - bound) / sigma) + ndtr((-bound - start) / sigma)
        low, high = (bound, high) if float(density @ beyond) > to_spend else (low, bound)
    return (low + high) / 2


def power(claim: Claim, differences: Sequence[float], look: int, error: float, *, confirming: bool) -> float:
    """The chance that the look decides, were typical difference and spread to stay as seen.

    `confirming`: the differences are of the look's own first seeds; else of pilots, of which it has none.
    """
    seen, n = summary(differences), LOOKS[look]
    spends = errors(error)[look]
    too_few = 2 * 0.5**n > spends  # even with all signs alike
    if seen.std is None or not seen.has_spread or too_few:
        return 0.0
    half = float(-ndtri(spends / 2)) * seen.std / math.sqrt(SIGNED_RANKS * n)
    to_come = n - seen.n if confirming else n
    moves = max(seen.std * math.sqrt(max(to_come, 0)) / n, 1e-12)  # how far the seeds to come may move the mean

    def within(bound: float) -> float:
        """The chance that the mean at the look is nearer to zero than the bound."""
        return float(ndtr((bound - seen.mean) / moves) - ndtr((-bound - seen.mean) / moves)) if bound > 0 else 0

    alike = within(claim.least - half) if n >= EQUIVALENCE else 0.0
    apart = 1 - within(half if claim.form != "comparable" else half + claim.least)
    return min(1.0, alike + apart)
