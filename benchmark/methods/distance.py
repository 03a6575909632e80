"""Distance-reweighted model aggregation (DMA): local models near their average count for more.

Liang et al. RSCFed. CVPR 2022, section 3.3, Eqs. 5 and 6; the weight of labelled clients, section 4.2. Released code:
XMed-Lab/RSCFed, train_main.py:284-310 and FedAvg.py:24-31.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark.methods.averaging import is_statistic, mean
from benchmark.methods.protocol import Weights

LabelledWeight = Literal["paper", "released_code", "released_command", "by_size"]
DistanceRule = Literal["paper", "released_code"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A client of a subset, as the aggregation sees it."""

    size: int  # N_i  its images
    labelled: bool  # all of them with labels


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """How much labelled clients count, and the numbers that the rules read."""

    rule: LabelledWeight = "paper"
    share: float = 0.5  # "paper": of the labelled clients together
    times: float = 6.0  # "released_code", "released_command": factor of a labelled client's size

    def frequencies(self, members: Sequence[Member]) -> tuple[list[float], list[float]]:
        """What stands for N_i / N_total in Eq. 5 and in Eq. 6; positive, not normalised."""
        return WEIGHTINGS[self.rule](self, members)


def _by_size(weighting: Weighting, members: Sequence[Member]) -> tuple[list[float], list[float]]:
    sizes = [float(member.size) for member in members]
    return sizes, sizes


def _shared(weighting: Weighting, members: Sequence[Member]) -> tuple[list[float], list[float]]:
    """Labelled clients together `share`, the others the rest, by size within a kind (section 4.2, "about 50%").

    Where there is one kind alone, by size.
    """
    total = {kind: sum(m.size for m in members if m.labelled == kind) for kind in (True, False)}
    if not total[True] or not total[False]:
        return _by_size(weighting, members)
    share = {True: weighting.share, False: 1.0 - weighting.share}
    frequencies = [share[m.labelled] * m.size / total[m.labelled] for m in members]
    return frequencies, frequencies


def _times_twice(weighting: Weighting, members: Sequence[Member]) -> tuple[list[float], list[float]]:
    """Sizes and then weights times `times` (train_main.py:284-287, 307-310)."""
    once = _times_once(weighting, members)[1]
    return once, [weighting.times * f if m.labelled else f for f, m in zip(once, members, strict=True)]


def _times_once(weighting: Weighting, members: Sequence[Member]) -> tuple[list[float], list[float]]:
    """README's command has --un_dist=avg, and with it train_main.py:284 leaves the sizes alone."""
    return [float(m.size) for m in members], [weighting.times * m.size if m.labelled else m.size for m in members]


WEIGHTINGS: Mapping[str, Callable[[Weighting, Sequence[Member]], tuple[list[float], list[float]]]] = {
    "paper": _shared,
    "released_code": _times_twice,
    "released_command": _times_once,
    "by_size": _by_size,
}


def norm_of_all(left: Weights, right: Weights) -> float:
    """||left - right||_2 over all trained parameters as one vector (Eq. 6)."""
    names = [name for name in left if not is_statistic(name)]
    return math.sqrt(sum(_squares(left, right, name) for name in names))


def sum_of_norms(left: Weights, right: Weights) -> float:
    """The sum over tensors of their norms, running statistics too (FedAvg.py:24-31); counters have no norm."""
    names = [name for name, value in left.items() if value.is_floating_point()]
    return sum(math.sqrt(_squares(left, right, name)) for name in names)


def _squares(left: Weights, right: Weights, name: str) -> float:
    return float((left[name].double() - right[name].double()).square().sum())


DISTANCES: Mapping[str, Callable[[Weights, Weights], float]] = {"paper": norm_of_all, "released_code": sum_of_norms}


def reweighted(
    frequencies: Sequence[float], distances: Sequence[float], sizes: Sequence[int], beta: float
) -> list[float]:
    """Eq. 6: f_i exp(-beta d_i / N_i), normalised to sum 1.

    Shifted by the largest logarithm: beta d / N of some hundreds, where exp is 0, would else end in 0 / 0.
    Needs positive frequencies and sizes.
    """
    logs = [math.log(f) - beta * d / size for f, d, size in zip(frequencies, distances, sizes, strict=True)]
    largest = max(logs)
    powers = [math.exp(value - largest) for value in logs]
    return [power / sum(powers) for power in powers]


def sub_consensus(
    models: Sequence[Weights],
    members: Sequence[Member],
    *,
    weighting: Weighting,
    beta: float,
    distance: DistanceRule = "paper",
) -> tuple[Weights, list[float]]:
    """theta_sub of one subset (Eqs. 5 and 6, Algorithm 1 lines 5 to 7), and the weights w that it was made with.

    beta = 0 is the plain weighted mean and computes no distance. A model that is not finite makes theta_sub so.
    """
    for_average, for_weights = weighting.frequencies(members)
    if beta == 0.0:
        return mean(models, for_weights), [f / sum(for_weights) for f in for_weights]
    average = mean(models, for_average)
    distances = [DISTANCES[distance](model, average) for model in models]
    if not all(map(math.isfinite, distances)):
        return mean(models, for_weights), [f / sum(for_weights) for f in for_weights]
    weights = reweighted(for_weights, distances, [member.size for member in members], beta)
    return mean(models, weights), weights
