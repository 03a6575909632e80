"""SAGE and its baselines: a client's own model and the global one label its images.

Five methods of one local step: FixMatch with local (LPL) or global pseudo-labels (GPL), FlexMatch, FedLabel and SAGE.
They are rows of ProxyFL's tables (DuowenC/FSSLlib, f732a27), as in SAGE's protocol (Jay-Codeman/SAGE, e90fa96, which
has SAGE alone).

A local step passes a batch of labelled images (weak view) and one of unlabelled images (weak and strong view) through
the client's model: L = CE(labelled) + lambda_u L_u(strong). Labels of L_u come from p_L, the model's own prediction of
the weak view in training mode, and p_G, that of the model as received, in evaluation mode. The methods differ in L_u
alone, a mean over all images of the batch. Clients count alike in the mean (SAGE.py:36-45; as released by size, but all
are equally large). Labels alone and FedProx are `supervised_fl`; `feddb` has this file's local step.

Departures:
1. A client without images of a kind leaves out that term.
2. Where an epoch has more steps than a pass, the release ends the pass with the epoch (SAGE.py:115-132); here it goes
   on, so that every image comes equally often.
3. SAGE's soft labels are learned by cross-entropy. The released divergence is less by their entropy, which has no
   gradient, and adds 1e-10 to both distributions (SAGE.py:187-191).
4. The rows but SAGE's have no released code; what their papers leave open is a switch.
5. FlexMatch needs all images of a client from the first round on: other `data.streaming_steps` than 1 are refused.

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

Logits = Mapping[str, Tensor]  # logits_ND of "labelled", "weak" and "strong" views, and the "global" model's of "weak"
NEVER = -1  # the last sure label of an image that never had one
NO_IMAGE = -2  # in place of a label, where a client has fewer images than another one
COPIES = 2000  # of the labelled list (dataset.py:110)


@dataclass(frozen=True, kw_only=True)
class TwoLabellers(fl.Method):
    """Fields and round of all of them. Each has its own `consistency`. Sizes are the release's (options.py)."""

    threshold: Share = 0.95  # tau
    unlabelled_weight: NotNegative = 1.0  # lambda_u
    batch_size: Count = 256
    labelled_batch_size: Count = 128
    # Whether all views pass the student as one batch, whose statistics batch norms take. Default: as released
    # (SAGE.py:137-145); no paper says otherwise.
    forward: Literal["joint", "apart"] = "joint"
    # Momentum buffers between jobs: none, each client's own, or, as released, those of one optimizer for all clients
    # and rounds (SAGE.py:82), which pass from client to client; jobs then run one after another. Default: none, since
    # the clients of a federation cannot share them unsent.
    momentum: Literal["reset", "kept", "released_code"] = "reset"
    # "released_code": the labelled list stands 2000 times in a pass, so that a batch may hold an image twice and is
    # always full. Default: once, and the incomplete batch at the end of a pass is left out.
    labelled_list: Literal["once", "released_code"] = "once"

    needs = frozenset({"drawn_apart", "every_client", "share", "some_clients", "one_more_client"})
    views: ClassVar[tuple[str, ...]] = ("weak", "strong")  # of unlabelled images
    uses_global: ClassVar[bool] = True  # whether p_G is needed

    def consistency(self, logits: Logits) -> fl.Loss:
        """L_u, and the pseudo-labels to report. FixMatch's, of the one model that labels."""
        labels_N, _, kept_N = pseudo_labels(logits["global" if self.uses_global else "weak"], self.threshold)
        return consistency_loss(logits["strong"], labels_N, kept_N), {"labels_N": labels_N, "kept_N": kept_N}

    @property
    def keeps_momentum(self) -> bool:
        return self.momentum != "reset"

    def update(self, world: fl.World, client: int) -> "ClientUpdate":
        return ClientUpdate(method=self, keeps_momentum=self.keeps_momentum)

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        outcomes = world.fit(self.jobs(student, world))
        return fl.State(server={"student": mean_of(outcomes, otherwise=student)}), {}

    def jobs(self, student: fl.Weights, world: fl.World) -> list[fl.Job]:
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
        """An epoch, as released, is the whole batches of the labelled ones' size in the unlabelled images: two passes
        (SAGE.py:120). A schedule of the rate counts T steps a round in any case."""
        if world.limit.epochs is None:
            return world.limit
        images = world.unlabelled(client) or world.sizes[client]
        return fl.Limit(steps=world.limit.epochs * max(1, images // self.labelled_batch_size))


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(StudentUpdate):
    """The local step of all of them."""

    method: TwoLabellers

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local, labels_N = super().begin(received, private, reader), reader.labels("labelled")
        if self.method.uses_global:
            local.frozen = {"global": received["student"]}
        if self.method.labelled_list == "released_code" and labels_N is not None:
            local.selected["labelled"] = fl.Selected(positions_N=torch.arange(len(labels_N)).repeat(COPIES))
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        return self.loss_of(self.passed(step.student, step), step)

    def loss_of(self, logits: dict[str, Tensor], step: fl.Step) -> fl.Loss:
        """The loss of the student's logits by view, to which p_G's are added."""
        terms, aux, batch = [], {}, step.batch
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
        """L_u of one batch, and what is reported of it."""
        return self.method.consistency(logits)

    def passed(self, student: Callable[[Tensor], Tensor], step: fl.Step) -> dict[str, Tensor]:
        """What the student makes of all views of the batch, with a gradient."""
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

    FixMatch (Sohn et al. NeurIPS 2020, Eqs. 3 and 4) as local training of FedAvg.
    """

    uses_global = False


@dataclass(frozen=True, kw_only=True)
class FixMatchGPL(TwoLabellers):
    """FixMatch-GPL: clients learn the confident labels of the model that they received.

    FixMatch (Sohn et al. NeurIPS 2020, Eqs. 3 and 4) as local training of FedAvg.
    """


@dataclass(frozen=True, kw_only=True)
class FlexMatchLPL(TwoLabellers):
    """FlexMatch-LPL: FixMatch-LPL with a threshold for each class, lower where it is learned less.

    FlexMatch (Zhang et al. NeurIPS 2021, arXiv:2110.08263, Eqs. 5 to 8) as local training of FedAvg.
    """

    # Each image's last sure label, which thresholds count: kept by the client from job to job, or forgotten. Default:
    # kept, since FlexMatch counts over the whole of training; ProxyFL does not say.
    counts: Literal["kept", "forgotten"] = "kept"

    uses_global = False
    asks_for_all_images = True

    def update(self, world: fl.World, client: int) -> "FlexMatchUpdate":
        M, most = world.unlabelled(client), max(world.unlabelled(k) for k in range(world.K))
        return FlexMatchUpdate(method=self, keeps_momentum=self.keeps_momentum, client=client, M=M, most=most)


@dataclass(frozen=True, kw_only=True)
class FlexMatchUpdate(ClientUpdate):
    """Train with one threshold per class, which follows from the last sure label of each of the client's M images."""

    method: FlexMatchLPL
    most: int  # images of the client that has most: the steps of all clients have tensors of one shape
    # Of `begin` and `finish` alone:
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
        """Thresholds are those before this batch."""
        images, tau = step.batch["unlabelled"], self.method.threshold
        labels_N, confidence_N, sure_N = pseudo_labels(logits["weak"], tau)
        last_M = step.notes["last_M"]
        kept_N = confidence_N >= flexible_thresholds(last_M, logits["weak"].shape[-1], tau)[labels_N]
        assert images.positions_N is not None
        last_N = torch.where(sure_N, labels_N, images.of_images(last_M))
        step.notes["last_M"] = last_M.index_copy(0, images.positions_N, last_N)
        return consistency_loss(logits["strong"], labels_N, kept_N), {"labels_N": labels_N, "kept_N": kept_N}

    def finish(self, local: fl.Local) -> fl.Tree:
        kept = (local.private or {}).get("last_sure", {})  # of all clients where they share their momentum
        sends = super().finish(local)
        if self.method.counts == "kept":
            last = {**kept, str(self.client): local.notes["last_M"][: self.M].clone()}
            local.private = {**(local.private or {}), "last_sure": last}
        return sends


def flexible_thresholds(last_M: Tensor, D: int, tau: float) -> Tensor:
    """tau_D, a threshold for each class. With b the images last sure of a class, over those of the largest class or
    the images never sure, whichever are more: tau b / (2 - b)."""
    counts = (last_M.unsqueeze(1) == torch.arange(NEVER, D, device=last_M.device)).sum(dim=0)
    b_D = counts[1:] / counts.max()
    return tau * b_D / (2 - b_D)


@dataclass(frozen=True, kw_only=True)
class FedLabel(TwoLabellers):
    """FedLabel: of a client's own and the global model, the surer one labels an image.

    Cho, Joshi, Dimitriadis. Local or Global: Selective Knowledge Assimilation for Federated Learning with Limited
    Labels. ICCV 2023, arXiv:2307.08809. No released code; SAGE's options.py has its weight.

    Where both name the same class, a divergence pulls the local model's output to the global one's.
    """

    agreement_weight: NotNegative = 1.0  # options.py: fedlabel_lambda
    # Of the local model's output in the divergence. Default: the weak view, whose two outputs gave the labels.
    agreement_view: Literal["weak", "strong"] = "weak"
    # KL(global || local), or KL(local || global). Default: the former, whose target is the model that stays.
    divergence: Literal["from_global", "from_local"] = "from_global"

    def consistency(self, logits: Logits) -> fl.Loss:
        local, common = pseudo_labels(logits["weak"], self.threshold), pseudo_labels(logits["global"], self.threshold)
        labels_N = torch.where(local.confidence_N >= common.confidence_N, local.labels_N, common.labels_N)
        kept_N = local.kept_N | common.kept_N
        loss = consistency_loss(logits["strong"], labels_N, kept_N)
        local_ND, global_ND, agreed_N = logits[self.agreement_view], logits["global"], local.labels_N == common.labels_N
        if self.divergence == "from_global":
            agreement = divergence_loss(local_ND, torch.softmax(global_ND, dim=-1), agreed_N)
        else:
            local_log_ND, global_log_ND = torch.log_softmax(local_ND, dim=-1), torch.log_softmax(global_ND, dim=-1)
            agreement = ((local_log_ND.exp() * (local_log_ND - global_log_ND)).sum(dim=-1) * agreed_N).mean()
        aux = {"client/agreement_loss": agreement, "labels_N": labels_N, "kept_N": kept_N}
        return loss + self.agreement_weight * agreement, aux


@dataclass(frozen=True, kw_only=True)
class SAGE(TwoLabellers):
    """SAGE: the less a sure client agrees with the global model, the less its label counts.

    Liu, Shang, Zhang, Lu, Gong, Xue, Wang. Mind the Gap: Confidence Discrepancy Can Guide Federated Semi-Supervised
    Learning Across Pseudo-Mismatch. CVPR 2025, arXiv:2503.13227. Released: SAGE.py:152-196.

    Where p_L is sure, the label is lambda 1[y_L] + (1 - lambda) 1[y_G], with lambda = exp(-kappa |max p_L - max p_G|);
    elsewhere 1[y_G]. Images of which either is sure count.
    """

    # ln 2 / kappa, the gap at which both labels count alike. Released: .05 (line 177), whatever --kappa says.
    half_gap: Positive = 0.05

    def consistency(self, logits: Logits) -> fl.Loss:
        local, common = pseudo_labels(logits["weak"], self.threshold), pseudo_labels(logits["global"], self.threshold)
        gap_N = (local.confidence_N - common.confidence_N).abs() + 1e-6
        lambda_N = torch.exp(-math.log(2) / self.half_gap * gap_N) * local.kept_N
        losses = [F.cross_entropy(logits["strong"], y.labels_N, reduction="none") for y in (local, common)]
        kept_N = local.kept_N | common.kept_N
        loss = (torch.lerp(losses[1], losses[0], lambda_N) * kept_N).mean()
        return loss, {"labels_N": torch.where(lambda_N > 0.5, local.labels_N, common.labels_N), "kept_N": kept_N}
