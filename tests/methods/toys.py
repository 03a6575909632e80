"""Local work for tests, in a module of its own so that other processes can import it.

Legend: N images of a batch, D classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmark.losses import supervised_loss
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
