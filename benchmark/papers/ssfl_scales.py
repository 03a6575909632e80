"""SSFL under the reduced profiles: what `profiles.py` does to Table 2, carried over to the factors the others vary.

Lengths count local steps, so that T moves the number of rounds, as in the paper; N_s, K and C keep their proportions
as far as every client holds 8 images and the cohort ends in the time a profile promises.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.fedmatch import FedMatch
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.ssfl import SSFL
from benchmark.papers.profiles import profile_named, reduced
from benchmark.papers.ssfl_settings import CLASSES, EPOCHS, Setting, experiment

T_OF_PROFILES = 16  # the rounds of `profiles.py` are T = 16 local steps long
PAPER_N_S = {
    "cifar10": 1000,
    "svhn": 1000,
    "emnist_balanced": 4700,
    "stl10": 1000,
}  # the N_s for which the profiles' stands


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A reduced profile: its stand-in, and its bounds on clients."""

    data: str  # the stand-in, for people
    images: int  # that clients hold where the server has no labels
    share: float  # of the paper's K and C
    rounds: int  # of T = 16 local steps: the length of a run
    most_clients: int  # K, so that every client holds 8 images or more
    largest_cohort: int  # C, so that a run ends in the time the profile promises
    measured_every: int  # rounds of 16 steps between gradient diversities where they are wanted
    always_measured: bool  # every run of the profile is


SCALES: Mapping[str, Scale] = {
    # 60,000 images: 470 clients hold 125 each. 25: a measurement passes over all images of the cohort.
    "laptop": Scale(
        data="MNIST",
        images=59_000,
        share=1.0,
        rounds=100,
        most_clients=470,
        largest_cohort=30,
        measured_every=25,
        always_measured=False,
    ),
    # 1,347 unlabelled images: 160 clients hold 8 each. 12 clients and 60 rounds, of which the server has the first 20:
    # about 100 runs have to end in 25 minutes on two cores.
    "demo": Scale(
        data="digits",
        images=1_397,
        share=0.5,
        rounds=60,
        most_clients=160,
        largest_cohort=12,
        measured_every=20,
        always_measured=True,
    ),
}


def scaled_experiment(setting: Setting, profile: str, *, measured: bool = False) -> Experiment:
    """The setting under a profile. `measured`: with exact gradient diversity also where the profile has it off.

    Raises ConfigError for an unknown profile.
    """
    if profile in SCALES:
        return _reduced(setting, profile, SCALES[profile], measured)
    full = experiment(setting)
    changed = profile_named(profile)(full)
    if profile == "gpu":  # its tests on the test set, every 16 rounds of T = 16, in local steps
        changed = replace(changed, evaluation=Evaluation(every=max(1, 256 // full.federation.T)))
    every = full.evaluation.gradient_diversity_every or (full.federation.rounds // 10 if measured else 0)
    share = changed.federation.rounds / full.federation.rounds
    return replace(changed, evaluation=replace(changed.evaluation, gradient_diversity_every=round(every * share)))


def cohort_of(setting: Setting, scale: Scale) -> tuple[int, int]:
    """K and C: the paper's share, two clients in a cohort at least; where all clients take part, they still do."""
    C = min(max(min(2, setting.C), round(setting.C * scale.share)), scale.largest_cohort)
    if setting.C == setting.K:
        return C, C
    return min(round(setting.K * scale.share), scale.most_clients), C


def _reduced(setting: Setting, profile: str, scale: Scale, measured: bool) -> Experiment:
    full = experiment(setting)
    example = profile_named(profile)(experiment(replace(setting, method="FedAvg", labels="server")))  # as Table 2's
    K, C = cohort_of(setting, scale)
    T = full.federation.T
    longer = 1.0 if setting.network == "resnet9" else setting.E / EPOCHS[setting.data]  # Table 3 has its own length
    steps = round(scale.rounds * T_OF_PROFILES * longer)
    on = measured or scale.always_measured
    return replace(
        example,
        data=_data(setting, example.data, scale),
        model=replace(example.model, norm="bn" if setting.norm == "bn" else "gn"),
        method=_method(full.method, example.method, T),
        federation=Federation(K=K, C=C, T=T, rounds=steps // T),
        evaluation=Evaluation(
            every=max(1, example.evaluation.every * T_OF_PROFILES // T),
            gradient_diversity_every=scale.measured_every * T_OF_PROFILES // T if on else 0,
        ),
    )


def _data(setting: Setting, example: Data, scale: Scale) -> Data:
    """N_s in the paper's ratio. With labels at clients, a share of each one's: 5 of each class would be too many."""
    classes = CLASSES[setting.data]
    N_s = example.N_s * (setting.N_s // classes * classes) // PAPER_N_S[setting.data]
    if setting.labels in ("every_client", "share"):
        return replace(example, N_s=0, label_setting="share", labelled_share=N_s / scale.images)
    return replace(example, N_s=N_s, label_setting=setting.labels)


def _method(method: Any, example: SSFL, T: int) -> Any:
    """The method with the profile's batch sizes and a warm start of as many local steps as at T = 16."""
    warm = example.warm_start_rounds * T_OF_PROFILES // T
    if isinstance(method, SSFL):
        return reduced(method, batch_size=example.batch_size, warm_start_rounds=warm)
    if isinstance(method, FixMatch):  # as the rung "Central FixMatch" of Table 2
        return replace(method, batch_size=example.batch_size, unlabelled_ratio=1, warm_start_rounds=warm)
    if isinstance(method, DataSharing | FedMatch):
        B = example.batch_size
        return replace(method, batch_size=B, server_batch_size=B, warm_start_rounds=warm)
    return replace(method, batch_size=example.batch_size)
