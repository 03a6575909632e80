"""SAGE's protocol: from a printed line to the experiment, every number with its place.

ProxyFL (arXiv:2602.21078) prints the tables. Their setting is SAGE's released code (Jay-Codeman/SAGE, e90fa96), whose
paper was not at hand; ProxyFL's data and network files are the same but for two projections. No baseline is released:
rows of other methods have the protocol's batches, steps and optimizer, and their own values where those are known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmark.data.augment import Augmentation, RandAugment
from benchmark.data.datasets import known as data_set
from benchmark.data.partition import Dirichlet
from benchmark.data.split import mean_total_variation
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.feddb import FedDB
from benchmark.methods.feddure import FedDure
from benchmark.methods.fedmatch import FedMatch, Lambdas
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.sage import SAGE, FedLabel, FixMatchGPL, FixMatchLPL, FlexMatchLPL
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD, Constant
from benchmark.papers.bounds import ALONE, ALONE_NOTE, bound_of, is_bound, labels_alone
from benchmark.papers.item import UNTRAINED, Cell, Item
from benchmark.papers.paper import Paper
from benchmark.papers.scale import REDUCED, Scale
from benchmark.papers.ssfl import FEDMATCH_SGD
from benchmark.papers.table import item
from benchmark.papers.values import read_tables, stand_ins, values_of

K, C, EPOCHS = 20, 8, 5  # options.py:13-16; section 6.1
BATCHES: Mapping[str, Any] = {"labelled_batch_size": 128, "batch_size": 256}  # SAGE.py:87-132
MU = 0.001  # options.py:53
OPTIMIZER = SGD(lr=0.1, momentum=0.9, nesterov=False, weight_decay=1e-4, schedule=Constant())  # SAGE.py:82
METHODS: Mapping[str, Any] = {
    "FedAvg": SupervisedFL(batch_size=128),  # labels alone, section 6.2; its batches and steps are not printed
    "FedProx": SupervisedFL(batch_size=128, mu=MU),
    "FedAvg-SL": SupervisedFL(batch_size=128),  # with all labels
    "FixMatch-LPL": FixMatchLPL(**BATCHES),
    "LPL-ALL": FixMatchLPL(**BATCHES, threshold=0.0),  # Table 4: no threshold
    "FixMatch-GPL": FixMatchGPL(**BATCHES),
    "GPL-ALL": FixMatchGPL(**BATCHES, threshold=0.0),
    "FedProx+FixMatch": FedProxFixMatch(**BATCHES, mu=MU),
    "FedAvg+FlexMatch": FlexMatchLPL(**BATCHES),
    # options.py:69-74; the two thresholds are FedMatch's own for labels at the clients.
    "FedMatch": FedMatch(**BATCHES, lambdas=Lambdas(l1=1e-4), psi_threshold=5e-6, delta_threshold=5e-5),
    "FedLabel": FedLabel(**BATCHES),
    "FedDB": FedDB(**BATCHES),
    "FedDure": FedDure(**BATCHES),
    "SAGE": SAGE(**BATCHES),
    "ProxyFL": ProxyFL(**BATCHES),
    "GPT alone": ProxyFL(**BATCHES, proxy_weight=0.0),  # Table 2
    "ICPL alone": ProxyFL(**BATCHES, tuning_passes=0),
    "ICPL-Top1": ProxyFL(**BATCHES, tuning_passes=0, candidates=1),  # Table 4, whose ICPL is Table 2's alone
    "ICPL-Top5": ProxyFL(**BATCHES, tuning_passes=0, candidates=5),
}


@dataclass(frozen=True, kw_only=True)
class Set:
    """A data set's numbers, SAGE.py:234-277."""

    images: int  # for training
    rounds: int
    labelled_share: Mapping[str, float] = field(default_factory=lambda: {"10": 0.1, "20": 0.2})  # of the rarest class
    tuning_passes: int = 100  # Q of ProxyFL, proxyfl.py: total_server_epochs / num_rounds


SETS = read_tables(values_of("sage")["sets"], Set, "sage.toml: sets")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table of ProxyFL."""

    data: Literal["cifar10", "cifar100", "svhn", "cinic10"]
    method: str  # a key of METHODS
    alpha: float
    labels: Literal[10, 20] = 10  # percent
    partition: Literal["the paired rule", "the usual rule"] = "the paired rule"

    @property
    def share(self) -> str:
        return str(self.labels)


def experiment(setting: Setting) -> Experiment:
    """The line as published."""
    if setting.method not in METHODS:
        raise ConfigError(f"method: {setting.method!r} is not in a table of SAGE's protocol")
    known, method = SETS[setting.data], METHODS[setting.method]
    if getattr(method, "tuning_passes", 0):
        method = replace(method, tuning_passes=known.tuning_passes)
    holders: Mapping[str, Any] = {"label_setting": "drawn_apart", "labelled_share": known.labelled_share[setting.share]}
    if setting.method == "FedAvg-SL":
        holders = {"label_setting": "some_clients", "labelled_clients": K}
    return Experiment(
        # dataset.py:117-175; SVHN's digits are flipped, too.
        data=Data(name=setting.data, N_s=0, augmentation=Augmentation(strong=RandAugment(pool="ssfl")), **holders),
        partition=Dirichlet(alpha=setting.alpha, rule="sage" if setting.partition == "the paired rule" else "plain"),
        # resnet.py:214-308. FedMatch's two parts have no running statistics: a group norm.
        model=Model(network="resnet8x4", norm="gn" if setting.method == "FedMatch" else "bn"),
        method=method,
        # Five times as many steps as whole batches of 128: ten passes over unlabelled images, in batches of 256.
        federation=Federation(K=K, C=C, T=EPOCHS * (known.images // K // 128), rounds=known.rounds),
        optimizer=FEDMATCH_SGD if setting.method == "FedMatch" else OPTIMIZER,
        evaluation=Evaluation(every=1),  # SAGE.py:370-384
    )


@dataclass(frozen=True, kw_only=True)
class StandIn(Scale):
    """A stand-in of the protocol."""

    labelled_batch_size: int
    labelled_share: Mapping[str, float]  # in place of 10 and 20 %
    targets: Mapping[str, str]  # in place of the paper's: {"rounds_to/0.4" = "rounds_to/0.85"}


def scale(setting: Setting, profile: str) -> Scale:
    """The stand-in of a line. A method on labels alone has batches of labelled images only."""
    stand_in = stand_ins("sage", StandIn)[profile][setting.data]
    sizes: dict[str, Any] = {"batch_size": stand_in.batch_size, "labelled_batch_size": stand_in.labelled_batch_size}
    if isinstance(METHODS[setting.method], SupervisedFL):
        sizes = {"batch_size": stand_in.labelled_batch_size}
    if setting.method == "FedDure" and stand_in.optimizer is not None:
        sizes["virtual_rate"] = stand_in.optimizer.lr
    labels = {"labelled_share": stand_in.labelled_share[setting.share]}
    if setting.method == "FedAvg-SL":
        labels = {"labelled_clients": stand_in.K or K}
    optimizer = None if setting.method == "FedMatch" else stand_in.optimizer  # its losses diverge at the others' rate
    return replace(stand_in, data={**stand_in.data, **labels}, optimizer=optimizer, batch_size=None, method=sizes)


def additions(name: str, cells: Sequence[Cell]) -> Iterable[Cell]:
    """Labels alone, where no row of an item on accuracies is."""
    if name == "tab7":
        return
    taken: set[str] = set()
    for cell in cells:
        if cell.role in UNTRAINED or is_bound(cell) or bound_of(cell, cells) is not None:
            continue
        alone = labels_alone(cell.experiment)
        if alone.cell_key not in taken:
            taken.add(alone.cell_key)
            yield cell.companion(ALONE, alone, note=ALONE_NOTE, role="bound")


def clients_of(e: Experiment) -> IntArray:
    """(K, d) images of each class at each client, for one draw of the partition with equal classes."""
    known = data_set(e.data.name)
    images = (e.data.images or known.train) - e.data.N_validation
    return e.partition.shares(np.full(known.num_classes, images // known.num_classes), e.federation.K, seed=0)


def at_targets(built: Item) -> Item:
    """The item with the stand-in's accuracies where the paper counts rounds to an accuracy."""
    targets = next(iter(stand_ins("sage", StandIn)[built.profile].values())).targets

    def renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {targets.get(metric, metric): value for metric, value in metrics.items()}

    return replace(
        built,
        metrics=tuple(renamed(dict.fromkeys(built.metrics))),
        cells=tuple(replace(cell, published=renamed(cell.published)) for cell in built.cells),
        shown=tuple(replace(shown, published=renamed(shown.published)) for shown in built.shown),
        claims=tuple(replace(claim, metric=targets.get(claim.metric, claim.metric)) for claim in built.claims),
    )


def item_of(name: str, profile: str) -> Item:
    """The item. FedAvg on labels is the row that others are held against."""
    built = item(PAPER, name, profile)
    cells = (replace(cell, role="bound") if cell.setting["method"] == "FedAvg" else cell for cell in built.cells)
    built = replace(built, cells=tuple(cells))
    return at_targets(built) if profile in REDUCED else built


PAPER = Paper(
    name="sage",
    setting=Setting,
    experiment=experiment,
    scale=scale,
    additions=additions,
    seeds={"demo": 2, "laptop": 5},  # of a table within two minutes
    computed={
        "classes a client": lambda e: float((clients_of(e) > 0).sum(axis=1).mean()),
        "total variation": lambda e: mean_total_variation(clients_of(e)),
    },
)
TABLES = ("tab1", "tab2", "tab3", "tab4", "tab5", "tab6", "tab7", "tab8", "tab9")
ITEMS: Mapping[str, Callable[..., Item]] = {name: partial(item_of, name) for name in (*TABLES, "fig5a", "fig5b")}
