"""FedSwitch (arXiv:2301.10114): from a printed line to the experiment, every number with its section.

There is no released code. What section 5.3 tuned and does not print is FixMatch's here (`OPEN`); what the paper takes
over from FedMatch without printing it is FedMatch's released code's (wyjeong/FedMatch, 4947aa2).
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
from benchmark.papers.item import Cell
from benchmark.papers.scale import REDUCED, Scale, experiment_of, stand_ins
from benchmark.papers.table import Paper, clients_of, items

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table or figure of FedSwitch: a partition by name, or a Dirichlet alpha."""

    method: str
    labels: Literal["Labels at Client", "Labels at Server"] = "Labels at Server"  # Figure 4; assumed for Figures 2, 3
    partition: Literal["Batch-IID", "Batch-NonIID", "Streaming-NonIID"] | None = None
    alpha: float | None = None


@cache
def experiment(setting: Setting) -> Experiment:
    """The line as published, without what `settled` fills in."""
    fedmatch = setting.labels if setting.method == "FedMatch" else None
    return experiment_of("fedswitch", {**vars(setting), "fedmatch": fedmatch})


def settled(e: Experiment) -> Experiment:
    """FedSwitch with its beta of Eq. 3, "the amount of expected imbalance", and grouping with its local steps.

    The paper does not print beta. Here it is the mean divergence of the clients' true classes from equal shares.
    Grouping counts steps: as many as batches in which a client passes over its images (six of 510 or 550).
    """
    if isinstance(e.method, FedSwitch):
        return replace(e, method=replace(e.method, beta=prior_of(e)))
    return replace(e, federation=replace(e.federation, T=steps_of(e))) if isinstance(e.method, SSFL) else e


def prior_of(e: Experiment) -> float:
    """The clients' mean divergence from equal shares, in nats, to two digits."""
    return round(float(divergence_K(clients_of(e, pooled=True)).mean()), 2)


def divergence_K(counts_Kd: IntArray) -> FloatArray:
    """(K,) nats between each client's classes and equal shares."""
    share_Kd = counts_Kd / counts_Kd.sum(axis=1, keepdims=True)
    terms_Kd = share_Kd * np.log(share_Kd, where=share_Kd > 0, out=np.zeros_like(share_Kd))
    return np.asarray(math.log(counts_Kd.shape[1]) + terms_Kd.sum(axis=1))


def scale(setting: Setting, profile: str) -> Scale:
    """The stand-in of a line.

    A teacher's ratio counts rounds, and is smaller in a short run. Clients hold equally many images under both label
    settings.
    """
    streaming = setting.partition == "Streaming-NonIID"
    stand_in = stand_ins("fedswitch")[profile]["streaming" if streaming else "batch"]
    data, size, each = dict(stand_in.data), stand_in.batch_size, stand_in.own["labels_a_class"]
    labels = data["N_s"]
    if setting.labels == "Labels at Client":
        del data["N_s"]
        data["labels_per_client"] = each
        labels, size = CLASSES * each * (stand_in.K or 1), stand_in.own["batch_size_at_clients"]
    if held := stand_in.own["client_images"]:
        data["images"] = held + data["N_validation"] + labels
    return replace(stand_in, data=data, batch_size=size, method={"ratio": 0.9})


def additions(name: str, cells: Sequence[Cell]) -> Iterable[Cell]:
    """The bounds, one for each way in which labels are held, of items that show accuracies."""
    if name not in ("tab2", "tab3", "fig4", "fig5"):
        return
    held: dict[object, Cell] = {}  # at clients: by the same clients
    for cell in (cell for cell in cells if cell.role == "published"):
        e = cell.experiment
        held.setdefault((e.data, e.partition if e.data.label_setting == "every_client" else None), cell)
    for cell, alone in lacking(list(held.values()), alone_in_as_many_steps):
        several = len(held) > 1
        yield cell.companion(ALONE, alone, note=ALONE_NOTE, role="bound") if several else bound(alone)


def alone_in_as_many_steps(e: Experiment) -> Experiment:
    """The bound; at clients, too, in as many steps a round, which repeat their labels until all images are through."""
    alone = labels_alone(e)
    if e.data.label_setting == "server":
        return alone
    return replace(alone, federation=replace(alone.federation, T=steps_of(e), epochs=None))


def steps_of(e: Experiment) -> int:
    """The batches in which a client passes over its images of a round."""
    images = int(clients_of(e).sum(axis=1).max()) / e.data.streaming_steps
    return math.ceil(images / e.method.batch_size)


def skewed_labels(e: Experiment) -> Experiment:
    """Labels of a client's classes in proportion (section 5.4) instead of equally many of each; as many in all."""
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
OWN_PROFILES: Mapping[str, tuple[str, ...]] = {"tab1": REDUCED}  # items whose runs do not differ in all profiles
ITEMS = items(PAPER, ("tab1", "tab2", "tab3", "fig2", "fig3_left", "fig3_right", "fig4", "fig5"))
