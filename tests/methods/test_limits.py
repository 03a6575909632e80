"""Limit cases: at one value of a hyperparameter, a method is another one."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import pytest

from benchmark.experiment import Experiment
from benchmark.methods.cbafed import CBAFed
from benchmark.methods.central import UDA, FixMatch, MeanTeacher, PiModel, PseudoLabeling
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.easgd import EASGD, Asymmetric
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.feddb import FedDB
from benchmark.methods.feddyn import FedDyn
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.flfl import FL2
from benchmark.methods.heterofl import HeteroFL
from benchmark.methods.lg_fedavg import LGFedAvg
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.sage import SAGE, FedLabel, FixMatchGPL, FixMatchLPL, FlexMatchLPL
from benchmark.methods.ssfl import FedAvg, Grouping
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.methods.ts_client_ema import TSClientEMA
from benchmark.methods.ts_server_ema import TSServerEMA
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, weights_after
from tests.methods.watch import tiny_with

SSFL = tiny_experiment().method
FEDAVG = SupervisedFL(batch_size=8)
FIXMATCH: dict[str, Any] = {
    "threshold": 0.14, "mu": 0.1, "batch_size": 8, "labelled_batch_size": 4, "server_batch_size": 8
}  # fmt: skip
FEDPROX = FedProxFixMatch(**FIXMATCH)
LABELLERS: dict[str, Any] = {"threshold": 0.14, "batch_size": 8, "labelled_batch_size": 4}
LABELS_ALONE = SupervisedFL(batch_size=4, weighting="uniform")
FLFL = FL2(batch_size=8, server_batch_size=8, threshold=0.13, rho=1.0)
CBAFED = CBAFed(batch_size=8, base=0.03, labelled_epochs_each=3, residual_every=1)


CENTRAL: tuple[Any, ...] = (FixMatch, UDA, PseudoLabeling, PiModel, MeanTeacher)


class Limit(NamedTuple):
    method: Any  # at the limit
    other: Any  # the method that it then is
    beyond: Any = None  # the first method away from the limit; None: not compared
    setting: Any = "everywhere"
    tolerance: float = 0.0
    norm: Literal["gn", "sbn"] = "gn"


LIMITS = {
    "DataSharing that shares nothing": Limit(
        DataSharing(batch_size=8, warm_start_rounds=0, alpha=0.0),
        FEDAVG,
        DataSharing(batch_size=8, warm_start_rounds=0),
    ),
    "FedDyn without alpha": Limit(
        FedDyn(batch_size=8, alpha=0.0), replace(FEDAVG, weighting="uniform"), FedDyn(batch_size=8, alpha=0.3)
    ),
    "HeteroFL of one width": Limit(
        HeteroFL(batch_size=8, widths=(1.0,)),
        replace(FEDAVG, weighting="uniform"),
        HeteroFL(batch_size=8, widths=(0.5,)),
        norm="sbn",
    ),
    "LG-FedAvg whose layers are all common": Limit(
        LGFedAvg(batch_size=8, fedavg_rounds=2), FEDAVG, LGFedAvg(batch_size=8, fedavg_rounds=1)
    ),
    "FedProx without mu": Limit(replace(FEDAVG, proximal="full"), FEDAVG, replace(FEDAVG, mu=5.0)),
    "Overlap-SGD without momentum": Limit(
        OverlapSGD(batch_size=8, alpha=0.2, beta=0.0),
        EASGD(batch_size=8, elastic=Asymmetric(alpha=0.2, beta=0.8)),
        OverlapSGD(batch_size=8, alpha=0.2),
        tolerance=1e-6,
    ),
    "RSCFed with one subset of all": Limit(
        RSCFed(M=1, subset=4, batch_size=8, beta=0.0),
        FedConsist(batch_size=8),
        RSCFed(M=1, subset=4, batch_size=8, beta=1e4),
        setting="some_clients",
        tolerance=1e-6,
    ),
    "(FL)^2 with a perturbation of length 0": Limit(
        replace(FLFL, rho=0.0), replace(FLFL, consistency_weight=0.0), FLFL, "server", tolerance=1e-6
    ),
    "(FL)^2 that is sure of no image": Limit(
        replace(FLFL, threshold=1.0), replace(FLFL, consistency_weight=0.0), FLFL, "server"
    ),
    "CBAFed without former weights": Limit(
        replace(CBAFED, local_residual=0.0, global_residual=0.0),
        replace(CBAFED, residual_every=9),
        CBAFED,
        "some_clients",
    ),
    "CBAFed that keeps no pseudo-label": Limit(
        replace(CBAFED, base=1.0, cap=1.0, tail=0.0, labelled_epochs_each=1, residual_every=9),
        FEDAVG,
        replace(CBAFED, labelled_epochs_each=1, residual_every=9),
        "some_clients",
    ),
    "one group": Limit(replace(SSFL, averaging=Grouping(S=1)), SSFL, replace(SSFL, averaging=Grouping(S=2)), "server"),
    "two equal groups in the first round": Limit(
        replace(SSFL, averaging=Grouping(S=2), client_start="average"),
        replace(SSFL, averaging=FedAvg(server_weight=1 / 3)),
        SSFL,
        "server",
        tolerance=1e-6,
    ),
    "views in one pass": Limit(
        replace(SSFL, objective=replace(SSFL.objective, views="one_forward")), SSFL, setting="server", tolerance=1e-5
    ),
    "FixMatch-LPL": Limit(
        FixMatchLPL(**LABELLERS, forward="apart"),
        replace(FEDPROX, mu=0.0),
        FixMatchGPL(**LABELLERS),
        "share",
        tolerance=1e-6,
    ),
    "FixMatch-GPL": Limit(
        FixMatchGPL(**LABELLERS),
        TSServerEMA(**{**FIXMATCH, "mu": 0.0}, ratio=0.0),
        FixMatchLPL(**LABELLERS),
        "drawn_apart",
        tolerance=1e-6,
    ),
    "SAGE that counts every image and trusts p_G alone": Limit(
        SAGE(**{**LABELLERS, "threshold": 0.0}, half_gap=1e-9),
        FixMatchGPL(**{**LABELLERS, "threshold": 0.0}),
        SAGE(**{**LABELLERS, "threshold": 0.0}),
        "share",
        tolerance=1e-6,
    ),
    "SAGE that counts every image and trusts p_L alone": Limit(
        SAGE(**{**LABELLERS, "threshold": 0.0}, half_gap=1e9),
        FixMatchLPL(**{**LABELLERS, "threshold": 0.0}),
        SAGE(**{**LABELLERS, "threshold": 0.0}),
        "share",
        tolerance=1e-6,
    ),
    "FedDB of clients that are sure of nothing": Limit(
        FedDB(**{**LABELLERS, "threshold": 1.0}, server_momentum=0.0),
        LABELS_ALONE,
        FedDB(**LABELLERS),
        "share",
        tolerance=1e-4,  # the release's shares are not quite equal
    ),
    "ProxyFL that keeps every image, and uses no proxy": Limit(
        ProxyFL(**{**LABELLERS, "threshold": 0.0}, proxy_weight=0.0, tuning_passes=0),
        FixMatchGPL(**{**LABELLERS, "threshold": 0.0}),
        ProxyFL(**{**LABELLERS, "threshold": 0.0}, proxy_weight=0.0, tuning_passes=1),
        "share",
        tolerance=1e-6,
    ),
    **{
        f"{kind.__name__} without unlabelled images": Limit(
            kind(**LABELLERS, unlabelled_weight=0.0), LABELS_ALONE, kind(**LABELLERS), "share", tolerance=1e-6
        )
        for kind in (FixMatchLPL, FixMatchGPL, FlexMatchLPL, FedLabel, SAGE)
    },
    **{
        f"TS-Client EMA whose teacher is the student, {setting}": Limit(
            TSClientEMA(**FIXMATCH, ratio=0.0), FEDPROX, TSClientEMA(**FIXMATCH, ratio=0.5), setting
        )
        for setting in ("server", "every_client")
    },
    **{
        f"FedSwitch that never sends a teacher, {unsent}": Limit(
            FedSwitch(**FIXMATCH, rule="student", unsent_teacher=unsent),
            FEDPROX,
            FedSwitch(**FIXMATCH, rule="teacher", unsent_teacher=unsent, ratio=0.5),
            "server",
        )
        for unsent in ("from_student", "keep_last")
    },
    **{
        f"{kind.__name__} without unlabelled images": Limit(
            kind(batch_size=8, unlabelled_weight=0.0, ema=0.0),
            kind(batch_size=8, warm_start_rounds=2, ema=0.0),
            kind(batch_size=8, threshold=0.1, ema=0.0) if "threshold" in kind.__dataclass_fields__ else None,
            "server",
        )
        for kind in CENTRAL
    },
}  # fmt: skip


def two_rounds(limit: Limit, method: Any) -> Any:
    e: Experiment = tiny_with(method, limit.setting)
    return weights_after(replace(e, model=replace(e.model, norm=limit.norm)), rounds=2)


@pytest.mark.parametrize("name", LIMITS)
def test_a_method_is_another_one_at_its_limit(name):
    limit = LIMITS[name]
    other = two_rounds(limit, limit.other)
    assert difference(two_rounds(limit, limit.method), other) <= limit.tolerance
    if limit.beyond is not None:
        assert difference(two_rounds(limit, limit.beyond), other) > 1e-6
