"""SSFL (arXiv:2008.11364): from a setting of its Table A.2 to the experiment, at full size.

Where Table A.2 is silent the number is the released code's, with its line; `results/published/ssfl/` holds the rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from benchmark.data.augment import Augmentation, RandAugment, Weak
from benchmark.data.partition import ClassSkew
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.averaging import FedAvg, Grouping
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.easgd import EASGD
from benchmark.methods.fedmatch import FedMatch, Lambdas
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.objectives import CRL, SelfTraining, Supervised
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.ssfl import SSFL
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD, Constant, Cosine

BATCH_SIZE = 64  # B of Table A.1
STEPS_PER_EPOCH = 65536 // BATCH_SIZE  # M / B of Table A.1
# Table 3: 1000 images an epoch (--k_img 1000, run_cifar10_res9.sh), an incomplete batch left out.
RESNET9_STEPS_PER_EPOCH = 1000 // BATCH_SIZE

CLASSES = {"cifar10": 10, "svhn": 10, "emnist_balanced": 47, "stl10": 10}
# E of Table A.1, which has no row for STL-10: CIFAR-10's.
EPOCHS = {"cifar10": 300, "svhn": 40, "emnist_balanced": 100, "stl10": 300}
IMAGES = {"cifar10": 50_000, "svhn": 73_257, "emnist_balanced": 112_800}  # for training
REPORTING_STEPS = 16
FIXMATCH_RATIO = 7  # mu of FixMatch, unlabelled images for each labelled one; SSFL does not print it

Rule = Literal["paper", "released_code"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One cell of a table: the columns of Table A.2, and what decides its network and length."""

    data: str  # a data set of CLASSES
    method: str  # a key of METHODS
    labels: Literal["server", "everywhere", "every_client", "share"] = "server"
    R: float  # nominal heterogeneity
    T: int
    N_s: int
    K: int
    C: int
    S: int | None = None  # groups; None: no grouping
    network: Literal["emnist_cnn", "resnet9", "resnet18", "vgg11"]
    norm: Literal["gn", "bn", "none"]
    E: int  # epochs of STEPS_PER_EPOCH local steps

    @property
    def steps(self) -> int:
        """Local steps of a run, at each holder that takes part in every round."""
        return self.E * self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        return RESNET9_STEPS_PER_EPOCH if self.network == "resnet9" else STEPS_PER_EPOCH


def setting_of(cell: Mapping[str, Any]) -> Setting:
    """A line of a transcribed table as a setting; what is not of the setting (value, row, notes) is left out."""
    names = {f.name for f in fields(Setting)}
    return Setting(**{key: value for key, value in cell.items() if key in names})


def experiment(setting: Setting) -> Experiment:
    """The setting exactly as published. Raises ConfigError for a method that the suite has no name for."""
    if setting.method not in METHODS:
        raise ConfigError(f"method: {setting.method!r} is not right; one of {', '.join(METHODS)} would be")
    # Rows 38-40 print T = 1 for the one holder of all images; a round there is a reporting unit, as long as others'.
    T = REPORTING_STEPS if setting.method == "FixMatch" else setting.T
    rounds = setting.steps // T
    # A tenth of the epochs lies between two measurements, as released (train_parallel.py: epoch_interval). EMNIST's
    # runs are those of Table 2, whose records were made without; FixMatch has no cohort.
    measured = setting.data != "emnist_balanced" and setting.method != "FixMatch"
    return Experiment(
        data=data_of(setting),
        partition=ClassSkew(R=setting.R),
        model=Model(network=setting.network, norm=setting.norm, dropout=dropout(setting.network)),
        method=METHODS[setting.method](setting),
        federation=Federation(K=setting.K, C=setting.C, T=T, rounds=rounds),
        optimizer=optimizer_of(setting),
        evaluation=Evaluation(  # once an epoch, as released
            every=setting.steps_per_epoch // T, gradient_diversity_every=rounds // 10 if measured else 0
        ),
    )


def data_of(setting: Setting) -> Data:
    """Who holds the N_s labels: the server, int(N_s / d) of each class (utils_v2.py:477-487), or the clients in equal
    numbers, of each class ("every_client": FedMatch's setting) or of each client's classes in proportion ("share")."""
    classes = CLASSES[setting.data]
    data = Data(
        name=setting.data,
        N_s=setting.N_s // classes * classes,
        augmentation=released_augmentation(),
        unlabelled="extra" if setting.data == "stl10" else "train",
    )
    if setting.labels == "every_client":
        return replace(data, N_s=0, label_setting="every_client", labels_per_client=setting.N_s // classes // setting.K)
    if setting.labels == "share":
        return replace(data, N_s=0, label_setting="share", labelled_share=setting.N_s / IMAGES[setting.data])
    return replace(data, label_setting=setting.labels)


def released_augmentation() -> Augmentation:
    """Flip and reflect-pad crop for every data set, RandAugment of 2 from 14, always a cutout (cifar.py:425-445)."""
    return Augmentation(weak=Weak(), strong=RandAugment(pool="ssfl"))


def dropout(network: str) -> float:
    """.25 in the EMNIST network (EMNIST_model.py:9-24); no other has a place for it."""
    return 0.25 if network == "emnist_cnn" else 0.0


def emnist(*, C: int, T: int = 16, K: int = 47, R: float = 0.4, norm: Literal["none", "gn"] = "none") -> Experiment:
    """EMNIST rows of Table A.2 with the optimizer of Table A.1: E = 100, gamma = 0.03, no warm-up, c = 0.4375.

    norm "none": the released network declares group normalisation and never applies it (EMNIST_model.py:9-24).
    """
    data, E = "emnist_balanced", EPOCHS["emnist_balanced"]
    return experiment(
        Setting(data=data, method="FedAvg", R=R, T=T, N_s=4700, K=K, C=C, network="emnist_cnn", norm=norm, E=E)
    )


def optimizer(
    data: Literal["cifar10", "svhn", "emnist"], rule: Rule = "released_code", epochs: int | None = None
) -> SGD:
    """SGD by Table A.1 and Eq. 11 taken literally ("paper"), or as released (train_LocalSGD.py:228-267).

    Default "released_code", since the printed numbers came from it. They differ in three places: the base learning rate
    of CIFAR-10 and SVHN (0.146; 0.03 x 11 x 64 / 128 = 0.165, train_parallel.py:283), the floor (1e-4; 1e-5 with a
    warm-up and 1e-6 without), and CIFAR-10's length (E = 300, with which Eq. 11 falls to the floor at epoch 69 and
    comes back; 1024, with which it falls once, by epoch 228). SVHN's length is the run's (`epochs`, 40 by default): its
    rate comes back in both, and Table 1's E = 120 moves the whole curve.
    """
    literal = rule == "paper"
    if data == "emnist":
        return SGD(lr=0.03, schedule=Cosine(c=0.4375, floor=1e-4 if literal else 1e-6))
    warmup = 5 * STEPS_PER_EPOCH
    length = {"cifar10": 300 if literal else 1024, "svhn": epochs or EPOCHS["svhn"]}[data]
    # c = 7/16 (2^20 - w) / (200 x 1024 - w) with w warm-up steps, printed as 2.3
    c = 2.3 if literal else released_c(warmup)
    floor = 1e-4 if literal else 1e-5
    schedule = Cosine(c=c, warmup_steps=warmup, steps=length * STEPS_PER_EPOCH, floor=floor)
    return SGD(lr=0.146 if literal else 0.165, schedule=schedule)


def released_c(warmup_steps: int) -> float:
    """c of Eq. 11 as released: 7/16 (2^20 - w) / (200 x 1024 - w) (train_LocalSGD.py:228-229)."""
    return 0.4375 * (2**20 - warmup_steps) / (200 * 1024 - warmup_steps)


def self_training_optimizer() -> SGD:
    """Self-training as released: rate 0.03 and no warm-up (train_parallel.py:283-291), else as CIFAR-10."""
    return SGD(lr=0.03, schedule=Cosine(c=released_c(0), steps=1024 * STEPS_PER_EPOCH, floor=1e-5))


def resnet9_optimizer() -> SGD:
    """Table 3 as released: rate 0.003 x 5 x 64 / 128 (train_parallel.py:283-291), 1024 epochs of 15 steps in Eq. 11."""
    warmup = 5 * RESNET9_STEPS_PER_EPOCH
    schedule = Cosine(c=released_c(warmup), warmup_steps=warmup, steps=1024 * RESNET9_STEPS_PER_EPOCH, floor=1e-5)
    return SGD(lr=0.0075, schedule=schedule)


def fedmatch_optimizer() -> SGD:
    """FedMatch's own: 0.001 without momentum and weight decay (its config.py, modules/train.py: `init_optimizer`)."""
    return SGD(lr=0.001, momentum=0.0, nesterov=False, weight_decay=0.0, schedule=Constant())


def optimizer_of(setting: Setting) -> SGD:
    """The optimizer of a setting, by the released rule (`optimizer` says why)."""
    if setting.method == "FedMatch":
        return fedmatch_optimizer()
    if setting.method == "Self-training":
        return self_training_optimizer()
    if setting.network == "resnet9":
        return resnet9_optimizer()
    names: Mapping[str, Literal["cifar10", "svhn", "emnist"]]
    names = {"cifar10": "cifar10", "svhn": "svhn", "emnist_balanced": "emnist", "stl10": "cifar10"}
    return optimizer(names[setting.data], epochs=setting.E)


def ssfl(averaging: FedAvg | Grouping, objective: CRL | SelfTraining | Supervised) -> SSFL:
    return SSFL(objective=objective, averaging=averaging, batch_size=BATCH_SIZE, server_batch_size=BATCH_SIZE)


def averaged(experiment: Experiment, averaging: FedAvg | Grouping) -> Experiment:
    return replace(experiment, method=replace(experiment.method, averaging=averaging))


def control_of(grouping: Experiment) -> Experiment:
    """FedAvg that gives the server the weight it has inside a group, 1/(C/S + 1): the control that the paper lacks."""
    C, S = grouping.federation.C, grouping.method.averaging.S
    return averaged(grouping, FedAvg(server_weight=1 / (C / S + 1)))


def _objective(setting: Setting) -> CRL | Supervised:
    return Supervised() if setting.labels == "everywhere" else CRL(threshold=0.95)  # tau, section 3.4


def _fedavg(setting: Setting) -> SSFL:
    return ssfl(FedAvg(), _objective(setting))


def _grouping(setting: Setting) -> SSFL:
    if setting.S is None:
        raise ConfigError("S: null groups; a number of groups would be right for grouping")
    # 10, 10, 10, 10, 7 at C = 47, S = 5; 2 and 1 at C = 3, S = 2
    return ssfl(Grouping(S=setting.S, sizes="released_code"), _objective(setting))


def _self_training(setting: Setting) -> SSFL:
    return ssfl(FedAvg(), SelfTraining(threshold=0.95))


def _supervised_fedavg(setting: Setting) -> SupervisedFL:
    return SupervisedFL(batch_size=BATCH_SIZE)


def _fixmatch(setting: Setting) -> FixMatch:
    return FixMatch(threshold=0.95, batch_size=BATCH_SIZE, unlabelled_ratio=FIXMATCH_RATIO)


def _data_sharing(setting: Setting) -> DataSharing:
    epoch = setting.steps_per_epoch // setting.T  # how long it trains on G first is not said: one epoch
    return DataSharing(batch_size=BATCH_SIZE, server_batch_size=BATCH_SIZE, warm_start_rounds=epoch)


def _easgd(setting: Setting) -> EASGD:
    return EASGD(batch_size=BATCH_SIZE)


def _overlap_sgd(setting: Setting) -> OverlapSGD:
    return OverlapSGD(batch_size=BATCH_SIZE)


def _fedmatch(setting: Setting) -> FedMatch:
    if setting.labels == "server":
        return FedMatch()
    return FedMatch(lambdas=Lambdas(l1=1e-4), psi_threshold=5e-6, delta_threshold=5e-5, batch_size=102)


METHODS: Mapping[str, Callable[[Setting], Any]] = {
    "FedAvg": _fedavg,
    "Grouping": _grouping,
    "CRL with BN": _fedavg,  # section 3.4: CRL and FedAvg; the setting's norm tells BN from GN
    "CRL with GN": _fedavg,
    "Self-training": _self_training,
    "Supervised": _fedavg,  # Eq. 6 and FedAvg: the setting's labels are everywhere
    "Supervised FedAvg": _supervised_fedavg,
    "FixMatch": _fixmatch,
    "DataSharing": _data_sharing,
    "EASGD": _easgd,
    "OverlapSGD": _overlap_sgd,
    "FedMatch": _fedmatch,
}
