"""Limit cases: at one value of a hyperparameter, a method is another one."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

from benchmark.experiment import Experiment
from benchmark.methods.easgd import MovingRate
from benchmark.methods.ssfl import Grouping
from benchmark.optim.sgd import Constant
from tests.federated.helpers import difference, weights_after
from tests.methods.golden import BASE, of


class Limit(NamedTuple):
    method: Experiment  # at the limit
    other: Experiment  # what it then is
    beyond: Experiment  # the method away from the limit
    tolerance: float = 0.0


FEDAVG = of("supervised_fl", "everywhere")
UNIFORM = of("supervised_fl", "everywhere", weighting="uniform")
FLFL: dict[str, Any] = {"threshold": 0.13, "rho": 1.0}
CBAFED: dict[str, Any] = {"setting": "some_clients", "base": 0.03, "labelled_epochs_each": 1, "residual_every": 9}
RSCFED: dict[str, Any] = {"setting": "some_clients", "M": 1, "subset": 4}
FIXMATCH: dict[str, Any] = {"threshold": 0.14, "mu": 0.1}
LABELLERS: dict[str, Any] = {"setting": "share", "threshold": 0.14}
# FedDure's three optimizer steps a batch have places of their own in a schedule.
EVEN: dict[str, Any] = {**LABELLERS, "optimizer": replace(BASE.optimizer, schedule=Constant())}
FREE: dict[str, Any] = {"shares": "equal", "server_momentum": 0.0}
ALL: dict[str, Any] = {"setting": "share", "threshold": 0.0}

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
    "LG-FedAvg whose layers are all common": Limit(
        of("lg_fedavg", "everywhere", fedavg_rounds=2), FEDAVG, of("lg_fedavg", "everywhere", fedavg_rounds=1)
    ),
    "FedProx without mu": Limit(
        of("supervised_fl", "everywhere", proximal="full"), FEDAVG, of("supervised_fl", "everywhere", mu=5.0)
    ),
    "Overlap-SGD without momentum": Limit(
        of("overlap_sgd", "everywhere", alpha=0.2, beta=0.0),
        of("easgd", "everywhere", elastic=MovingRate(beta=0.8)),
        of("overlap_sgd", "everywhere", alpha=0.2),
        1e-6,
    ),
    "RSCFed with one subset of all": Limit(
        of("rscfed", **RSCFED, beta=0.0), of("fed_consist", "some_clients"), of("rscfed", **RSCFED, beta=1e4), 1e-6
    ),
    "(FL)^2 with a perturbation of length 0": Limit(
        of("flfl", **{**FLFL, "rho": 0.0}), of("flfl", **FLFL, consistency_weight=0.0), of("flfl", **FLFL), 1e-6
    ),
    "CBAFed that keeps no pseudo-label": Limit(
        of("cbafed", **{**CBAFED, "base": 1.0}, cap=1.0, tail=0.0),
        of("supervised_fl", "some_clients"),
        of("cbafed", **CBAFED),
    ),
    "one group": Limit(of("ssfl", averaging=Grouping(S=1)), of("ssfl"), of("ssfl", averaging=Grouping(S=2))),
    "FixMatch-LPL": Limit(
        of("fixmatch_lpl", **LABELLERS, forward="apart"),
        of("fedprox_fixmatch", **LABELLERS, mu=0.0),
        of("fixmatch_gpl", **LABELLERS),
        1e-6,
    ),
    "FixMatch-GPL": Limit(
        of("fixmatch_gpl", "drawn_apart", threshold=0.14),
        of("ts_server_ema", "drawn_apart", threshold=0.14, mu=0.0, ratio=0.0),
        of("fixmatch_lpl", "drawn_apart", threshold=0.14),
        1e-6,
    ),
    "SAGE that counts every image and trusts p_G alone": Limit(
        of("sage", **ALL, half_gap=1e-9), of("fixmatch_gpl", **ALL), of("sage", **ALL), 1e-6
    ),
    "ProxyFL that keeps every image, and uses no proxy": Limit(
        of("proxyfl", **ALL, proxy_weight=0.0, tuning_passes=0),
        of("fixmatch_gpl", **ALL),
        of("proxyfl", **ALL, proxy_weight=0.0, tuning_passes=1),
        1e-6,
    ),
    "TS-Client EMA whose teacher is the student": Limit(
        of("ts_client_ema", **FIXMATCH, ratio=0.0),
        of("fedprox_fixmatch", **FIXMATCH),
        of("ts_client_ema", **FIXMATCH, ratio=0.5),
    ),
    "FedSwitch that never sends a teacher": Limit(
        of("fedswitch", **FIXMATCH, rule="student"),
        of("fedprox_fixmatch", **FIXMATCH),
        of("fedswitch", **FIXMATCH, rule="teacher", ratio=0.5),
    ),
    **{
        f"{kind} without unlabelled images": Limit(
            of(kind, **EVEN, **fields, unlabelled_weight=0.0),
            of("supervised_fl", "share", batch_size=4, weighting="uniform", optimizer=EVEN["optimizer"]),
            of(kind, **EVEN),
            1e-6,
        )
        for kind, fields in {"flexmatch_lpl": {}, "fedlabel": {}, "feddure": {}, "feddb": FREE}.items()
    },
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
