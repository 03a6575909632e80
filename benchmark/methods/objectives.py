"""Local work that methods share, and SSFL's objectives: server loss (Eq. 3), CRL (Eq. 4), self-training (Eq. 5),
supervised (Eq. 6), and these with labels at the clients (appendix H).

Zhang et al. arXiv:2008.11364. Appendix H: "we can simply apply the same server loss function Eq. 3 to the labeled data
at the users". The released code does otherwise (train_LocalSGD.py:483-507): weak and strong view go through the network
in one batch, and each half learns from its own argmax, so that no view teaches the other. `SSFL.client_labels` chooses.
Departures with labels at clients: their batches are as large as the server's would be (64, a client's 50 images all at
once), and views of labelled images are weak; the two losses add up without a factor, as in both.

Legend: N images of a batch, M = 2 N views, C channels, H W pixels, D classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.losses import consistency_loss, loss_of_kept, pseudo_labels, supervised_loss
from benchmark.methods.protocol import Batch, Batches, Local, LocalUpdate, Loss, Networks, Reader, Tree


@dataclass(frozen=True, kw_only=True)
class StudentUpdate(LocalUpdate):
    """One weight set, received, trained and sent back; the holder may keep its momentum buffers."""

    keeps_momentum: bool = False

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        return Local(trainable={"student": received["student"]}, momentum=(private or {}).get("momentum"))

    def finish(self, local: Local) -> Tree:
        local.private = {"momentum": local.momentum} if self.keeps_momentum else None
        return {"student": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class ReadOnlyUpdate(LocalUpdate):
    """Trains nothing: what `read` finds is sent; where it finds nothing, the holder sits out."""

    def read(self, received: Tree, reader: Reader) -> Tree:
        raise NotImplementedError(f"{type(self).__name__} has no read")

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        answer = self.read(received, reader)
        return Local(trainable={}, for_finish=answer) if answer else None

    def finish(self, local: Local) -> Tree:
        return local.for_finish


@dataclass(frozen=True, kw_only=True)
class SupervisedUpdate(StudentUpdate):
    """Eqs. 3 and 6: cross-entropy of the weak view with the labels of one stream."""

    stream: str = "labelled"
    reports: str = "client/labelled_loss"

    def loss(self, trainable: Networks, frozen: Networks, batch: Batches, draw: torch.Generator) -> Loss:
        loss = labelled_loss(trainable["student"], batch[self.stream])
        return loss, {self.reports: loss.detach()}


@dataclass(frozen=True, kw_only=True)
class ServerUpdate(SupervisedUpdate):
    """Eq. 3 at the server."""

    reports: str = "server/loss"


def labelled_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy on the weak view. The label setting has been checked: labels are there."""
    assert batch.labels_N is not None
    return supervised_loss(network(batch.views["weak"]), batch.labels_N)


@torch.no_grad()
def predict_weak(network: nn.Module, weak_NCHW: Tensor, mode: str) -> Tensor:
    """Logits that carry no gradient, with dropout and batch statistics as in training or as in evaluation."""
    if mode == "train":
        return network(weak_NCHW)
    network.eval()
    logits_ND = network(weak_NCHW)
    network.train()
    return logits_ND


# Checks of hyperparameters.


def check_threshold(threshold: float) -> None:
    check_range("threshold", threshold, "[0, 1]", 0.0 <= threshold <= 1.0)


def check_range(name: str, value: float, allowed: str, holds: bool) -> None:
    """Raise ConfigError where a value does not lie in the interval that `allowed` writes."""
    if not holds:
        raise ConfigError(f"{name}: {value} is outside {allowed}")


def check_not_negative(method: object, *names: str) -> None:
    for name in names:
        if not getattr(method, name) >= 0.0:
            raise ConfigError(f"{name}: {getattr(method, name)}; choose 0 or more")


def check_counts(method: object, **least: int) -> None:
    """Raise ConfigError where one of the method's whole-number fields is below its least value."""
    for name, smallest in least.items():
        if getattr(method, name) < smallest:
            raise ConfigError(f"method.{name}: {getattr(method, name)}; choose {smallest} or more")


# SSFL's objectives of clients, each with its local work.


@dataclass(frozen=True, kw_only=True)
class CRL:
    """Objective Eq. 4, consistency regularization: the strong view has to give the weak view's confident label."""

    threshold: float = 0.95  # tau
    pseudo_label_mode: Literal["train", "eval"] = "train"  # released_code: train; the paper is silent
    # released_code: one_forward, which mixes BN statistics
    views: Literal["two_forwards", "one_forward"] = "two_forwards"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.views == "one_forward" and self.pseudo_label_mode == "eval":
            raise ConfigError("views: 'one_forward' shares the training pass; with 'eval' choose 'two_forwards'")

    def update(self, keeps_momentum: bool) -> "ConsistencyUpdate":
        return ConsistencyUpdate(objective=self, keeps_momentum=keeps_momentum)


@dataclass(frozen=True, kw_only=True)
class ConsistencyUpdate(StudentUpdate):
    """Eq. 4, and Eq. 3 beside it where the client holds labels."""

    objective: CRL = CRL()

    def loss(self, trainable: Networks, frozen: Networks, batch: Batches, draw: torch.Generator) -> Loss:
        network, views = trainable["student"], batch["unlabelled"].views
        if self.objective.views == "one_forward":
            weak_ND, strong_ND = network(torch.cat([views["weak"], views["strong"]])).chunk(2)
            labels_N, kept_N = self.choose(weak_ND.detach())
            loss = consistency_loss(strong_ND, labels_N, kept_N)
        else:
            labels_N, kept_N = self.choose(predict_weak(network, views["weak"], self.objective.pseudo_label_mode))
            loss = loss_of_kept(network, views["strong"], labels_N, kept_N)
        return with_labels(loss, labels_N, kept_N, network, batch)

    def choose(self, logits_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The pseudo-labels, and which are kept."""
        labels_N, _, kept_N = pseudo_labels(logits_ND, self.objective.threshold)
        return labels_N, kept_N


@dataclass(frozen=True, kw_only=True)
class TwoViewSelfTrainingUpdate(StudentUpdate):
    """Eq. 3, and self-training on weak and strong views alike: the released code's, with labels at clients."""

    objective: CRL = CRL()

    def loss(self, trainable: Networks, frozen: Networks, batch: Batches, draw: torch.Generator) -> Loss:
        """The quality that is measured outside is that of the weak views' labels."""
        network, views = trainable["student"], batch["unlabelled"].views
        logits_MD = network(torch.cat([views["weak"], views["strong"]]))
        labels_M, _, kept_M = pseudo_labels(logits_MD.detach(), self.objective.threshold)
        loss = consistency_loss(logits_MD, labels_M, kept_M)
        N = len(views["weak"])
        return with_labels(loss, labels_M[:N], kept_M[:N], network, batch)


@dataclass(frozen=True, kw_only=True)
class SelfTraining:
    """Objective Eq. 5: the weak view has to give its own confident label."""

    threshold: float = 0.95  # tau

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def update(self, keeps_momentum: bool) -> "SelfTrainingUpdate":
        return SelfTrainingUpdate(objective=self, keeps_momentum=keeps_momentum)


@dataclass(frozen=True, kw_only=True)
class SelfTrainingUpdate(StudentUpdate):
    """Eq. 5, and Eq. 3 beside it where the client holds labels. The label is given in evaluation mode, as released
    (train_LocalSGD.py:547-570)."""

    objective: SelfTraining = SelfTraining()

    def loss(self, trainable: Networks, frozen: Networks, batch: Batches, draw: torch.Generator) -> Loss:
        network, weak_NCHW = trainable["student"], batch["unlabelled"].views["weak"]
        labels_N, _, kept_N = pseudo_labels(predict_weak(network, weak_NCHW, "eval"), self.objective.threshold)
        loss = loss_of_kept(network, weak_NCHW, labels_N, kept_N)
        return with_labels(loss, labels_N, kept_N, network, batch)


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Objective Eq. 6, what a client could do with oracle labels: needs the label setting "everywhere"."""

    def update(self, keeps_momentum: bool) -> SupervisedUpdate:
        return SupervisedUpdate(stream="unlabelled", reports="client/loss", keeps_momentum=keeps_momentum)


def with_labels(unlabelled: Tensor, labels_N: Tensor, kept_N: Tensor, network: nn.Module, batch: Batches) -> Loss:
    """The loss on unlabelled images, plus Eq. 3 where the client holds labels, and the reports of both."""
    aux = {"client/loss": unlabelled.detach(), "labels_N": labels_N, "kept_N": kept_N}
    if "labelled" not in batch:
        return unlabelled, aux
    labelled = labelled_loss(network, batch["labelled"])
    return unlabelled + labelled, {**aux, "client/labelled_loss": labelled.detach()}
