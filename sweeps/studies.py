"""The tuning studies that are declared: what no paper prints, over which ranges, and why."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.arena import Environment, digits_scale, mnist_scale
from benchmark.papers.arena_entries import ENTRIES
from sweeps.tune import Span, Study

FEDSWITCH: Mapping[str, Callable[[str], Environment]] = {"demo": digits_scale, "laptop": mnist_scale}


def fedswitch(profile: str) -> Experiment:
    """Where the study begins: the arena's entry (FixMatch's optimizer, tau, lambda_u; the least mu of FedProx's grid;
    a teacher that can follow within a short run), with beta = 0. Raises ConfigError."""
    if profile not in FEDSWITCH:
        raise ConfigError(f"--profile: no study of FedSwitch for {profile!r}; choose {' or '.join(FEDSWITCH)}")
    (entry,) = [entry for entry in ENTRIES if entry.name == "FedSwitch"]
    start = FEDSWITCH[profile](profile).experiment(entry)
    return replace(start, method=replace(start.method, beta=0.0))


FEDSWITCH_OPEN = Study(
    name="fedswitch/open",
    title="FedSwitch: the hyperparameters that its paper tuned and does not print",
    reason='Section 5.3 of arXiv:2301.10114: "we tuned the learning rate, pseudo-label threshold, weight of the '
    'unlabeled loss, weight decay, optimizer momentum, and EMA decay"; no value is given, nor are mu and beta.',
    experiment=fedswitch,
    profiles=tuple(FEDSWITCH),
    space=(
        Span(
            field="optimizer.lr",
            low=0.005,
            high=0.1,
            scale="log",
            reason="FixMatch's .03 within; at a fifth of it labels are hardly fitted in so few steps, at three times "
            "momentum .9 begins to overshoot",
        ),
        Span(
            field="optimizer.momentum",
            low=0.5,
            high=0.97,
            scale="log below one",
            reason="momentum restarts at a client in every round, so little past 1 - 1/T can act; .5 is nearly none",
        ),
        Span(
            field="optimizer.weight_decay",
            low=1e-5,
            high=5e-3,
            scale="log",
            reason="SSFL's 1e-4 and FixMatch's, SemiFL's and RSCFed's 5e-4 within, a decade to either side",
        ),
        Span(
            field="method.threshold",
            low=0.5,
            high=0.99,
            scale="log below one",
            reason="FixMatch's .95 within; below .5 labels are kept that the network itself thinks wrong",
        ),
        Span(
            field="method.unlabelled_weight",
            low=0.1,
            high=5.0,
            scale="log",
            reason="FixMatch's 1 within; here clients hold no labels, so that it scales their learning rate alone "
            "(but for mu): a tenth and five times of it show that",
        ),
        Span(
            field="method.mu",
            low=1e-4,
            high=0.3,
            scale="log",
            reason="FedProx's grid (.001 to 1) without its end, at which clients would hardly move in T steps; a tenth "
            "of its least value stands for none",
        ),
        Span(
            field="method.ratio",
            low=0.5,
            high=0.99,
            scale="log below one",
            reason="a memory of 2 to 100 rounds at the server, and of as many steps at a client; more than the run has",
        ),
        Span(
            field="method.beta",
            low=0.0,
            high=1.6,
            reason="0 for balanced clients; ln 10 = 2.3 for one class a client, which R = .4 is far from. Past the "
            "divergences that occur, the rule merely turns round",
        ),
    ),
)

STUDIES: Mapping[str, Study] = {study.name: study for study in (FEDSWITCH_OPEN,)}
