"""Define the optimizer of local steps, and the papers' learning-rate schedules.

Schedules are functions of the local step, whose number counts over the whole run: step s of round t is (t - 1) T + s.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from benchmark.config import Checked, NotNegative, Positive, Share, ShareBelow1, Whole, added
from benchmark.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The base learning rate throughout."""

    per_round: ClassVar[bool] = False

    def factor(self, step: float, total_steps: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(Checked):
    """SSFL Eq. 11: max{cos(pi c (t - w) / (N - w)), eps} after a linear warm-up from 0 over the first w steps.

    With c = 0.4375 = 7/16 this is FixMatch's schedule. With c > 0.5 Eq. 11 taken literally falls to eps and comes
    back (c = 2.3 ends at 0.59); the released code instead stretches N so that it falls once.
    """

    per_round: ClassVar[bool] = False

    c: float = 0.4375  # c      periodic coefficient
    warmup_steps: Whole = 0  # e M / B
    steps: int | None = None  # E M / B; None: T x rounds
    floor: Share = 1e-4  # eps

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.steps <= self.warmup_steps:
            raise ConfigError(f"steps: {self.steps} is not beyond warmup_steps = {self.warmup_steps}")

    def factor(self, step: float, total_steps: int) -> float:
        """Share of the base learning rate at local step `step` (0 is the first)."""
        if step < self.warmup_steps:
            return step / self.warmup_steps
        last = max(total_steps if self.steps is None else self.steps, self.warmup_steps + 1)
        phase = (step - self.warmup_steps) / (last - self.warmup_steps)
        return max(math.cos(math.pi * self.c * phase), self.floor)


@dataclass(frozen=True, kw_only=True)
class RoundCosine:
    """(1 + cos(pi (t - 1) / rounds)) / 2 throughout round t. It falls from 1 towards 0, with one rate for all steps
    of a round. SemiFL: "cosine learning rate decay", stepped once a round in the released code (utils.py:115-185,
    T_max = 800)."""

    per_round: ClassVar[bool] = True

    def factor(self, step: float, total_steps: int) -> float:
        return (1 + math.cos(math.pi * step / total_steps)) / 2


@dataclass(frozen=True, kw_only=True)
class Steps(Checked):
    """A tenth of the rate from each of these shares of the run on. One rate for all steps of a round. HeteroFL as
    released on CIFAR-10: after rounds 300 and 500 of 800 (its utils.py, process_control)."""

    per_round: ClassVar[bool] = True

    at: tuple[float, ...] = (0.375, 0.625)

    def factor(self, step: float, total_steps: int) -> float:
        return 0.1 ** sum(step >= share * total_steps for share in self.at)


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked):
    """Describe the optimizer of server and clients: SGD, or Adam (`rule`).

    Records name its kind "sgd" whatever the rule, because cell keys contain that word.
    """

    kind: ClassVar[str] = "sgd"

    lr: Positive = 0.03  # gamma
    server_lr: Positive | None = None  # of the server, if it differs; None: gamma
    momentum: ShareBelow1 = 0.9  # share of the last step's direction
    nesterov: bool = True  # released code: train_LocalSGD.py:251; the paper does not say
    weight_decay: NotNegative = 1e-4  # L2, a step's share of the weights
    schedule: Constant | Cosine | RoundCosine | Steps = Cosine()
    rule: Literal["sgd", "adam"] = added("sgd")  # Adam's beta_1 is `momentum`; beta_2 = .999, epsilon 1e-8
    clip: Positive | None = added(None)  # largest norm of a step's gradient; SemiFL's code: 1, RSCFed's 5, FedDyn's 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0.0:
            raise ConfigError("nesterov: true needs momentum > 0; choose false")
        if self.nesterov and self.rule == "adam":
            raise ConfigError("nesterov: true, but rule 'adam' has none; choose false")
