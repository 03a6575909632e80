"""Local work for tests, in a module of its own so that other processes can import it, and a method whose clients train
sub-networks (HeteroFL), a shape that none of the methods of the package has.

Legend: N images of a batch, D classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmark.losses.terms import supervised_loss
from benchmark.methods.protocol import (
    Job,
    Key,
    Local,
    Method,
    State,
    Stream,
    Weights,
    World,
)
from benchmark.methods.shared import StudentUpdate, mean
from benchmark.models.build import Model, build

LABELLED = Stream(part="labelled", batch_size=4, views=("weak",))
UNLABELLED = Stream(part="unlabelled", batch_size=8, views=("weak",))


@dataclass(frozen=True, kw_only=True)
class ToConstant(StudentUpdate):
    """Pulls the prediction of any image towards class 0."""

    def loss(self, trainable, frozen, batch, draw):
        (stream,) = batch.values()
        return towards_zero(trainable["student"](stream.views["weak"])), {}


def equal_trees(left: Any, right: Any) -> bool:
    """Bit by bit, at any depth; also the tensors' types."""
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(equal_trees(value, right[name]) for name, value in left.items())
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left == right


def towards_zero(logits_ND: Tensor) -> Tensor:
    return supervised_loss(logits_ND, torch.zeros(len(logits_ND), dtype=torch.int64))


def work(world: World, update, client: int, *, data=None, draw: int = 0, network=None, limit=None, **receives) -> Job:
    return Job(
        key=Key(client=client, draw=draw),
        update=update,
        receives=receives,
        data=data or {"unlabelled": UNLABELLED},
        limit=limit or world.limit,
        network=network,
    )


@dataclass(frozen=True, kw_only=True)
class Toy(Method):
    """One weight set, and FedAvg of what comes back."""

    needs = frozenset({"server", "every_client"})

    def round(self, state: State, world: World) -> tuple[State, dict[str, float]]:
        outcomes = [outcome for outcome in world.fit(self.jobs(state.server["student"], world)) if not outcome.sat_out]
        weights = mean([outcome.sends["student"] for outcome in outcomes])
        return State(server={"student": weights}), {}

    def jobs(self, student: Weights, world: World) -> list[Job]:
        raise NotImplementedError


# The same client twice in a round: the second job draws other batches and sees the private state that the first left.


@dataclass(frozen=True, kw_only=True)
class Counting(ToConstant):
    def start(self, received, private, reader):
        return Local(trainable={"student": received["student"]}, private={"times": 0, **(private or {})})

    def finish(self, local):
        local.private = {"times": local.private["times"] + 1, "student": local.trainable["student"]}
        return {"student": local.trainable["student"], "times": local.private["times"]}


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
        return State(server={"student": weights}), {}

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
