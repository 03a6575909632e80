"""Hyperparameters that a paper tuned and does not print: where the study of a method begins (`fssl tune`).

FedSwitch (arXiv:2301.10114, section 5.3): "we tuned the learning rate, pseudo-label threshold, weight of the unlabeled
loss, weight decay, optimizer momentum, and EMA decay"; none is printed, nor are mu of the algorithms and the prior beta
of Eq. 3. The start is the arena's entry: FixMatch's optimizer, tau and lambda_u, the least mu of FedProx's grid, a
teacher that can follow within a short run, beta = 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.arena import Environment, digits_scale, mnist_scale
from benchmark.papers.arena_entries import ENTRIES

FEDSWITCH: Mapping[str, Callable[[str], Environment]] = {"demo": digits_scale, "laptop": mnist_scale}


def fedswitch(profile: str) -> Experiment:
    """FedSwitch in the arena's environment of that profile. Raises ConfigError."""
    if profile not in FEDSWITCH:
        raise ConfigError(f"--profile: no study of FedSwitch for {profile!r}; choose {' or '.join(FEDSWITCH)}")
    (entry,) = [entry for entry in ENTRIES if entry.name == "FedSwitch"]
    start = FEDSWITCH[profile](profile).experiment(entry)
    return replace(start, method=replace(start.method, beta=0.0))
