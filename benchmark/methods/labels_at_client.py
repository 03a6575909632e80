"""SSFL with labels at the clients (appendix H, Table 3): each client takes Eq. 3 on its labels beside its other loss.

Zhang et al. arXiv:2008.11364, appendix H: "we can simply apply the same server loss function Eq. 3 to the labeled data
at the users"; the server "only aggregates". The released code does otherwise (train_LocalSGD.py:483-507): weak and
strong view go through the network in one batch, and each half learns from its own argmax, so that no view teaches the
other. Both are here; `SSFL.client_labels` chooses.

Departures: batches of labels are as large as the server's would be (64, a client's 50 images all at once), and views
of labelled images are weak; the two losses add up without a factor, as in both.

Legend: N images of a batch, M = 2 N views, C channels, H W pixels, D classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from benchmark.losses.consistency import consistency_loss, pseudo_labels
from benchmark.methods.objectives import ConsistencyUpdate, SelfTrainingUpdate, StudentUpdate, supervised_step
from benchmark.methods.protocol import Batch, LocalUpdate, Networks

Loss = tuple[Tensor, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class LabelledConsistencyUpdate(ConsistencyUpdate):
    """Eq. 3 + Eq. 4: the paper's."""

    mean_over_images: ClassVar[bool] = True
    # Labelled images pass with gradient; of the others the weak view labels and the strong one learns.
    passes: ClassVar[Mapping[str, tuple[int, int]]] = {"unlabelled/weak": (1, 0)}

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return with_labels(super().loss(trainable, frozen, batch, draw), trainable, batch)


@dataclass(frozen=True, kw_only=True)
class LabelledSelfTrainingUpdate(SelfTrainingUpdate):
    """Eq. 3 + Eq. 5."""

    mean_over_images: ClassVar[bool] = True
    passes: ClassVar[Mapping[str, tuple[int, int]]] = {"unlabelled/weak": (1, 1)}

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return with_labels(super().loss(trainable, frozen, batch, draw), trainable, batch)


@dataclass(frozen=True, kw_only=True)
class TwoViewSelfTrainingUpdate(StudentUpdate):
    """Eq. 3, and self-training on weak and strong views alike: the released code's."""

    mean_over_images: ClassVar[bool] = True

    threshold: float = 0.95  # tau

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The quality that is measured outside is that of the weak views' labels."""
        views = batch["unlabelled"].views
        logits_MD = trainable["student"](torch.cat([views["weak"], views["strong"]]))
        labels_M, _, kept_M = pseudo_labels(logits_MD.detach(), self.threshold)
        loss = consistency_loss(logits_MD, labels_M, kept_M)
        N = len(views["weak"])
        aux = {"client/loss": loss.detach(), "labels_N": labels_M[:N], "kept_N": kept_M[:N]}
        return with_labels((loss, aux), trainable, batch)


@dataclass(frozen=True, kw_only=True)
class LabelsAloneUpdate(StudentUpdate):
    """Eq. 3 at a client, for a warm start."""

    mean_over_images: ClassVar[bool] = True

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return supervised_step(trainable, batch["labelled"], "client/labelled_loss")


def with_labels_too(update: ConsistencyUpdate | SelfTrainingUpdate) -> LocalUpdate:
    """The same objective with Eq. 3 beside it."""
    kind = LabelledConsistencyUpdate if isinstance(update, ConsistencyUpdate) else LabelledSelfTrainingUpdate
    return kind(**{f.name: getattr(update, f.name) for f in fields(update)})


def with_labels(found: Loss, trainable: Networks, batch: Mapping[str, Batch]) -> Loss:
    """The loss on the unlabelled images plus that on the labelled ones, and the reports of both."""
    unlabelled, aux = found
    labelled, more = supervised_step(trainable, batch["labelled"], "client/labelled_loss")
    return unlabelled + labelled, {**aux, **more}
