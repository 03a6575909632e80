"""Methods of the shapes that the protocol has to hold, each in about 30 lines. None is meant to learn well.

They live in modules of their own so that spawned workers can import them; `toys_of_several` has those with several
weight sets, networks or streams.
Legend: N images of a batch, D classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmark.losses.supervised import supervised_loss
from benchmark.methods.averaging import mean
from benchmark.methods.objectives import StudentUpdate
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
        return State(server={"student": weights}, clients=state.clients), {}

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


@dataclass(frozen=True, kw_only=True)
class Twice(Toy):
    def jobs(self, student, world):
        return [work(world, Counting(), k, draw=draw, student=student) for draw in (0, 1) for k in world.cohort()]


# A client that sits out.


@dataclass(frozen=True, kw_only=True)
class EvenOnly(ToConstant):
    def start(self, received, private, reader):
        return None if received["number"] % 2 else super().start(received, private, reader)


@dataclass(frozen=True, kw_only=True)
class SittingOut(Toy):
    def jobs(self, student, world):
        return [work(world, EvenOnly(), k, student=student, number=k) for k in world.cohort()]


# A teacher that follows the student after every step, w_t <- (w_t + w_s) / 2, and is sent back.


@dataclass(frozen=True, kw_only=True)
class WithTeacher(ToConstant):
    def start(self, received, private, reader):
        return Local(trainable={"student": received["student"]}, frozen={"teacher": received["teacher"]})

    def after_step(self, training):
        teachers, students = training.frozen["teacher"], training.trainable["student"]
        for teacher, student in zip(teachers.parameters(), students.parameters(), strict=True):
            teacher.lerp_(student, 0.5)

    def finish(self, local):
        return {"student": local.trainable["student"], "teacher": local.frozen["teacher"]}


@dataclass(frozen=True, kw_only=True)
class Teaching(Toy):
    def init(self, setup):
        return State(server={"student": setup.initial_weights(), "teacher": setup.initial_weights()})

    def round(self, state, world):
        outcomes = list(world.fit([work(world, WithTeacher(), k, **state.server) for k in world.cohort()]))
        server = {name: mean([outcome.sends[name] for outcome in outcomes]) for name in ("student", "teacher")}
        return State(server=server, clients=state.clients), {}


# Start weights kept at the client (EASGD): the server's weights pull, they do not replace.


@dataclass(frozen=True, kw_only=True)
class Elastic(ToConstant):
    def start(self, received, private, reader):
        start = received["student"]
        if private is not None:
            start = {name: value.lerp(start[name], 0.25) for name, value in private["student"].items()}
        return Local(trainable={"student": start}, private={})

    def finish(self, local):
        local.private = {"student": local.trainable["student"]}
        return {"student": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class KeptStart(Toy):
    def jobs(self, student, world):
        return [work(world, Elastic(), k, student=student) for k in world.cohort()[:2]]
