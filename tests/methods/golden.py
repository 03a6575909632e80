"""Compute golden traces: the numbers of two rounds of each method on the 8x8 digits, which a change must not move
unnoticed.

`python -m tests.methods.golden` writes them again, and `python -m tests.methods.golden float64 >
tests/methods/golden64.json` writes those in float64. Review the difference before you commit it.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmark.config import values_before
from benchmark.data.partition import ClassSkew, Dirichlet, Shards
from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule
from benchmark.methods.fedirm import FedIRM
from benchmark.methods.fedmatch import Lambdas
from benchmark.methods.registry import METHODS
from benchmark.methods.ssfl import Grouping, SelfTraining, Supervised
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of

FOLDER = Path(__file__).parent / "golden"
BASE = tiny_experiment()
SIZES = {"batch_size": 8, "server_batch_size": 8, "labelled_batch_size": 4}
SLOW = replace(BASE.optimizer, lr=0.02)
SLOWER = replace(BASE.optimizer, lr=0.005)
# Measured since 2026-11-28 without an influence on training; tests/methods/test_proxyfl.py counts them again.
NOT_IN_TRACES = frozenset({"pseudo/candidates", "pseudo/unselected_accuracy"})


def of(
    kind: str,
    setting: Any = "server",
    *,
    norm: Any = "gn",
    optimizer: Any = BASE.optimizer,
    partition: Any = None,
    K: int = 4,
    **fields: Any,
) -> Experiment:
    """Build the tiny experiment with this method.

    With the label setting "drawn_apart", labelled images are distributed independently of the others, as in SAGE.
    """
    apart = setting == "drawn_apart"
    known = getattr(METHODS[kind], "__dataclass_fields__", {})
    sizes = {name: size for name, size in SIZES.items() if name in known}
    if kind == "ssfl":
        fields = {"objective": BASE.method.objective, **fields}
    return replace(
        BASE,
        data=replace(BASE.data, label_setting=setting, N_s={"drawn_apart": 0, "open": 18}.get(setting, BASE.data.N_s)),
        partition=partition or (Dirichlet(alpha=0.5, rule="sage") if apart else ClassSkew(R=0.4)),
        model=replace(BASE.model, norm=norm),
        method=METHODS[kind](**{**sizes, **fields}),
        federation=replace(BASE.federation, K=K, C=K),
        optimizer=optimizer,
    )


# RSCFed exactly as in the paper, except for its round: the defaults at the time when these traces were made.
PAPER: dict[str, Any] = {"unlabelled_weight": 1.0, "ema_warm_up": "paper", "teacher_start": "paper"}
PER_SUBSET: dict[str, Any] = {"M": 2, "subset": 3, "labelled_weight": "per_subset", **PAPER}
RELEASED_RSCFED: dict[str, Any] = dict.fromkeys(
    ("labelled_weight", "beta_rule", "distance", "ema_warm_up", "teacher_start", "momentum"), "released_code"
)
HALF: dict[str, Any] = {"threshold": 0.14, "ratio": 0.5, "optimizer": SLOW}  # some labels are also selected in round 2
ONE: dict[str, Any] = {"threshold": 0.14, "optimizer": SLOW}
# In both rounds some confidences are above tau and others below it, so that only a part of the labels is selected.
TWO: dict[str, Any] = {"threshold": 0.14, "optimizer": SLOWER}
DB: dict[str, Any] = {"threshold": 0.115, "optimizer": SLOWER}
# All eleven implementation choices of ProxyFL.
AS_IN_THE_PAPER: dict[str, Any] = dict.fromkeys(
    ("projections", "labelled_candidates", "margin", *values_before(METHODS["proxyfl"])), "paper"
)
# FedMatch has helpers from round 2. With lambda_s and lambda_l2 of 10 it needs a small learning rate and no momentum.
MATCH: dict[str, Any] = {"helper_interval": 2, "optimizer": replace(SLOWER, momentum=0.0, nesterov=False)}

TRACES = {
    "crl-fedavg": of("ssfl"),
    "crl-grouping": of("ssfl", averaging=Grouping(S=2)),
    "crl-released": of("ssfl", averaging=Grouping(S=2), momentum="released_code", server_models="released_code"),
    "crl-batch-norm": of("ssfl", norm="bn"),
    "crl-dirichlet": of("ssfl", partition=Dirichlet(alpha=0.5)),
    "self-training": of("ssfl", objective=SelfTraining(threshold=0.14)),
    "crl-labels-at-client": of("ssfl", "every_client", averaging=Grouping(S=2)),
    "crl-labels-at-client-released": of("ssfl", "share", client_labels="released_code"),
    "self-training-labels-at-client": of("ssfl", "every_client", objective=SelfTraining(threshold=0.14)),
    "supervised": of("ssfl", "everywhere", objective=Supervised()),
    "server-only": of("server_only"),
    "server-only-everyones": of("server_only", "everywhere", norm="sbn", images="everyones"),
    "semifl": of("semifl", threshold=0.123),
    "semifl-released": of(
        "semifl", threshold=0.13, mix_source="released_code", order="released_code", momentum="released_code"
    ),
    "semifl-static-batch-norm": of("semifl", norm="sbn", threshold=0.123),
    "semifl-parallel": of("semifl", norm="sbn", threshold=0.14, training="parallel", optimizer=SLOWER),
    "semifl-instance-norm": of("semifl", norm="in", threshold=0.123),
    "flfl": of("flfl", threshold=0.13),
    "flfl-released": of(
        "flfl", norm="sbn", threshold=0.13, anchor="weak", momentum="released_code", warm_start_rounds=1
    ),
    "cbafed": of("cbafed", "some_clients", base=0.03, labelled_epochs_each=1, residual_every=1, optimizer=SLOW),
    "rscfed": of("rscfed", "some_clients", **PER_SUBSET),
    "rscfed-released": of("rscfed", "some_clients", M=2, subset=3, unlabelled_weight=0.02, **RELEASED_RSCFED),
    "rscfed-one-more-client": of(
        "rscfed", "one_more_client", M=2, subset=4, beta=100.0, labelled_weight="released_command", **PAPER
    ),
    "rscfed-partly-labelled": of("rscfed", "share", drawn_twice="reused", **PER_SUBSET),
    "fed-consist": of("fed_consist", "some_clients", norm="bn", **PAPER),
    "fed-consist-every-client": of("fed_consist", "every_client", **PAPER),
    # Entropies begin at ln 10 = 2.3, so that this threshold selects some of the images.
    "fedirm-released": of("fedirm", "some_clients", uncertainty=2.29, least_confidence=0.12),
    "fedirm-adjusted": of(
        "fedirm",
        "one_more_client",
        K=3,  # of 4 clients; the client with labels is in both cohorts
        labelled_share=0.5,
        uncertainty=2.3,
        least_confidence=0.13,
        momentum="released_code",
        **values_before(FedIRM),  # as in run records from before 2026-11-25
    ),
    "fedprox-fixmatch": of("fedprox_fixmatch", **ONE),
    "fedprox-fixmatch-every-client": of("fedprox_fixmatch", "every_client", **ONE),
    "fedprox-fixmatch-one-more-client": of("fedprox_fixmatch", "one_more_client", K=3, **ONE),
    "fedprox-fixmatch-drawn-apart": of("fedprox_fixmatch", "drawn_apart", **ONE),
    "ts-server-ema": of("ts_server_ema", **{**HALF, "threshold": 0.135}, evaluated="teacher"),
    "ts-server-ema-some-clients": of(
        "ts_server_ema", "some_clients", **{**HALF, "threshold": 0.135}, evaluated="teacher"
    ),
    "ts-client-ema": of("ts_client_ema", **HALF),
    "ts-client-ema-share": of("ts_client_ema", "share", **HALF),
    "fedswitch": of("fedswitch", **HALF),
    "fedswitch-some-clients": of("fedswitch", "some_clients", **HALF),
    "fedswitch-share": of("fedswitch", "share", **HALF),
    # Round 2 has no teacher: it was nearer to beta, and the algorithms then do not send it.
    "fedswitch-algorithm": of(
        "fedswitch",
        **{**HALF, "threshold": 0.135},
        rule="algorithm",
        divergence="sum",
        prediction="histogram",
        proximal="full",
        mu=0.1,
        local_ratio=0.9,
    ),
    "fedswitch-originals": of("fedswitch", **HALF, labeller_view="original"),
    "supervised-fl-control": of(
        "supervised_fl", "everywhere", norm="sbn", view="strong", server_momentum=0.5, weighting="uniform"
    ),
    "supervised-fl-everywhere": of("supervised_fl", "everywhere"),
    "supervised-fl-every-client": of("supervised_fl", "every_client"),
    "supervised-fl-proximal": of("supervised_fl", "share", mu=0.5, weighting="uniform"),
    "sage": of("sage", "drawn_apart", **TWO),
    "sage-shared-momentum": of(
        "sage", "every_client", **{**TWO, "threshold": 0.155}, momentum="released_code", forward="apart"
    ),
    "fedlabel": of("fedlabel", "share", **TWO),
    "fixmatch-lpl": of("fixmatch_lpl", "some_clients", **TWO),
    "fixmatch-gpl": of("fixmatch_gpl", "every_client", momentum="kept", **TWO),
    "flexmatch-lpl": of("flexmatch_lpl", "share", momentum="released_code", **TWO),
    # The digits 6 to 9 are unknown: 18 labels of six classes.
    "fedavg-fixmatch": of("fedavg_fixmatch", **ONE),
    "fedavg-fixmatch-open": of("fedavg_fixmatch", "open", threshold=0.23, optimizer=SLOW),
    "fedavg-energy-open": of("fedavg_energy", "open", accepted=0.5, optimizer=SLOW),
    "feddb": of("feddb", "drawn_apart", shares="paper", **DB),
    "feddb-released": of("feddb", "every_client", momentum="kept", forward="apart", **DB),
    "proxyfl": of("proxyfl", "drawn_apart", **TWO),
    "proxyfl-paper": of(
        "proxyfl",
        "every_client",
        projections="paper",
        labelled_candidates="paper",
        margin="paper",
        tuning_passes=3,
        momentum="kept",
        **TWO,
    ),
    "proxyfl-as-in-the-paper": of(
        "proxyfl",
        "drawn_apart",
        tuning_passes=3,
        threshold=0.125,
        optimizer=replace(BASE.optimizer, lr=0.0005),
        **AS_IN_THE_PAPER,
    ),
    "twin-sight": of("twin_sight", "drawn_apart", hidden=16, projected=8, **TWO),
    "twin-sight-paper": of(
        "twin_sight",
        "share",
        hidden=16,
        projected=8,
        neighbours="paper",
        confident="threshold",
        mu=0.0,
        momentum="kept",
        **TWO,
    ),
    "twin-sight-some-clients": of(
        "twin_sight",
        "some_clients",
        hidden=16,
        projected=8,
        mu=0.0,
        neighbours="paper",
        confident="threshold",
        unlabelled_weight=0.5,
        **{**TWO, "threshold": 0.145},
    ),
    "feddure": of("feddure", "drawn_apart", virtual_rate=0.005, **TWO),
    "feddure-released": of(
        "feddure",
        "share",
        threshold=0.14,
        regulator="released_code",
        feedback="released_code",
        ramp_steps=2,
        optimizer=replace(SLOWER, lr=1e-3, rule="adam", nesterov=False),
    ),
    # All three choices as released: the copy also learns from images below the threshold.
    "feddure-copy-of-all": of(
        "feddure",
        "drawn_apart",
        threshold=0.14,
        regulator="released_code",
        feedback="released_code",
        copy_learns="released_code",
        optimizer=SLOWER,
    ),
    "fedmatch": of("fedmatch", threshold=0.17, **MATCH),
    "fedmatch-every-client": of(
        "fedmatch",
        "every_client",
        threshold=0.2,
        lambdas=Lambdas(l1=1e-4),
        psi_threshold=5e-6,
        delta_threshold=5e-5,
        **MATCH,
    ),
    "fedmatch-released": of("fedmatch", "share", threshold=0.2, down="released_code", **MATCH),
    "data-sharing": of("data_sharing", "everywhere", warm_start_rounds=1),
    "data-sharing-server": of("data_sharing", unlabelled_batch_size=8, warm_start_rounds=1, threshold=0.14),
    "easgd": of("easgd", "everywhere"),
    "easgd-some-labels": of("easgd", "share", momentum="reset"),
    "overlap-sgd": of("overlap_sgd", "everywhere"),
    "feddyn": of("feddyn", "everywhere", alpha=0.5),
    "feddyn-share-batch-norm": of("feddyn", "share", norm="bn", alpha=0.1),
    "heterofl": of(
        "heterofl", "everywhere", norm="sbn", widths=(1.0, 0.5, 0.25), partition=Shards(classes_per_client=3)
    ),
    "lg-fedavg": of("lg_fedavg", "everywhere", private_layers=1),
    "fixmatch": of("fixmatch", unlabelled_ratio=2, threshold=0.14),
    "fixmatch-average": of("fixmatch", unlabelled_ratio=2, threshold=0.14, ema=0.9),
    "uda": of("uda", unlabelled_ratio=2, ema=0.9, threshold=0.14, temperature=0.5),
    "pi-model": of("pi_model", ema=0.9),
    "pseudo-labeling": of("pseudo_labeling", ema=0.9, threshold=0.14),
    "mean-teacher": of("mean_teacher", ema=0.9),
    "mixmatch": of("mixmatch", ema=0.9),
    "remixmatch": of("remixmatch", ema=0.9),
}


def trace(
    experiment: Experiment, module: FederatedModule | None = None, rounds: Sequence[int] = (1, 2)
) -> list[dict[str, float]]:
    """Run these rounds; list their metrics, and the sum and the sum of squares of all weights."""
    module = module or module_of(experiment)
    lines = []
    for round_number in rounds:
        module.training_step(round_number, 0)
        weights = next(iter(module.models().values()))
        traced = module.metrics.keys() - NOT_IN_TRACES
        line = {name: float(module.metrics[name]) for name in sorted(traced)}
        line["weights/sum"] = float(sum(value.double().sum() for value in weights.values()))
        line["weights/squares"] = float(sum(value.double().square().sum() for value in weights.values()))
        lines.append(line)
    return lines


def traces_in_float64() -> dict[str, list[dict[str, float]]]:
    """Compute all traces with weights and images in float64, because torch's versions then differ by much less than in
    float32. Change the default of this process; call it in a separate process.
    """
    torch.set_default_dtype(torch.float64)
    return {name: trace(experiment) for name, experiment in TRACES.items()}


def main() -> None:
    if sys.argv[1:] == ["float64"]:
        print(json.dumps(traces_in_float64(), separators=(",", ":")))
        return
    FOLDER.mkdir(exist_ok=True)
    for name, experiment in TRACES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(trace(experiment), indent=1) + "\n")


if __name__ == "__main__":
    main()
