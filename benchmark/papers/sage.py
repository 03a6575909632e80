"""SAGE's protocol: from a printed line to the experiment, every number with its place.

ProxyFL (arXiv:2602.21078) prints the tables. Their setting is SAGE's released code (Jay-Codeman/SAGE, e90fa96), whose
paper was not at hand; ProxyFL's data and network files are the same but for two projections. No baseline is released:
rows of other methods have the protocol's batches, steps and optimizer, and their own values where those are known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from benchmark.data.split import mean_total_variation
from benchmark.experiment import Experiment
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.papers.item import Item, Printed, Shown
from benchmark.papers.scale import REDUCED, Scale, experiment_of, stand_ins
from benchmark.papers.table import Paper, clients_of, item


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table of ProxyFL."""

    data: Literal["cifar10", "cifar100", "svhn", "cinic10"]
    method: str
    alpha: float
    labels: Literal[10, 20] = 10  # percent
    partition: Literal["the paired rule", "the usual rule"] = "the paired rule"


@cache
def experiment(setting: Setting) -> Experiment:
    """The line as published."""
    svhn_labels = setting.labels if setting.data == "svhn" else None
    e = experiment_of("sage", {**vars(setting), "svhn_labels": svhn_labels})
    if setting.data == "cifar100" and isinstance(e.method, ProxyFL) and e.method.tuning_passes:  # Q
        e = replace(e, method=replace(e.method, tuning_passes=10))
    return e


def scale(setting: Setting, profile: str) -> Scale:
    """The stand-in of a line. A method on labels alone has batches of labelled images only."""
    stand_in = stand_ins("sage")[profile][setting.data]
    labelled = stand_in.own["labelled_batch_size"]
    sizes: dict[str, Any] = {"batch_size": stand_in.batch_size, "labelled_batch_size": labelled}
    if isinstance(experiment(setting).method, SupervisedFL):
        sizes = {"batch_size": labelled}
    if setting.method == "FedDure" and stand_in.optimizer is not None:
        sizes["virtual_rate"] = stand_in.optimizer.lr
    labels: dict[str, Any] = {"labelled_share": stand_in.own["labelled_share"][str(setting.labels)]}
    if setting.method == "FedAvg-SL":
        labels = {"labelled_clients": stand_in.K} if stand_in.K else {}
    optimizer = None if setting.method == "FedMatch" else stand_in.optimizer  # its losses diverge at the others' rate
    return replace(stand_in, data={**stand_in.data, **labels}, optimizer=optimizer, batch_size=None, method=sizes)


def item_of(name: str, profile: str) -> Item:
    """The item. FedAvg on labels is the row that others are held against.

    Where the paper counts rounds to an accuracy, a stand-in has an accuracy of its own.
    """
    built = item(PAPER, name, profile)
    cells = (replace(cell, role="bound") if cell.setting["method"] == "FedAvg" else cell for cell in built.cells)
    targets = next(iter(stand_ins("sage")[profile].values())).own["targets"] if profile in REDUCED else {}

    def renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {targets.get(metric, metric): value for metric, value in metrics.items()}

    def published(entry: Shown) -> dict[str, Printed]:
        """Each number says to which of the paper's accuracies its rounds are counted."""
        numbers = entry.published.items()
        return renamed({of: replace(number, metric=of) if of in targets else number for of, number in numbers})

    return replace(
        built,
        metrics=tuple(renamed(dict.fromkeys(built.metrics))),
        cells=tuple(replace(cell, published=published(cell)) for cell in cells),
        shown=tuple(replace(shown, published=published(shown)) for shown in built.shown),
        claims=tuple(replace(claim, metric=targets.get(claim.metric, claim.metric)) for claim in built.claims),
    )


PAPER = Paper(
    name="sage",
    setting=Setting,
    experiment=experiment,
    scale=scale,
    bounded=True,
    seeds={"demo": 2, "laptop": 5},  # of a table within two minutes
    computed={"total variation": lambda e: mean_total_variation(clients_of(e))},
)
TABLES = ("tab1", "tab2", "tab3", "tab4", "tab5", "tab6", "tab7", "tab8", "tab9")
ITEMS: Mapping[str, Callable[..., Item]] = {name: partial(item_of, name) for name in (*TABLES, "fig5a", "fig5b")}
