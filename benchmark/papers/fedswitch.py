"""Build the experiments of FedSwitch (arXiv:2301.10114) from its published lines, with the section of each number.

There is no released code. Hyperparameters that section 5.3 tuned and does not publish are FixMatch's (fedswitch.toml).
Settings that the paper adopts from FedMatch without publishing them follow FedMatch's released code (wyjeong/FedMatch,
4947aa2).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from benchmark.data.tables import FloatArray, IntArray
from benchmark.experiment import Experiment
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.ssfl import SSFL
from benchmark.papers.bounds import ALONE, ALONE_NOTE, bound, labels_alone, lacking
from benchmark.papers.computed import clients_of
from benchmark.papers.item import Cell
from benchmark.papers.paper import Paper
from benchmark.papers.scale import REDUCED, Scale, experiment_of, reduced_settings
from benchmark.papers.table import items

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table or figure of FedSwitch: a partition by name, or a Dirichlet alpha."""

    method: str
    # As in Figure 4; assumed for Figures 2 and 3.
    labels: Literal["Labels at Client", "Labels at Server"] = "Labels at Server"
    partition: Literal["Batch-IID", "Batch-NonIID", "Streaming-NonIID"] | None = None
    alpha: float | None = None


@cache
def experiment(setting: Setting) -> Experiment:
    """Return the line's experiment as published, without the fields that `settled` fills in."""
    fedmatch = setting.labels if setting.method == "FedMatch" else None
    return experiment_of("fedswitch", {**vars(setting), "fedmatch": fedmatch})


def settled(e: Experiment) -> Experiment:
    """Return FedSwitch with its beta of Eq. 3, "the amount of expected imbalance", and grouping
    with its local steps.

    The paper does not publish beta. Here it is the mean divergence of the clients' true classes
    from equal shares. Grouping counts local steps: the number of a client's batches in one pass
    over its images, which is six for 510 or 550 images.
    """
    if isinstance(e.method, FedSwitch):
        return replace(e, method=replace(e.method, beta=prior_of(e)))
    return replace(e, federation=replace(e.federation, T=steps_of(e))) if isinstance(e.method, SSFL) else e


def prior_of(e: Experiment) -> float:
    """Return the clients' mean divergence from equal class shares, in nats, rounded to two digits."""
    return round(float(divergence_K(clients_of(e, pooled=True)).mean()), 2)


def divergence_K(counts_Kd: IntArray) -> FloatArray:
    """Return the divergence between each client's class shares and equal shares, (K,), in nats."""
    share_Kd = counts_Kd / counts_Kd.sum(axis=1, keepdims=True)
    terms_Kd = share_Kd * np.log(share_Kd, where=share_Kd > 0, out=np.zeros_like(share_Kd))
    return np.asarray(math.log(counts_Kd.shape[1]) + terms_Kd.sum(axis=1))


def scale(setting: Setting, profile: str) -> Scale:
    """Return the reduced setting of a line.

    The teacher's ratio counts rounds, so that it is smaller in a short run. Clients have equally
    many images under both label settings.
    """
    streaming = setting.partition == "Streaming-NonIID"
    reduced = reduced_settings("fedswitch")[profile]["streaming" if streaming else "batch"]
    data = dict(reduced.data)
    size = reduced.batch_size
    each = reduced.own["labels_a_class"]
    labels = data["N_s"]
    if setting.labels == "Labels at Client":
        del data["N_s"]
        data["labels_per_client"] = each
        labels = CLASSES * each * (reduced.K or 1)
        size = reduced.own["batch_size_at_clients"]
    if held := reduced.own["client_images"]:
        data["images"] = held + data["N_validation"] + labels
    return replace(reduced, data=data, batch_size=size, method={"ratio": 0.9})


def additions(name: str, cells: Sequence[Cell]) -> Iterable[Cell]:
    """Return the supervised baselines, one for each distribution of labels, of items that show accuracies."""
    if name not in ("tab2", "tab3", "fig4", "fig5"):
        return
    held: dict[object, Cell] = {}  # if clients have the labels, the clients matter too
    for cell in (cell for cell in cells if cell.role == "published"):
        e = cell.experiment
        held.setdefault((e.data, e.partition if e.data.label_setting == "every_client" else None), cell)
    for cell, alone in lacking(list(held.values()), alone_in_as_many_steps):
        several = len(held) > 1
        yield cell.companion(ALONE, alone, note=ALONE_NOTE, role="bound") if several else bound(alone)


def alone_in_as_many_steps(e: Experiment) -> Experiment:
    """Return the supervised baseline. If clients have the labels, it has the same number of steps per round as the
    method.

    In these steps the clients repeat their labels until the method would have used all its images
    once.
    """
    alone = labels_alone(e)
    if e.data.label_setting == "server":
        return alone
    return replace(alone, federation=replace(alone.federation, T=steps_of(e), epochs=None))


def steps_of(e: Experiment) -> int:
    """Return the number of batches in a client's pass over its images of a round."""
    images = int(clients_of(e).sum(axis=1).max()) / e.data.streaming_steps
    return math.ceil(images / e.method.batch_size)


def skewed_labels(e: Experiment) -> Experiment:
    """Return the experiment with a client's labels in proportion to its classes (section 5.4)
    instead of equally many per class.

    The total number of labels is unchanged.
    """
    labels = CLASSES * e.data.labels_per_client
    share = round(labels / (labels + float(clients_of(e).sum(axis=1).mean())), 4)
    return replace(e, data=replace(e.data, label_setting="share", labelled_share=share, labels_per_client=5))


PAPER = Paper(
    name="fedswitch",
    setting=Setting,
    experiment=experiment,
    scale=scale,
    additions=additions,
    computed={"KL, nats": prior_of},
    settled=settled,
    changes={
        "skewed_labels": skewed_labels,
        "more_labels": lambda e: replace(e, data=replace(e.data, N_s=5 * e.data.N_s)),  # 5,000 (section 5.1)
    },
)
OWN_PROFILES: Mapping[str, tuple[str, ...]] = {"tab1": REDUCED}  # items with different runs only in these profiles
ITEMS = items(PAPER, ("tab1", "tab2", "tab3", "fig2", "fig3_left", "fig3_right", "fig4", "fig5"))
