"""SAGE's protocol: from a printed line to the experiment, every number with its place.

ProxyFL (arXiv:2602.21078) prints the tables. Their setting is SAGE's released code (Jay-Codeman/SAGE, e90fa96), whose
paper was not at hand; ProxyFL's data and network files are the same but for two projections. No baseline is released:
rows of other methods have the protocol's batches, steps and optimizer, and their own values where those are known.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from benchmark.data.split import mean_total_variation
from benchmark.experiment import Experiment
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.sage import TwoLabellers
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.papers.item import Item, ItemEntry, Printed
from benchmark.papers.scale import REDUCED, Scale, experiment_of, stand_ins, values_of
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


def targets(profile: str) -> Mapping[str, str]:
    """The metrics that count rounds to an accuracy under a profile, by those of the paper; empty if they are equal."""
    if profile in REDUCED:
        return next(iter(stand_ins("sage")[profile].values())).own["targets"]
    return values_of("sage")["gpu"]["targets"] if profile == "gpu" else {}


def item_of(name: str, profile: str) -> Item:
    """Build the item. FedAvg on labels is the row that others are held against.

    If the paper counts rounds to an accuracy, a shorter run has an accuracy of its own. A withdrawn claim keeps that of
    its hash.
    """
    built = item(PAPER, name, profile)
    own = targets(profile)
    of_withdrawn = own if profile in REDUCED else {}

    def renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {own.get(metric, metric): value for metric, value in metrics.items()}

    def published(entry: ItemEntry) -> dict[str, Printed]:
        """Each number says to which of the paper's accuracies its rounds are counted."""
        numbers = entry.published.items()
        return renamed({of: replace(number, metric=of) if of in own else number for of, number in numbers})

    cells = []
    for cell in built.cells:
        if cell.setting["method"] == "FedAvg":
            cell = replace(cell, role="bound")
        cells.append(replace(cell, published=published(cell)))
    shown = tuple(replace(entry, published=published(entry)) for entry in built.shown)
    claims = []
    for claim in built.claims:
        of_claim = of_withdrawn if claim.withdrawn else own
        claims.append(replace(claim, metric=of_claim.get(claim.metric, claim.metric)))
    return replace(
        built,
        metrics=tuple(renamed(dict.fromkeys(built.metrics))),
        cells=tuple(cells),
        shown=shown,
        claims=tuple(claims),
        notes=(*built.notes, *_notes_on_code(built), *_notes_on_rounds(built)),
    )


def _notes_on_code(built: Item) -> Iterator[str]:
    """Say on the items at the published scale where their cells are not as released."""
    if built.profile not in REDUCED and any(isinstance(cell.experiment.method, TwoLabellers) for cell in built.trained):
        yield (
            "Other papers' cells are as released where the code contradicts the print. These are not in three points "
            "that the print does not have: one optimizer for all clients, other statistics of test images, and a "
            "labelled list of 2,000 copies (departures 2, 3 and 6). The published numbers came from such code."
        )


def _notes_on_rounds(built: Item) -> Iterator[str]:
    """Say to which accuracies rounds are counted, and how exactly, on the items that count them."""
    if not built.metrics[0].startswith("rounds_to/"):
        return
    if built.profile == "gpu":
        yield values_of("sage")["gpu"]["note"]
    every = max(cell.experiment.evaluation.every for cell in built.cells)
    if every > 1:
        yield f"Accuracy is measured every {every} rounds, so that our rounds to an accuracy are multiples of {every}."


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
