"""Local work for tests, in a module of its own so that other processes can import it.

Legend: N images of a batch, D classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmark.losses import supervised_loss
from benchmark.methods.protocol import Local, Stream
from benchmark.methods.shared import StudentUpdate

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


# The same client twice in a round: the second job draws other batches and sees the private state that the first left.


@dataclass(frozen=True, kw_only=True)
class Counting(ToConstant):
    def start(self, received, private, reader):
        return Local(trainable={"student": received["student"]}, private={"times": 0, **(private or {})})

    def finish(self, local):
        local.private = {"times": local.private["times"] + 1, "student": local.trainable["student"]}
        return {"student": local.trainable["student"], "times": local.private["times"]}
