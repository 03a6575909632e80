"""Define the optimizer of local steps, and the papers' learning-rate schedules.

Schedules are functions of the local step, counted over the whole run: step s of round t is (t - 1) T + s.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from benchmark.config import Checked, NotNegative, Positive, Share, ShareBelow1, Whole, added
from benchmark.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The base learning rate in every step."""

    per_round: ClassVar[bool] = False

    def factor(self, step: float, total_steps: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(Checked):
    """SSFL Eq. 11: max{cos(pi c (t - w) / (N - w)), eps} after a linear warm-up from 0 over the first w steps.

    c = 0.4375 = 7/16 is FixMatch's schedule. If c > 0.5, Eq. 11 taken literally falls to eps and rises again (c = 2.3
    ends at 0.59). The released code instead stretches N so that the rate falls only once.
    """

    per_round: ClassVar[bool] = False

    c: float = 0.4375  # c, the periodic coefficient
    warmup_steps: Whole = 0  # w = e M / B, the number of warm-up steps
    steps: int | None = None  # N = E M / B, the total number of steps; null: T x rounds
    floor: Share = 1e-4  # eps, the lowest factor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.steps <= self.warmup_steps:
            raise ConfigError(f"steps is {self.steps}, but it must be larger than warmup_steps = {self.warmup_steps}")

    def factor(self, step: float, total_steps: int) -> float:
        """Return the share of the base learning rate at local step `step`, counted from 0."""
        if step < self.warmup_steps:
            return step / self.warmup_steps
        last = max(total_steps if self.steps is None else self.steps, self.warmup_steps + 1)
        phase = (step - self.warmup_steps) / (last - self.warmup_steps)
        return max(math.cos(math.pi * self.c * phase), self.floor)


@dataclass(frozen=True, kw_only=True)
class RoundCosine:
    """The factor (1 + cos(pi (t - 1) / rounds)) / 2 for all steps of round t; it falls from 1 towards 0.

    SemiFL calls it "cosine learning rate decay"; its released code changes the rate once per round (utils.py:115-185,
    T_max = 800).
    """

    per_round: ClassVar[bool] = True

    def factor(self, step: float, total_steps: int) -> float:
        return (1 + math.cos(math.pi * step / total_steps)) / 2


@dataclass(frozen=True, kw_only=True)
class Steps(Checked):
    """A rate that falls to a tenth at each of these shares of the run, and that is constant within a round.

    HeteroFL's released code does so on CIFAR-10 after rounds 300 and 500 of 800 (its utils.py, process_control).
    """

    per_round: ClassVar[bool] = True

    at: tuple[float, ...] = (0.375, 0.625)  # shares of the run, each in [0, 1]

    def factor(self, step: float, total_steps: int) -> float:
        return 0.1 ** sum(step >= share * total_steps for share in self.at)


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked):
    """The optimizer of server and clients: SGD or Adam (`rule`).

    Records name its kind "sgd" for both rules, because cell keys contain that word.
    """

    kind: ClassVar[str] = "sgd"

    lr: Positive = 0.03  # gamma, the base learning rate
    server_lr: Positive | None = None  # base learning rate of the server; null: gamma
    momentum: ShareBelow1 = 0.9  # share of the last step's direction
    nesterov: bool = True  # released code: train_LocalSGD.py:251; the paper does not mention it
    weight_decay: NotNegative = 1e-4  # L2 coefficient: this share of the weights is added to the gradient
    schedule: Constant | Cosine | RoundCosine | Steps = Cosine()
    rule: Literal["sgd", "adam"] = added("sgd")  # Adam's beta_1 is `momentum`; beta_2 = .999, epsilon 1e-8
    clip: Positive | None = added(None)  # largest gradient norm of a step; code of SemiFL: 1, RSCFed: 5, FedDyn: 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0.0:
            raise ConfigError("nesterov is true, but it needs a momentum above 0; choose nesterov false")
        if self.nesterov and self.rule == "adam":
            raise ConfigError("nesterov is true, but rule 'adam' has no Nesterov momentum; choose nesterov false")
