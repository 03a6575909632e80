"""SAGE and its baselines: the local model and the global model label a client's images.

This file has five methods with the same local step: FixMatch with local (LPL) or global pseudo-labels (GPL), FlexMatch,
FedLabel and SAGE. They are rows of ProxyFL's tables (DuowenC/FSSLlib, f732a27), in the protocol of SAGE
(Jay-Codeman/SAGE, e90fa96). SAGE's repository contains no other method.

A local step passes a batch of labelled images in the weak view, and a batch of unlabelled images in the weak and the
strong view, through the client's model: L = CE(labelled) + lambda_u L_u(strong). The labels of L_u are computed from
p_L, the prediction of the client's model on the weak view in training mode, and from p_G, the prediction of the
received model in evaluation mode. The methods only differ in L_u, a mean over all images of the batch. All clients have
the same weight in the mean (SAGE.py:36-45; the released code weighs by size, but all clients have the same size). The
supervised baseline (labels only) and FedProx are `supervised_fl`; `feddb`, `feddure` and `proxyfl` use the local step
of this file.

Deviations:
1. A client without labelled or without unlabelled images leaves out this term of the loss.
2. If an epoch ends within a pass, the released code starts a new pass with the next epoch (SAGE.py:115-132). In this
   suite the pass continues, so that all images occur equally often.
3. SAGE learns its soft labels by the cross-entropy. The released divergence is smaller by the entropy of the labels,
   which has no gradient, and adds 1e-10 to both distributions (SAGE.py:187-191).
4. Except for SAGE, the rows have no released code. Each point that a paper does not specify is an implementation
   choice.
5. FlexMatch needs all images of a client from the first round; values of `data.streaming_steps` other than 1 are
   refused.

Legend: M unlabelled images of a client.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.config import Count, NotNegative, Positive, Share
from benchmark.losses import consistency_loss, divergence_loss, pseudo_labels, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.shared import StudentUpdate, mean_of

Logits = Mapping[str, Tensor]  # logits_ND of "labelled", "weak", "strong"; "global": the global model's on weak views
NEVER = -1  # in place of the last confident label of an image that never had one
NO_IMAGE = -2  # padding for clients with fewer images than the largest client
COPIES = 2000  # the number of copies of the labelled list in a pass (dataset.py:110)


@dataclass(frozen=True, kw_only=True)
class TwoLabellers(fl.Method):
    """The fields and the round of all methods with this local step. Each method defines its `consistency`.

    Batch sizes follow the released code (options.py).
    """

    threshold: Share = 0.95  # tau
    unlabelled_weight: NotNegative = 1.0  # lambda_u
    batch_size: Count = 256
    labelled_batch_size: Count = 128
    # joint: all views pass the student as one batch, which gives the statistics of batch norms. Default: joint, as in
    # the released code (SAGE.py:137-145), which no paper contradicts.
    forward: Literal["joint", "apart"] = "joint"
    # Momentum buffers between jobs. reset: none; kept: each client keeps its own; released_code: one optimizer for all
    # clients and rounds (SAGE.py:82). Its buffers pass from client to client, so that jobs run one after the other.
    # Default: reset, since clients of a federation cannot share buffers without sending them.
    momentum: Literal["reset", "kept", "released_code"] = "reset"
    # "released_code": a pass contains the labelled list 2000 times, so that a batch is always full and may contain an
    # image twice. Default: once, and the incomplete batch at the end of a pass is left out.
    labelled_list: Literal["once", "released_code"] = "once"

    needs = frozenset({"drawn_apart", "every_client", "share", "some_clients", "one_more_client"})
    views: ClassVar[tuple[str, ...]] = ("weak", "strong")  # the views of unlabelled images
    uses_global: ClassVar[bool] = True  # whether p_G is needed

    def consistency(self, logits: Logits) -> fl.Loss:
        """Compute L_u and the pseudo-labels to report.

        This is the loss of FixMatch, with labels from the global or the local model.
        """
        labels_N, _, kept_N = pseudo_labels(logits["global" if self.uses_global else "weak"], self.threshold)
        return consistency_loss(logits["strong"], labels_N, kept_N), {"labels_N": labels_N, "kept_N": kept_N}

    @property
    def keeps_momentum(self) -> bool:
        return self.momentum != "reset"

    def update(self, world: fl.World, client: int) -> "ClientUpdate":
        """Build the local update of a client."""
        return ClientUpdate(method=self, keeps_momentum=self.keeps_momentum)

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        outcomes = world.fit(self.jobs(student, world))
        return fl.State(server={"student": mean_of(outcomes, otherwise=student)}), {}

    def jobs(self, student: fl.Weights, world: fl.World) -> list[fl.Job]:
        """Build the job of each client of the cohort."""
        labelled = fl.Stream(part="labelled", batch_size=self.labelled_batch_size, views=("weak",))
        unlabelled = fl.Stream(part="unlabelled", batch_size=self.batch_size, views=self.views)
        return [
            world.job(
                client,
                self.update(world, client),
                {"student": student},
                world.streams(client, labelled=labelled, unlabelled=unlabelled),
                limit=self._limit(world, client),
                keeps="everyone" if self.momentum == "released_code" else None,
            )
            for client in world.cohort()
        ]

    def _limit(self, world: fl.World, client: int) -> fl.Limit:
        """Compute the length of a client's job.

        As in the released code, an epoch has one step per complete batch of `labelled_batch_size` in the unlabelled
        images, which is two passes with the default sizes (SAGE.py:120). A learning-rate schedule always counts T steps
        per round.
        """
        if world.limit.epochs is None:
            return world.limit
        images = world.unlabelled(client) or world.sizes[client]
        return fl.Limit(steps=world.limit.epochs * max(1, images // self.labelled_batch_size))


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(StudentUpdate):
    """Local work of a client, which all methods of this file use."""

    method: TwoLabellers

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        labels_N = reader.labels("labelled")
        if self.method.uses_global:
            local.frozen = {"global": received["student"]}
        if self.method.labelled_list == "released_code" and labels_N is not None:
            local.selected["labelled"] = fl.Selected(positions_N=torch.arange(len(labels_N)).repeat(COPIES))
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        return self.loss_of(self.passed(step.student, step), step)

    def loss_of(self, logits: dict[str, Tensor], step: fl.Step) -> fl.Loss:
        """Compute the loss from the student's logits by view. The global model's logits are added to this dict."""
        terms = []
        aux = {}
        batch = step.batch
        if "labelled" in batch:
            terms.append(supervised_loss(logits["labelled"], batch["labelled"].known_N))
            aux["client/supervised_loss"] = terms[0]
        if "unlabelled" in batch:
            if "global" in step.frozen:
                with torch.no_grad():
                    logits["global"] = step.frozen["global"](batch["unlabelled"].views["weak"])
            consistency, reported = self.consistency(logits, step)
            terms.append(self.method.unlabelled_weight * consistency)
            aux.update({"client/consistency_loss": consistency, **reported})
        loss = torch.stack(terms).sum()
        return loss, {**aux, "client/loss": loss}

    def consistency(self, logits: Logits, step: fl.Step) -> fl.Loss:
        """Compute L_u of one batch and the tensors to report."""
        return self.method.consistency(logits)

    def passed(self, student: Callable[[Tensor], Tensor], step: fl.Step) -> dict[str, Tensor]:
        """Compute the student's outputs for all views of the batch, with a gradient."""
        batch = step.batch
        images = {"labelled": batch["labelled"].views["weak"]} if "labelled" in batch else {}
        if "unlabelled" in batch:
            images.update(batch["unlabelled"].views)
        if self.method.forward == "apart":
            return {view: student(images_NCHW) for view, images_NCHW in images.items()}
        outputs_NX = student(torch.cat(list(images.values())))
        return dict(zip(images, outputs_NX.split([len(some_NCHW) for some_NCHW in images.values()]), strict=True))


@dataclass(frozen=True, kw_only=True)
class FixMatchLPL(TwoLabellers):
    """FixMatch-LPL: clients learn the confident labels of their own model.

    FixMatch (Sohn et al. NeurIPS 2020, Eqs. 3 and 4) is the local training of FedAvg.
    """

    uses_global = False


@dataclass(frozen=True, kw_only=True)
class FixMatchGPL(TwoLabellers):
    """FixMatch-GPL: clients learn the confident labels of the received model.

    FixMatch (Sohn et al. NeurIPS 2020, Eqs. 3 and 4) is the local training of FedAvg.
    """


@dataclass(frozen=True, kw_only=True)
class FlexMatchLPL(TwoLabellers):
    """FlexMatch-LPL: FixMatch-LPL with one threshold per class, which is lower for classes that are learned less.

    FlexMatch (Zhang et al. NeurIPS 2021, arXiv:2110.08263, Eqs. 5 to 8) is the local training of FedAvg.
    """

    # Whether the client keeps the last confident label of each image from job to job. Thresholds are computed from
    # these labels. Default: kept, since FlexMatch counts over the whole training; ProxyFL does not mention it.
    counts: Literal["kept", "forgotten"] = "kept"

    uses_global = False
    asks_for_all_images = True

    def update(self, world: fl.World, client: int) -> "FlexMatchUpdate":
        M = world.unlabelled(client)
        most = max(world.unlabelled(k) for k in range(world.K))
        return FlexMatchUpdate(method=self, keeps_momentum=self.keeps_momentum, client=client, M=M, most=most)


@dataclass(frozen=True, kw_only=True)
class FlexMatchUpdate(ClientUpdate):
    """Local work with one threshold per class, computed from the last confident labels of the client's M images."""

    method: FlexMatchLPL
    most: int  # the largest number of images at a client, so that tensors have the same shape at all clients
    # Only `begin` and `finish` read these fields:
    client: int = field(repr=False)
    M: int = field(repr=False)

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        local.private = private
        never_M = torch.full((self.M,), NEVER, device=next(iter(received["student"].values())).device)
        kept = (private or {}).get("last_sure", {}) if self.method.counts == "kept" else {}
        last_M = kept.get(str(self.client), never_M)
        local.notes["last_M"] = F.pad(last_M, (0, self.most - self.M), value=NO_IMAGE)
        return local

    def consistency(self, logits: Logits, step: fl.Step) -> fl.Loss:
        """Compute L_u with the thresholds before this batch, and update the last confident labels."""
        images = step.batch["unlabelled"]
        tau = self.method.threshold
        labels_N, confidence_N, sure_N = pseudo_labels(logits["weak"], tau)
        last_M = step.notes["last_M"]
        kept_N = confidence_N >= flexible_thresholds(last_M, logits["weak"].shape[-1], tau)[labels_N]
        assert images.positions_N is not None
        last_N = torch.where(sure_N, labels_N, images.of_images(last_M))
        step.notes["last_M"] = last_M.index_copy(0, images.positions_N, last_N)
        return consistency_loss(logits["strong"], labels_N, kept_N), {"labels_N": labels_N, "kept_N": kept_N}

    def finish(self, local: fl.Local) -> fl.Tree:
        kept = (local.private or {}).get("last_sure", {})  # of all clients if they share a client state
        sends = super().finish(local)
        if self.method.counts == "kept":
            last = {**kept, str(self.client): local.notes["last_M"][: self.M].clone()}
            local.private = {**(local.private or {}), "last_sure": last}
        return sends


def flexible_thresholds(last_M: Tensor, D: int, tau: float) -> Tensor:
    """Compute tau_D, the threshold tau b / (2 - b) of each class.

    b is the number of images with this class as last confident label, divided by the largest such number or by the
    number of images that never had a confident label, whichever is larger.
    """
    counts = (last_M.unsqueeze(1) == torch.arange(NEVER, D, device=last_M.device)).sum(dim=0)
    b_D = counts[1:] / counts.max()
    return tau * b_D / (2 - b_D)


@dataclass(frozen=True, kw_only=True)
class FedLabel(TwoLabellers):
    """FedLabel: the more confident of the local and the global model labels an image.

    Cho, Joshi, Dimitriadis. Local or Global: Selective Knowledge Assimilation for Federated Learning with Limited
    Labels. ICCV 2023, arXiv:2307.08809. No released code; SAGE's options.py contains its weight.

    If both models predict the same class, a divergence moves the local model's output towards the global model's.
    """

    agreement_weight: NotNegative = 1.0  # options.py: fedlabel_lambda
    # The view of the local model's output in the divergence. Default: the weak view, because both models predict the
    # labels from it.
    agreement_view: Literal["weak", "strong"] = "weak"
    # KL(global || local), or KL(local || global). Default: the former, with the fixed model as the target.
    divergence: Literal["from_global", "from_local"] = "from_global"

    def consistency(self, logits: Logits) -> fl.Loss:
        local, common = pseudo_labels(logits["weak"], self.threshold), pseudo_labels(logits["global"], self.threshold)
        labels_N = torch.where(local.confidence_N >= common.confidence_N, local.labels_N, common.labels_N)
        kept_N = local.kept_N | common.kept_N
        loss = consistency_loss(logits["strong"], labels_N, kept_N)
        local_ND = logits[self.agreement_view]
        global_ND = logits["global"]
        agreed_N = local.labels_N == common.labels_N
        if self.divergence == "from_global":
            agreement = divergence_loss(local_ND, torch.softmax(global_ND, dim=-1), agreed_N)
        else:
            local_log_ND, global_log_ND = torch.log_softmax(local_ND, dim=-1), torch.log_softmax(global_ND, dim=-1)
            agreement = ((local_log_ND.exp() * (local_log_ND - global_log_ND)).sum(dim=-1) * agreed_N).mean()
        aux = {"client/agreement_loss": agreement, "labels_N": labels_N, "kept_N": kept_N}
        return loss + self.agreement_weight * agreement, aux


@dataclass(frozen=True, kw_only=True)
class SAGE(TwoLabellers):
    """SAGE: the larger the confidence gap to the global model, the less a client's confident label counts.

    Liu, Shang, Zhang, Lu, Gong, Xue, Wang. Mind the Gap: Confidence Discrepancy Can Guide Federated Semi-Supervised
    Learning Across Pseudo-Mismatch. CVPR 2025, arXiv:2503.13227. Released: SAGE.py:152-196.

    If p_L is above the threshold, the label is lambda 1[y_L] + (1 - lambda) 1[y_G] with lambda = exp(-kappa |max p_L -
    max p_G|); if not, it is 1[y_G]. An image counts if p_L or p_G is above the threshold.
    """

    # ln 2 / kappa, the gap that gives both labels the same weight. Released code: .05 (line 177), whatever --kappa
    # is.
    half_gap: Positive = 0.05

    def consistency(self, logits: Logits) -> fl.Loss:
        local, common = pseudo_labels(logits["weak"], self.threshold), pseudo_labels(logits["global"], self.threshold)
        gap_N = (local.confidence_N - common.confidence_N).abs() + 1e-6
        lambda_N = torch.exp(-math.log(2) / self.half_gap * gap_N) * local.kept_N
        losses = [F.cross_entropy(logits["strong"], y.labels_N, reduction="none") for y in (local, common)]
        kept_N = local.kept_N | common.kept_N
        loss = (torch.lerp(losses[1], losses[0], lambda_N) * kept_N).mean()
        return loss, {"labels_N": torch.where(lambda_N > 0.5, local.labels_N, common.labels_N), "kept_N": kept_N}
