"""Toys, as in `toys`, with several weight sets, networks or streams in one job; and the list of all of them.

Legend: N images of a batch, D classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from benchmark.losses.supervised import supervised_loss
from benchmark.methods.averaging import mean
from benchmark.methods.objectives import StudentUpdate
from benchmark.methods.protocol import CENTRAL, Limit, Local, Selected, State, Weights
from benchmark.models.build import Model, build
from tests.methods.toys import (
    LABELLED,
    UNLABELLED,
    KeptStart,
    SittingOut,
    Teaching,
    ToConstant,
    Toy,
    Twice,
    towards_zero,
    work,
)

# Two weight sets and two losses in turn (FedMatch: theta = sigma + psi, sigma on labels, psi without).


@dataclass(frozen=True, kw_only=True)
class InTurn(StudentUpdate):
    phases: ClassVar[tuple[str, ...]] = ("on_labels", "without_labels")

    def start(self, received, private, reader):
        return Local(trainable={"sigma": received["sigma"], "psi": received["psi"]})

    def on_labels(self, trainable, frozen, batch, draw):
        labelled = batch["labelled"]
        loss = supervised_loss(self.logits(trainable, "sigma", labelled.views["weak"]), labelled.labels_N)
        return loss, {"client/on_labels": loss.detach()}

    def without_labels(self, trainable, frozen, batch, draw):
        return towards_zero(self.logits(trainable, "psi", batch["unlabelled"].views["weak"])), {}

    def logits(self, trainable, trained, images_NCHW):
        """Of sigma + psi, with a gradient for the one that is trained."""
        other = dict(trainable["psi" if trained == "sigma" else "sigma"].named_parameters())
        theta = {name: value + other[name].detach() for name, value in trainable[trained].named_parameters()}
        return functional_call(trainable[trained], theta, images_NCHW)

    def after_step(self, training):
        for name, network in training.trainable.items():
            weights = {tensor: value.clone() for tensor, value in network.state_dict().items()}
            training.private[f"{name} after step {training.step}"] = weights

    def finish(self, local):
        return dict(local.trainable)


@dataclass(frozen=True, kw_only=True)
class Disjoint(Toy):
    def init(self, setup):
        weights = setup.initial_weights()
        halves = {name: value / 2 for name, value in weights.items()}
        return State(server={"sigma": halves, "psi": halves})

    def models(self, state):
        return {"theta": {name: value + state.server["psi"][name] for name, value in state.server["sigma"].items()}}

    def round(self, state, world):
        streams = {"labelled": LABELLED, "unlabelled": UNLABELLED}
        jobs = [work(world, InTurn(), k, data=streams, **state.server) for k in world.cohort()]
        outcomes = list(world.fit(jobs))
        server = {name: mean([outcome.sends[name] for outcome in outcomes]) for name in ("sigma", "psi")}
        return State(server=server, clients=state.clients), {}


# Upload of a sub-network (HeteroFL): leading slices go down, come back, and are averaged where they overlap.


@dataclass(frozen=True, kw_only=True)
class Slices(Toy):
    widths: tuple[float, ...] = (1.0, 0.5)  # of client k: widths[k % 2]
    image_shape: tuple[int, int, int] = (1, 8, 8)
    num_classes: int = 10

    def round(self, state, world):
        student, jobs = state.server["student"], []
        for client in world.cohort():
            model = replace(world.model, width=self.widths[client % len(self.widths)])
            jobs.append(work(world, ToConstant(), client, network=model, student=self.narrowed(student, model)))
        weights = averaged_where_they_overlap(student, (outcome.sends["student"] for outcome in world.fit(jobs)))
        return State(server={"student": weights}, clients=state.clients), {}

    def narrowed(self, weights: Weights, model: Model) -> Weights:
        shapes = build(model, self.image_shape, self.num_classes, seed=0).state_dict()
        return {name: value[leading(shapes[name])] for name, value in weights.items()}


def leading(tensor: Tensor) -> tuple[slice, ...]:
    return tuple(slice(size) for size in tensor.shape)


def averaged_where_they_overlap(weights: Weights, returned: Iterable[Weights]) -> Weights:
    """Each entry: the mean over those that returned it; as it was where nobody did."""
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
    counts = {name: torch.zeros_like(value) for name, value in weights.items()}
    for narrow in returned:
        for name, value in narrow.items():
            sums[name][leading(value)] += value
            counts[name][leading(value)] += 1
    means = {name: (value / counts[name].clamp(min=1)).to(weights[name].dtype) for name, value in sums.items()}
    return {name: torch.where(counts[name] > 0, means[name], value) for name, value in weights.items()}


# Labelled and unlabelled batches in one step at a client.


@dataclass(frozen=True, kw_only=True)
class Both(StudentUpdate):
    def loss(self, trainable, frozen, batch, draw):
        labelled, unlabelled = batch["labelled"], batch["unlabelled"]
        on_labels = supervised_loss(trainable["student"](labelled.views["weak"]), labelled.labels_N)
        without = towards_zero(trainable["student"](unlabelled.views["weak"]))
        hidden = torch.tensor(float(unlabelled.labels_N is None))
        return on_labels + 0.1 * without, {"client/images": torch.tensor(float(len(labelled.labels_N))), "hid": hidden}


@dataclass(frozen=True, kw_only=True)
class BothLabels(Toy):
    def jobs(self, student, world):
        streams = {"labelled": LABELLED, "unlabelled": UNLABELLED}
        return [work(world, Both(), k, data=streams, student=student) for k in world.cohort()]


# Step counts known only after pseudo-labelling: two passes over the images that got a label below 3.


@dataclass(frozen=True, kw_only=True)
class OnSelected(StudentUpdate):
    def start(self, received, private, reader):
        labels_N = reader.predict(received["student"], "unlabelled", "plain").argmax(dim=1)
        chosen_N = (labels_N < 3).nonzero().flatten()
        if not len(chosen_N):
            return None
        selected = {"unlabelled": Selected(positions_N=chosen_N, labels_N=labels_N[chosen_N])}
        return Local(trainable={"student": received["student"]}, selected=selected, for_finish={"count": len(chosen_N)})

    def loss(self, trainable, frozen, batch, draw):
        images = batch["unlabelled"]
        return supervised_loss(trainable["student"](images.views["weak"]), images.pseudo_labels_N), {}

    def finish(self, local):
        return {"student": local.trainable["student"], **local.for_finish}


@dataclass(frozen=True, kw_only=True)
class AsManySteps(Toy):
    def jobs(self, student, world):
        streams = {"unlabelled": replace(UNLABELLED, drop_last=False)}
        limit = Limit(epochs=2)
        return [work(world, OnSelected(), k, data=streams, limit=limit, student=student) for k in world.cohort()]


# A round without a client.


@dataclass(frozen=True, kw_only=True)
class Central(Toy):
    def jobs(self, student, world):
        return [work(world, Both(), CENTRAL, data={"labelled": LABELLED, "unlabelled": UNLABELLED}, student=student)]


TOYS = {
    "twice": Twice(),
    "sits out": SittingOut(),
    "two sets in turn": Disjoint(),
    "teacher": Teaching(),
    "kept start": KeptStart(),
    "sub-network": Slices(),
    "both labels": BothLabels(),
    "as many steps as labels": AsManySteps(),
    "central": Central(),
}
