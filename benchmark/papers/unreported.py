"""Hyperparameters that a paper tuned and does not print, where a run needs them: one declaration a method and scale.

Values are set by a person: `fssl tune` searches them on held-out labels and writes a diff of this file. The classes of
`benchmark.methods` keep defaults of their own, from neighbouring literature, which no study of a reduced scale moves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.methods.fedswitch import FedSwitch
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.arena import Environment, digits_scale, mnist_scale
from benchmark.papers.arena_entries import Entry


@dataclass(frozen=True, kw_only=True)
class FedSwitchOpen:
    """What FedSwitch (arXiv:2301.10114) leaves open.

    Section 5.3: "we tuned the learning rate, pseudo-label threshold, weight of the unlabeled loss, weight decay,
    optimizer momentum, and EMA decay"; none is printed. Nor are mu of the algorithms and the prior beta of Eq. 3.
    """

    lr: float  # eta
    momentum: float
    weight_decay: float
    threshold: float  # tau
    unlabelled_weight: float  # lambda_u
    mu: float
    ratio: float  # alpha of Eq. 1
    beta: float

    def entry(self) -> Entry:
        """The method with these values. The schedule, which the paper does not mention, is FixMatch's."""
        return Entry(
            name="FedSwitch",
            method=FedSwitch(
                threshold=self.threshold,
                unlabelled_weight=self.unlabelled_weight,
                mu=self.mu,
                ratio=self.ratio,
                beta=self.beta,
            ),
            sgd=SGD(
                lr=self.lr,
                momentum=self.momentum,
                nesterov=True,
                weight_decay=self.weight_decay,
                schedule=Cosine(c=0.4375),
            ),
        )


# FixMatch's optimizer, tau and lambda_u, the least mu of FedProx's grid, a teacher that can follow within a short run.
FEDSWITCH_DEMO = FedSwitchOpen(
    lr=0.03,
    momentum=0.9,
    weight_decay=0.0001,
    threshold=0.95,
    unlabelled_weight=1.0,
    mu=0.001,
    ratio=0.9,
    beta=0.0,
)
FEDSWITCH_LAPTOP = FedSwitchOpen(
    lr=0.03,
    momentum=0.9,
    weight_decay=0.0001,
    threshold=0.95,
    unlabelled_weight=1.0,
    mu=0.001,
    ratio=0.9,
    beta=0.0,
)

FEDSWITCH: Mapping[str, tuple[Callable[[str], Environment], FedSwitchOpen]] = {
    "demo": (digits_scale, FEDSWITCH_DEMO),
    "laptop": (mnist_scale, FEDSWITCH_LAPTOP),
}


def fedswitch(profile: str) -> Experiment:
    """FedSwitch in the arena's environment of that profile, with the values above. Raises ConfigError."""
    if profile not in FEDSWITCH:
        raise ConfigError(f"--profile: {profile!r} has no declaration for FedSwitch; choose {' or '.join(FEDSWITCH)}")
    scale, values = FEDSWITCH[profile]
    return scale(profile).experiment(values.entry())
