"""FedSwitch (arXiv:2301.10114): from a printed line to the experiment, every number with its section.

There is no released code. What section 5.3 tuned and does not print is FixMatch's here (`OPEN`); what the paper takes
over from FedMatch without printing it is FedMatch's released code's (wyjeong/FedMatch, 4947aa2).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from benchmark.data.augment import Augmentation
from benchmark.data.partition import Dirichlet, FedMatchSkew, Iid, Partition
from benchmark.data.tables import FloatArray, IntArray
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.fedmatch import FedMatch, Lambdas
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.ssfl import CRL, SSFL, Grouping
from benchmark.methods.ts_client_ema import TSClientEMA
from benchmark.methods.ts_server_ema import TSServerEMA
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.bounds import ALONE, bound, labels_alone
from benchmark.papers.item import Cell, Item
from benchmark.papers.paper import Paper
from benchmark.papers.scale import REDUCED, Scale, scaled, with_fields
from benchmark.papers.ssfl import FEDMATCH_SGD
from benchmark.papers.table import item, items
from benchmark.papers.values import stand_ins

OWN: Mapping[str, type] = {  # the paper's own, or run by it
    "FedProx-FixMatch": FedProxFixMatch,
    "TS-Server EMA": TSServerEMA,
    "TS-Client EMA": TSClientEMA,
    "FedSwitch": FedSwitch,
}
# Sections 5.1 and 6.2. "Streaming-NonIID" is Fashion-MNIST's, in ten steps, with FedMatch's ten types of clients.
PARTITIONS: Mapping[str, Partition] = {
    "Batch-IID": Iid(),
    "Batch-NonIID": FedMatchSkew(),
    "Streaming-NonIID": FedMatchSkew(),
}
CLASSES = 10
# Training and test images together, from which the paper draws its own split.
IMAGES = {"cifar10": 60_000, "fashion_mnist": 70_000, "mnist": 70_000, "digits": 1797}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table or figure of FedSwitch: a partition by name, or a Dirichlet alpha."""

    method: str  # a key of OWN, FedMatch or FedRGD (SSFL's grouping)
    labels: Literal["Labels at Client", "Labels at Server"] = "Labels at Server"  # Figure 4; assumed for Figures 2, 3
    partition: Literal["Batch-IID", "Batch-NonIID", "Streaming-NonIID"] | None = None
    alpha: float | None = None  # of Dirichlet(alpha p): the sum of the ten concentrations (Hsu et al., section 5.4)

    @property
    def streaming(self) -> bool:
        return self.partition == "Streaming-NonIID"

    @property
    def at_clients(self) -> bool:
        return self.labels == "Labels at Client"


# FixMatch's tau, lambda_u, momentum, rate and schedule; mu the least of FedProx's grid (section 5.3 prints none).
OPEN: Mapping[str, Any] = {"threshold": 0.95, "unlabelled_weight": 1.0, "mu": 0.001}
OPEN_SGD = SGD(lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4, schedule=Cosine(c=0.4375))


def experiment(setting: Setting) -> Experiment:
    """The line as published."""
    e = Experiment(
        data=data_of(setting),
        # Section 5.4 for a Dirichlet alpha.
        partition=PARTITIONS[setting.partition]
        if setting.partition
        else Dirichlet(alpha=setting.alpha or 0.0, rule="fedswitch"),
        model=Model(network="resnet9", norm="none"),  # not said; FedMatch's, which the paper follows
        method=method_of(setting),
        federation=federation_of(setting),
        optimizer=FEDMATCH_SGD if setting.method == "FedMatch" else OPEN_SGD,
        evaluation=Evaluation(every=8 if setting.streaming else 20),  # 20 rounds: an epoch of section 6.1
    )
    return with_prior(e)


def data_of(setting: Setting) -> Data:
    """Images for training, validation and test of section 5.1, and labels of section 5.2.

    56,000 / 2,000 / 2,000 of CIFAR-10's 60,000 images and 63,000 / 3,500 / 3,500 of Fashion-MNIST's 70,000. 5 labels a
    class at each client, or 100 a class at the server (section 5.1 says 5,000, which does not leave 550 images a
    client). Fashion-MNIST's labels are not given: the same numbers.
    """
    held_out = 3500 if setting.streaming else 2000
    where: Mapping[str, Any] = {"N_s": 0, "label_setting": "every_client"} if setting.at_clients else {"N_s": 1000}
    return Data(
        name="fashion_mnist" if setting.streaming else "cifar10",
        N_validation=held_out,
        pooled_test=held_out,
        streaming_steps=10 if setting.streaming else 1,  # section 5.2
        augmentation=Augmentation(),
        **where,
    )


def method_of(setting: Setting) -> Any:
    if setting.method == "FedMatch":  # its released config.py:18-85
        if not setting.at_clients:
            return FedMatch()
        return FedMatch(lambdas=Lambdas(l1=1e-4), psi_threshold=5e-6, delta_threshold=5e-5, batch_size=102)
    if setting.method == "FedRGD":
        objective, averaging = CRL(threshold=0.95), Grouping(S=2)
        return SSFL(objective=objective, averaging=averaging, batch_size=100, server_batch_size=100)
    if setting.method not in OWN:
        raise ConfigError(f"method: {setting.method!r} is not in a table of FedSwitch")
    # The teachers' ratio is Mean Teacher's; tuned, not printed.
    teacher = {} if setting.method == "FedProx-FixMatch" else {"ratio": 0.999}
    return OWN[setting.method](**OPEN, **teacher, batch_size=100, server_batch_size=100)


def federation_of(setting: Setting) -> Federation:
    """Section 5.2: one epoch a round; 5 of 100 clients, or all of 10.

    800 epochs are 16,000 rounds of 5 clients (section 6.1), and taken for 800 rounds of all clients. T has no effect
    where epochs are given. Grouping counts steps: six pass over 510 or 550 images in batches of 100.
    """
    length: Mapping[str, Any] = {"T": 6} if setting.method == "FedRGD" else {"T": 1, "epochs": 1}
    if setting.streaming:
        return Federation(K=10, C=10, rounds=800, **length)
    return Federation(K=100, C=5, rounds=16_000, **length)


def with_prior(e: Experiment) -> Experiment:
    """FedSwitch with its beta of Eq. 3, "the amount of expected imbalance"; other methods as they are.

    The paper does not print beta. Here it is the mean divergence of the clients' true classes from equal shares.
    """
    return replace(e, method=replace(e.method, beta=prior_of(e))) if isinstance(e.method, FedSwitch) else e


def prior_of(e: Experiment) -> float:
    """The clients' mean divergence from equal shares, in nats, to two digits."""
    return round(float(divergence_K(clients_of(e)).mean()), 2)


def clients_of(e: Experiment) -> IntArray:
    """(K, d) images of each class at each client, for one draw of the partition with equal classes."""
    data, K = e.data, e.federation.K
    at_clients = K * CLASSES * data.labels_per_client if data.label_setting == "every_client" else 0
    training = IMAGES[data.name] - data.pooled_test
    left = min(training, data.images or training) - data.N_s - data.N_validation - at_clients
    return _drawn(e.partition, K, left // CLASSES)


@cache
def _drawn(partition: Partition, K: int, images_of_a_class: int) -> IntArray:
    return partition.shares(np.full(CLASSES, images_of_a_class), K, seed=0)


def divergence_K(counts_Kd: IntArray) -> FloatArray:
    """(K,) nats between each client's classes and equal shares."""
    share_Kd = counts_Kd / counts_Kd.sum(axis=1, keepdims=True)
    terms_Kd = share_Kd * np.log(share_Kd, where=share_Kd > 0, out=np.zeros_like(share_Kd))
    return np.asarray(math.log(counts_Kd.shape[1]) + terms_Kd.sum(axis=1))


@dataclass(frozen=True, kw_only=True)
class StandIn(Scale):
    """A stand-in of FedSwitch."""

    labels_a_class: int  # at each client, where clients hold the labels
    batch_size_at_clients: int | None = None  # where they do; None: the same
    client_images: int | None = None  # without labels, that the clients share; None: all that are left


def scale(setting: Setting, profile: str) -> Scale:
    """The stand-in of a line.

    A teacher's ratio counts rounds, and is smaller in a short run. beta is of the stand-in's own clients. Clients hold
    equally many images under both label settings.
    """
    stand_in = stand_ins("fedswitch", StandIn)[profile]["streaming" if setting.streaming else "batch"]
    data, size, each = dict(stand_in.data), stand_in.batch_size, stand_in.labels_a_class
    labels = data["N_s"]
    if setting.at_clients:
        del data["N_s"]
        data["labels_per_client"] = each
        labels, size = CLASSES * each * (stand_in.K or 1), stand_in.batch_size_at_clients or size
    if stand_in.client_images:
        data["images"] = stand_in.client_images + data["N_validation"] + labels
    stand_in = replace(stand_in, data=data, batch_size=size, method={"ratio": 0.9})
    reduced = with_prior(scaled(experiment(setting), stand_in, profile))
    if setting.method == "FedSwitch":
        return replace(stand_in, method={**stand_in.method, "beta": reduced.method.beta})
    if setting.method == "FedRGD":  # steps replace an epoch
        return replace(stand_in, T=steps_of(reduced))
    return stand_in


def additions(name: str, cells: Sequence[Cell]) -> Iterable[Cell]:
    """The bounds, one for each way in which labels are held.

    At clients, too, a bound makes as many steps a round as the cells, which repeat their labels until all images are
    through.
    """
    if name not in BOUNDED:
        return
    firsts: dict[object, Cell] = {}
    for cell in cells:
        e = cell.experiment
        if cell.role == "published":  # labels at clients: of the same clients
            firsts.setdefault((e.data, e.partition if e.data.label_setting == "every_client" else None), cell)
    for cell in firsts.values():
        e = labels_alone(cell.experiment)
        if e.data.label_setting == "every_client":
            e = replace(e, federation=replace(e.federation, T=steps_of(cell.experiment), epochs=None))
        alone = bound(e)
        if len(firsts) > 1:
            label = cell.label.removesuffix(str(cell.setting["method"])) + ALONE
            alone = replace(alone, label=label, setting={**cell.setting, "method": ALONE})
        yield alone


def steps_of(e: Experiment) -> int:
    """The batches in which a client passes over its images of a round."""
    images = int(clients_of(e).sum(axis=1).max()) / e.data.streaming_steps
    return math.ceil(images / e.method.batch_size)


BOUNDED = ("tab2", "tab3", "fig4", "fig5")  # the items that show accuracies


def drawn_otherwise(e: Experiment, **change: Any) -> Experiment:
    """The experiment with another draw of clients, and their beta."""
    assert isinstance(e.partition, Dirichlet)
    return with_prior(replace(e, partition=replace(e.partition, **change)))


def skewed_labels(e: Experiment) -> Experiment:
    """Labels of a client's classes in proportion (section 5.4) instead of equally many of each; as many in all."""
    labels = CLASSES * e.data.labels_per_client
    share = round(labels / (labels + float(clients_of(e).sum(axis=1).mean())), 4)
    return with_prior(
        replace(e, data=replace(e.data, label_setting="share", labelled_share=share, labels_per_client=5))
    )


def more_labels(e: Experiment) -> Experiment:
    """Five times the labels at the server: 5,000 at the paper's scale (section 5.1)."""
    return with_prior(replace(e, data=replace(e.data, N_s=5 * e.data.N_s)))


# The best trial of `fssl tune fedswitch/open --profile laptop` (results/studies/fedswitch-open-laptop.json) without its
# beta, which has a switch of its own.
FOUND_OPTIMIZER: Mapping[str, Any] = {"lr": 0.0408, "momentum": 0.9015, "weight_decay": 3.47e-05}
FOUND_METHOD: Mapping[str, Any] = {"threshold": 0.782, "unlabelled_weight": 0.924, "mu": 0.0459, "ratio": 0.879}


def found_values(e: Experiment) -> Experiment:
    """The experiment with those hyperparameters of the search that the method has."""
    return replace(e, method=with_fields(e.method, FOUND_METHOD), optimizer=replace(e.optimizer, **FOUND_OPTIMIZER))


PAPER = Paper(
    name="fedswitch",
    setting=Setting,
    experiment=experiment,
    scale=scale,
    additions=additions,
    computed={
        "classes a client": lambda e: round(float((clients_of(e) > 0).sum(axis=1).mean()), 2),  # Figure 2
        "KL, nats": prior_of,
    },
    changes={
        "alpha_of_each_class": lambda e: drawn_otherwise(e, alpha=CLASSES * e.partition.alpha),  # type: ignore[union-attr]
        "clients_at_once": lambda e: drawn_otherwise(e, rule="fedswitch_at_once"),
        "skewed_labels": skewed_labels,
        "more_labels": more_labels,
        "found_values": found_values,
    },
)


def tab1(profile: str) -> Item:
    """One run a method is enough: every run exchanges the same, in a reduced profile too."""
    return replace(item(PAPER, "tab1", profile), seeds=1)


OWN_PROFILES: Mapping[str, tuple[str, ...]] = {"tab1": REDUCED}  # items whose runs do not differ in all profiles
ITEMS: Mapping[str, Callable[..., Item]] = {
    "tab1": tab1,
    **items(PAPER, ("tab2", "tab3", "fig2", "fig3_left", "fig3_right", "fig4", "fig5")),
}
