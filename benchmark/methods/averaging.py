"""Averaging of weights at the server: FedAvg (SSFL Eq. 8) and grouping (SSFL Eq. 7).

Sums run in job order in float64, so that a result depends neither on the number of workers nor on who was first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.methods.protocol import Weights


class RunningMean:
    """A weighted mean of weight sets, taken one at a time so that a cohort is never held in memory at once."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._like: Weights = {}
        self.total = 0.0

    def add(self, weights: Weights, weight: float = 1.0) -> None:
        if not self._sums:
            self._like = weights
            self._sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
        for name, value in weights.items():
            self._sums[name].add_(value, alpha=weight)
        self.total += weight

    def value(self) -> Weights:
        """The mean, in the dtype it came in (counters of batches seen are rounded down). Needs a positive total."""
        return {name: (total / self.total).to(self._like[name].dtype) for name, total in self._sums.items()}


def mean(weight_sets: Sequence[Weights], coefficients: Sequence[float] | None = None) -> Weights:
    """The weighted mean of `weight_sets`; equal weights where no coefficients are given."""
    running = RunningMean()
    for index, weights in enumerate(weight_sets):
        running.add(weights, 1.0 if coefficients is None else coefficients[index])
    return running.value()


def with_server(clients: RunningMean, server: Weights, server_weight: float | None) -> Weights:
    """The server's weights and the clients' mean in one. `clients.total` is the number of clients.

    With `server_weight` None the server counts as one more client: 1 / (|clients| + 1), as in Eqs. 7 and 8.
    """
    share = 1.0 / (clients.total + 1.0) if server_weight is None else server_weight
    return mean([server, clients.value()], [share, 1.0 - share])


def ema(old: Weights, new: Weights, ratio: float) -> Weights:
    """ratio x old + (1 - ratio) x new, in float64 (FedSwitch Eq. 1); counters come from `new`."""
    return {
        name: (ratio * old[name].double() + (1 - ratio) * value.double()).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in new.items()
    }


def momentum_step(weights: Weights, target: Weights, velocity: Weights | None, beta: float) -> tuple[Weights, Weights]:
    """v <- beta v + (w - target), w <- w - v for every trained parameter; statistics are the target's.

    SemiFL's global momentum: SGD with rate 1 on w - mean of the clients (modules.py:39-60). beta = 0 gives `target`
    (up to rounding). Returns the new weights and v, in float64.
    """
    moved, kept = {}, {}
    for name, value in weights.items():
        if is_statistic(name):
            moved[name] = target[name]
            continue
        change = value.double() - target[name].double()
        kept[name] = change if velocity is None else beta * velocity[name] + change
        moved[name] = (value.double() - kept[name]).to(value.dtype)
    return moved, kept


def is_statistic(name: str) -> bool:
    """Whether a tensor is a running statistic of batch normalisation and no trained parameter."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def _check_server_weight(server_weight: float | None) -> None:
    if server_weight is not None and not 0.0 <= server_weight < 1.0:
        raise ConfigError(f"server_weight: {server_weight} is outside [0, 1); null means one client's weight")


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """All of the cohort and the server in one mean (Eq. 8)."""

    kind = "fedavg"

    server_weight: float | None = None  # None: 1 / (C + 1), Eq. 8; a number: the control that the paper lacks

    def __post_init__(self) -> None:
        _check_server_weight(self.server_weight)

    def group_sizes(self, C: int) -> tuple[int, ...]:
        return (C,)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """S random groups, each averaged with the server's weights; then the plain mean of the group means (Eq. 7)."""

    S: int = 2  # S  number of groups
    server_weight: float | None = None  # inside a group; None: 1 / (|G_i| + 1), Eq. 7
    # The paper says "equal-sized"; 47 clients in 5 groups cannot be. "paper": sizes differ by at most one;
    # "released_code": 10, 10, 10, 10, 7 (utils_v2.py:1498-1567). Default: nearest to what the paper says.
    sizes: Literal["paper", "released_code"] = "paper"

    def __post_init__(self) -> None:
        if self.S < 1:
            raise ConfigError(f"S: {self.S} groups; at least 1 would be right")
        _check_server_weight(self.server_weight)

    def group_sizes(self, C: int) -> tuple[int, ...]:
        """Sizes of the S groups of a cohort of C, largest first. Raises ConfigError for S > C."""
        if self.S > C:
            raise ConfigError(f"method.averaging.S: {self.S} groups of {C} clients; S <= C would be right")
        if self.sizes == "released_code":
            full = -(-C // self.S)
            sizes = [min(full, C - full * group) for group in range(self.S)]
            if min(sizes) < 1:
                raise ConfigError(
                    f"method.averaging.sizes: released_code leaves no client for the last of {self.S} groups of {C}; "
                    "'paper' would be right"
                )
            return tuple(sizes)
        return tuple(C // self.S + (group < C % self.S) for group in range(self.S))
