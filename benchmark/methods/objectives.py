"""The local objectives of SSFL: server loss (Eq. 3), CRL (Eq. 4), self-training (Eq. 5), supervised (Eq. 6).

Each is a `LocalUpdate` (what runs at a holder) and, for clients, the choice of it in a method's configuration.

Legend: N images of a batch, C channels, H W pixels, D classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.losses.consistency import consistency_loss, pseudo_labels
from benchmark.losses.kept import loss_of_kept
from benchmark.losses.supervised import supervised_loss
from benchmark.methods.protocol import Batch, Local, Networks, Reader, Training, Tree


@dataclass(frozen=True, kw_only=True)
class StudentUpdate:
    """What the four local objectives share: one weight set, received, trained and sent back."""

    phases: ClassVar[tuple[str, ...]] = ("loss",)

    keeps_momentum: bool = False

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        return Local(trainable={"student": received["student"]}, momentum=(private or {}).get("momentum"))

    def after_step(self, training: Training) -> None:
        """Nothing happens between local steps."""

    def finish(self, local: Local) -> Tree:
        local.private = {"momentum": local.momentum} if self.keeps_momentum else None
        return {"student": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class ServerUpdate(StudentUpdate):
    """Eq. 3: cross-entropy of the weak view with the server's labels."""

    mean_over_images: ClassVar[bool] = True

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return supervised_step(trainable, batch["labelled"], "server/loss")


@dataclass(frozen=True, kw_only=True)
class SupervisedUpdate(StudentUpdate):
    """Eq. 6: what a client could do with oracle labels; an upper bound."""

    mean_over_images: ClassVar[bool] = True

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return supervised_step(trainable, batch["unlabelled"], "client/loss")


def supervised_step(trainable: Networks, batch: Batch, name: str) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Cross-entropy on the weak view. The label setting has been checked: labels are there."""
    assert batch.labels_N is not None
    loss = supervised_loss(trainable["student"](batch.views["weak"]), batch.labels_N)
    return loss, {name: loss.detach()}


@dataclass(frozen=True, kw_only=True)
class ConsistencyUpdate(StudentUpdate):
    """Eq. 4, consistency regularization (CRL): the strong view has to give the weak view's confident label."""

    mean_over_images: ClassVar[bool] = True
    passes: ClassVar[Mapping[str, tuple[int, int]]] = {"weak": (1, 0)}  # without and with gradient, for plans

    threshold: float = 0.95  # tau
    pseudo_label_mode: Literal["train", "eval"] = "train"
    views: Literal["two_forwards", "one_forward"] = "two_forwards"

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        network, views = trainable["student"], batch["unlabelled"].views
        if self.views == "one_forward":
            weak_ND, strong_ND = network(torch.cat([views["weak"], views["strong"]])).chunk(2)
            labels_N, kept_N = self.choose(weak_ND.detach())
            loss = consistency_loss(strong_ND, labels_N, kept_N)
        else:
            labels_N, kept_N = self.choose(predict_weak(network, views["weak"], self.pseudo_label_mode))
            loss = loss_of_kept(network, views["strong"], labels_N, kept_N)
        return loss, {"client/loss": loss.detach(), "labels_N": labels_N, "kept_N": kept_N}

    def choose(self, logits_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The pseudo-labels, and which are kept."""
        labels_N, _, kept_N = pseudo_labels(logits_ND, self.threshold)
        return labels_N, kept_N


@dataclass(frozen=True, kw_only=True)
class SelfTrainingUpdate(StudentUpdate):
    """Eq. 5: the weak view has to give its own confident label."""

    mean_over_images: ClassVar[bool] = True
    passes: ClassVar[Mapping[str, tuple[int, int]]] = {"weak": (1, 1)}

    threshold: float = 0.95  # tau
    pseudo_label_mode: Literal["train", "eval"] = "eval"  # released code: train_LocalSGD.py:547-570

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        network, weak_NCHW = trainable["student"], batch["unlabelled"].views["weak"]
        labels_N, _, kept_N = pseudo_labels(predict_weak(network, weak_NCHW, self.pseudo_label_mode), self.threshold)
        loss = loss_of_kept(network, weak_NCHW, labels_N, kept_N)
        return loss, {"client/loss": loss.detach(), "labels_N": labels_N, "kept_N": kept_N}


@torch.no_grad()
def predict_weak(network: torch.nn.Module, weak_NCHW: Tensor, mode: str) -> Tensor:
    """Logits that carry no gradient, with dropout and batch statistics as in training or as in evaluation."""
    if mode == "train":
        return network(weak_NCHW)
    network.eval()
    logits_ND = network(weak_NCHW)
    network.train()
    return logits_ND


@dataclass(frozen=True, kw_only=True)
class CRL:
    """Objective Eq. 4."""

    threshold: float = 0.95  # tau
    pseudo_label_mode: Literal["train", "eval"] = "train"  # released_code: train; the paper is silent
    views: Literal["two_forwards", "one_forward"] = (
        "two_forwards"  # released_code: one_forward, which mixes BN statistics
    )

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.views == "one_forward" and self.pseudo_label_mode == "eval":
            raise ConfigError(
                "views: 'one_forward' shares the training pass; 'two_forwards' would be right with 'eval'"
            )

    def update(self, keeps_momentum: bool) -> ConsistencyUpdate:
        return ConsistencyUpdate(
            keeps_momentum=keeps_momentum,
            threshold=self.threshold,
            pseudo_label_mode=self.pseudo_label_mode,
            views=self.views,
        )


@dataclass(frozen=True, kw_only=True)
class SelfTraining:
    """Objective Eq. 5."""

    threshold: float = 0.95  # tau

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def update(self, keeps_momentum: bool) -> SelfTrainingUpdate:
        return SelfTrainingUpdate(keeps_momentum=keeps_momentum, threshold=self.threshold)


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Objective Eq. 6: needs the label setting "everywhere"."""

    def update(self, keeps_momentum: bool) -> SupervisedUpdate:
        return SupervisedUpdate(keeps_momentum=keeps_momentum)


def check_threshold(threshold: float) -> None:
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(f"threshold: {threshold} is outside [0, 1]")


def check_counts(method: object, **least: int) -> None:
    """Raise ConfigError where one of the method's whole-number fields is below its least value."""
    for name, smallest in least.items():
        if getattr(method, name) < smallest:
            raise ConfigError(f"method.{name}: {getattr(method, name)}; at least {smallest} would be right")
