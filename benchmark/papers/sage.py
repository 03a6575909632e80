"""Build the experiments of SAGE's protocol from published lines, with the source of each number.

ProxyFL (arXiv:2602.21078) publishes the tables. Their setting follows SAGE's released code
(Jay-Codeman/SAGE, e90fa96); SAGE's paper was not available to us. ProxyFL's data and network files
are the same except for two projections. No baseline is released: the rows of other methods have the
protocol's batches, steps and optimizer, and the method's own values if these are known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from benchmark.data.split import mean_total_variation
from benchmark.experiment import Experiment
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.sage import TwoLabellers
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.papers.computed import clients_of
from benchmark.papers.item import Item, ItemEntry, PublishedValue
from benchmark.papers.paper import Paper, on_cifar10
from benchmark.papers.scale import REDUCED, Scale, experiment_of, reduced_settings, values_of
from benchmark.papers.table import items


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table of ProxyFL."""

    data: Literal["cifar10", "cifar100", "svhn", "cinic10"]
    method: str
    alpha: float
    labels: Literal[10, 20] = 10  # percent
    partition: Literal["the paired rule", "the usual rule"] = "the paired rule"
    Q: int | None = None  # ProxyFL's tuning passes; if None, the passes of its released code


@cache
def experiment(setting: Setting) -> Experiment:
    """Return the line's experiment as published."""
    svhn_labels = setting.labels if setting.data == "svhn" else None
    e = experiment_of("sage", {**vars(setting), "svhn_labels": svhn_labels})
    if isinstance(e.method, ProxyFL):
        passes = e.method.tuning_passes
        if setting.data == "cifar100" and passes:
            passes = 10
        e = replace(e, method=replace(e.method, tuning_passes=passes if setting.Q is None else setting.Q))
    return e


def scale(setting: Setting, profile: str) -> Scale:
    """Return the reduced setting of a line."""
    return scaled_by(reduced_settings("sage")[profile][setting.data], setting)


def scale_on_cifar10(setting: Setting, profile: str) -> Scale:
    """Return the reduced setting on CIFAR-10 of a line of Table 1."""
    return scaled_by(reduced_settings("sage")[profile]["table_1_cifar10"], setting)


def scaled_by(reduced: Scale, setting: Setting) -> Scale:
    """Return a reduced setting of sage.toml with the fields that depend on the line.

    A method that trains only on labels has only batches of labelled images.
    """
    labelled = reduced.own["labelled_batch_size"]
    sizes: dict[str, Any] = {"batch_size": reduced.batch_size, "labelled_batch_size": labelled}
    if isinstance(experiment(setting).method, SupervisedFL):
        sizes = {"batch_size": labelled}
    if setting.method == "FedDure" and reduced.optimizer is not None:
        sizes["virtual_rate"] = reduced.optimizer.lr
    labels: dict[str, Any] = {"labelled_share": reduced.own["labelled_share"][str(setting.labels)]}
    if setting.method == "FedAvg-SL":
        labels = {"labelled_clients": reduced.K} if reduced.K else {}
    # FedMatch's losses diverge at the learning rate of the others.
    optimizer = None if setting.method == "FedMatch" else reduced.optimizer
    return replace(reduced, data={**reduced.data, **labels}, optimizer=optimizer, batch_size=None, method=sizes)


def targets(paper: Paper, profile: str) -> Mapping[str, str]:
    """Return the metrics that count rounds to an accuracy under a profile, by the paper's metrics;
    empty if they are equal. All lines of a profile count to the same accuracies.
    """
    if profile in REDUCED:
        return paper.scale(Setting(data="cifar10", method="FedAvg", alpha=0.1), profile).own["targets"]
    return values_of("sage")["gpu"]["targets"] if profile == "gpu" else {}


def finished(paper: Paper, built: Item) -> Item:
    """Return the item with FedAvg, trained on labels, as the row that other rows are compared with.

    If the paper counts rounds to an accuracy, a shorter run has a separate accuracy. A withdrawn
    claim keeps the accuracy of its hash.
    """
    own = targets(paper, built.profile)
    of_withdrawn = own if built.profile in REDUCED else {}

    def renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {own.get(metric, metric): value for metric, value in metrics.items()}

    def published(entry: ItemEntry) -> dict[str, PublishedValue]:
        """Return the published numbers; each names the paper's accuracy for counting rounds."""
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
    """Yield a note about deviations from the released code, on items at the published scale."""
    if built.profile not in REDUCED and any(isinstance(cell.experiment.method, TwoLabellers) for cell in built.trained):
        yield (
            "Cells of other papers follow the released code where it contradicts the paper. These cells do not in "
            "three points that the paper does not mention: one optimizer for all clients, different statistics of "
            "test images, and a labelled list of 2,000 copies (deviations 2, 3 and 6). That code produced the "
            "published numbers."
        )


def _notes_on_rounds(built: Item) -> Iterator[str]:
    """Yield notes about the accuracies for counting rounds, and the resolution, on items that count
    rounds.
    """
    if not built.metrics[0].startswith("rounds_to/"):
        return
    if built.profile == "gpu":
        yield values_of("sage")["gpu"]["note"]
    every = max(cell.experiment.evaluation.every for cell in built.cells)
    if every > 1:
        yield f"Accuracy is measured every {every} rounds, so our rounds to an accuracy are multiples of {every}."


ON_CIFAR10 = on_cifar10(scale_on_cifar10, ("tab1",))
PAPER = Paper(
    name="sage",
    setting=Setting,
    experiment=experiment,
    scale=scale,
    variants=(ON_CIFAR10,),
    finished=finished,
    bounded=True,
    seeds={"demo": 2, "laptop": 5},  # so that a table needs two minutes
    computed={"total variation": lambda e: mean_total_variation(clients_of(e))},
)
TABLES = ("tab1", "tab2", "tab3", "tab4", "tab5", "tab6", "tab7", "tab8", "tab9")
FIGURES = ("fig5a", "fig5b", "fig6", "fig7")
ITEMS = items(PAPER, (*TABLES, *FIGURES))
