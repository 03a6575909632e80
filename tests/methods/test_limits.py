"""Limit cases that rounds in plain torch do not cover: at a limit of a hyperparameter, two methods are equal."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

from benchmark.experiment import Experiment
from tests.federated.helpers import difference, weights_after
from tests.methods.golden import of


class Limit(NamedTuple):
    method: Experiment  # the method at the limit
    other: Experiment  # the method that it equals there
    beyond: Experiment  # the method away from the limit
    tolerance: float = 0.0


FEDAVG = of("supervised_fl", "everywhere")
UNIFORM = of("supervised_fl", "everywhere", weighting="uniform")
FLFL: dict[str, Any] = {"threshold": 0.13, "rho": 1.0}
CBAFED: dict[str, Any] = {"setting": "some_clients", "base": 0.03, "labelled_epochs_each": 1, "residual_every": 9}
FIXMATCH: dict[str, Any] = {"threshold": 0.14, "mu": 0.1}

LIMITS = {
    "DataSharing that shares nothing": Limit(
        of("data_sharing", "everywhere", warm_start_rounds=0, alpha=0.0),
        FEDAVG,
        of("data_sharing", "everywhere", warm_start_rounds=0),
    ),
    "FedDyn without alpha": Limit(
        of("feddyn", "everywhere", alpha=0.0), UNIFORM, of("feddyn", "everywhere", alpha=0.3)
    ),
    "HeteroFL of one width": Limit(
        of("heterofl", "everywhere", norm="sbn", widths=(1.0,)),
        replace(UNIFORM, model=replace(UNIFORM.model, norm="sbn")),
        of("heterofl", "everywhere", norm="sbn", widths=(0.5,)),
    ),
    "(FL)^2 with a perturbation of length 0": Limit(
        of("flfl", **{**FLFL, "rho": 0.0}), of("flfl", **FLFL, consistency_weight=0.0), of("flfl", **FLFL), 1e-6
    ),
    "CBAFed that keeps no pseudo-label": Limit(
        of("cbafed", **{**CBAFED, "base": 1.0}, cap=1.0, tail=0.0),
        of("supervised_fl", "some_clients"),
        of("cbafed", **CBAFED),
    ),
    "FedSwitch that never sends a teacher": Limit(
        of("fedswitch", **FIXMATCH, rule="student"),
        of("fedprox_fixmatch", **FIXMATCH),
        of("fedswitch", **FIXMATCH, rule="teacher", ratio=0.5),
    ),
    "FedProx-FixMatch without its proximal term": Limit(
        of("fedprox_fixmatch", threshold=0.14, mu=0.0),
        of("fedavg_fixmatch", threshold=0.14),
        of("fedprox_fixmatch", threshold=0.14, mu=1.0),
    ),
    "central FixMatch without unlabelled images": Limit(
        of("fixmatch", unlabelled_weight=0.0), of("fixmatch", warm_start_rounds=2), of("fixmatch", threshold=0.1)
    ),
}


after = cache(partial(weights_after, rounds=2))


@pytest.mark.parametrize("name", LIMITS)
def test_a_method_is_another_one_at_its_limit(name):
    limit = LIMITS[name]
    assert difference(after(limit.method), after(limit.other)) <= limit.tolerance
    assert difference(after(limit.beyond), after(limit.other)) > 1e-6
