"""ProxyFL: rows of the last layer are class proxies, which the server tunes and a contrastive loss uses.

Chen, Wang. ProxyFL: A Proxy-Guided Framework for Federated Semi-Supervised Learning. CVPR 2026, arXiv:2602.21078.
Released code: DuowenC/FSSLlib, f732a27 (ProxyFL/proxyfl.py, scripts/train.sh).

The proxy of a class is its row W_c of the last layer. The local step is the one of `sage`: the labels of L_u are
predicted by the global model, for images that are above the threshold for either model (proxyfl.py:213-252). ICPL adds
a contrastive loss over both views of all unlabelled images. Each image is attracted by the proxy of its class or, if
both models are below the threshold, by the sum of p_c W_c over its candidates, which are the classes with a probability
of the global model above their share. It is repelled by images of the batch that have no candidate in common with it
(lines 300-344). GPT: the server tunes the mean W by SGD, so that each of the clients' proxies is nearest to the proxy
of its class (lines 72-106).

Setting the three implementation choices to "paper" does not give the paper's method: paper and code differ in eight
more points, in which this file follows the code. Deviations: reports/sage/departures.md, entries 19 to 21 and 26. In
addition:
1. Shares of the classes are counted over all steps of a job. Released code: over the last fifth (lines 267-290).
2. The gradient of the tuning is an explicit formula in float64, and its batches have a separate random order.

Legend: M images of both unlabelled views among the N images of a batch; F features; P proxies of clients.
"""

from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import Count, NotNegative, Positive, Share, Whole
from benchmark.losses import consistency_loss, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods.sage import ClientUpdate, Logits, TwoLabellers
from benchmark.methods.shared import RunningMean, sent
from benchmark.models.build import head_of
from benchmark.models.classifier import Classifier

MOST_MARGIN = 100.0  # upper bound of the margin in the tuning
LEAST_SIMILAR = 1e-6  # the smallest cosine similarity of two images that repel each other


@dataclass(frozen=True, kw_only=True)
class ProxyFL(TwoLabellers):
    """ProxyFL; without tuning passes it is "ICPL alone" of Table 2, with proxy weight 0 it is "GPT alone".

    The defaults of the three implementation choices follow the released code: Table 7 counts its projections, so that
    the published numbers come from this code.
    """

    proxy_weight: NotNegative = 1.0  # beta
    tuning_passes: Whole = 100  # Q    10 on CIFAR-100; passes of the server over the clients' proxies
    tuning_rate: Positive = 0.005  # scripts/train.sh; options.py has .01
    tuning_batch_size: Count = 4  # scripts/train.sh; options.py has 10
    decay: Share = 0.99  # the weight of the old shares in the update of the classes' shares
    # The number of most probable classes that are candidates (Table 4: 1, 5). None: the classes above their share.
    candidates: Count | None = None
    # The vectors that ICPL compares. "paper": features and proxies. "released_code": the outputs of one linear layer
    # for each of them, which are trained and averaged with the model (Model/resnet.py, ResNet_PC).
    projections: Literal["paper", "released_code"] = "released_code"
    # The candidates of labelled images. "paper": their labels. "released_code": the same rule as for unlabelled images,
    # but only with the global model (lines 224-226, 249).
    labelled_candidates: Literal["paper", "released_code"] = "released_code"
    # The margin in the tuning. "released_code": the largest distance of a mean proxy to its nearest other mean proxy,
    # at most 100, is added to the distance to the own class (lines 79-93). "paper": no margin.
    margin: Literal["paper", "released_code"] = "released_code"

    def check(self, setup: fl.Setup) -> None:
        setup.width()

    def init(self, setup: fl.Setup) -> fl.State:
        """Start with equal shares of the classes, and with the initial weights of PyTorch's linear layers."""
        D = setup.num_classes
        server: fl.Tree = {"student": setup.initial_weights(), "shares": torch.full((D,), 1 / D)}
        if self.projections == "released_code":
            width = setup.width()
            draw, bound = setup.generator("projections"), width**-0.5
            shapes = {"feature_weight": (width, width), "feature_bias": (width,), "proxy_weight": (width, width)}
            server["projections"] = {
                name: torch.from_numpy(draw.uniform(-bound, bound, shape)).to(torch.get_default_dtype())
                for name, shape in shapes.items()
            }
        return fl.State(server=server)

    def consistency(self, logits: Logits) -> fl.Loss:
        local, common = pseudo_labels(logits["weak"], self.threshold), pseudo_labels(logits["global"], self.threshold)
        kept_N = local.kept_N | common.kept_N
        loss = consistency_loss(logits["strong"], common.labels_N, kept_N)
        return loss, {"labels_N": common.labels_N, "kept_N": kept_N}

    def update(self, world: fl.World, client: int) -> "ProxyUpdate":
        return ProxyUpdate(method=self, keeps_momentum=self.keeps_momentum)

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        head = f"{head_of(world.model)}.weight"
        means = {name: RunningMean() for name in ("student", "projections") if name in state.server}
        counts, proxies = [], []
        jobs = [replace(job, receives=dict(state.server)) for job in self.jobs(state.server["student"], world)]
        for _, sends in sent(world.fit(jobs)):
            for name, mean in means.items():
                mean.add(sends[name])
            counts.append(sends["counts"])
            proxies.append(sends["student"][head])
        if not counts:
            return state, {}
        server: fl.Tree = {name: mean.value() for name, mean in means.items()}
        mean_DF = server["student"][head]
        tuned_DF = tuned(mean_DF, torch.stack(proxies), self, world.generator("tuning"))
        server["student"] = {**server["student"], head: tuned_DF}
        counts_D = torch.stack(counts).sum(dim=0)
        server["shares"] = state.server["shares"]
        if counts_D.any():  # if not, no image of this round has a label
            server["shares"] = self.decay * server["shares"] + (1 - self.decay) * counts_D / counts_D.sum()
        return fl.State(server=server), {"proxyfl/tuned_by": float((tuned_DF - mean_DF).norm() / mean_DF.norm())}


def tuned(mean_DF: Tensor, proxies_KDF: Tensor, method: ProxyFL, order: np.random.Generator) -> Tensor:
    """Tune the mean proxies by Q passes of SGD over the clients' proxies, on the CPU.

    The loss is the cross-entropy of the negative distances to the mean proxies.
    """
    W_DF, (K, D, _) = mean_DF.double().cpu(), proxies_KDF.shape
    proxies_PF, labels_P = proxies_KDF.flatten(0, 1).double().cpu(), torch.arange(D).repeat(K)
    margin = 0.0
    if method.margin == "released_code" and D > 1:
        apart_DD = torch.cdist(W_DF, W_DF).fill_diagonal_(torch.inf)
        margin = min(float(apart_DD.amin(dim=1).max()), MOST_MARGIN)
    own_DD = torch.eye(D, dtype=torch.float64)
    for _ in range(method.tuning_passes):
        shuffled_P = torch.from_numpy(order.permutation(K * D))
        for at_N in shuffled_P.split(method.tuning_batch_size):
            away_NDF, own_ND = W_DF - proxies_PF[at_N][:, None], own_DD[labels_P[at_N]]
            distance_ND = away_NDF.norm(dim=-1)
            slope_ND = (own_ND - torch.softmax(-distance_ND - margin * own_ND, dim=-1)) / len(at_N)
            toward_ND = slope_ND / distance_ND.clamp(min=1e-30)  # a distance of 0 has no direction
            W_DF = W_DF - method.tuning_rate * (toward_ND[..., None] * away_NDF).sum(dim=0)
    return W_DF.to(mean_DF)


@dataclass(frozen=True, kw_only=True)
class ProxyUpdate(ClientUpdate):
    """Local work of a client: the step of `sage` with the contrastive loss ICPL."""

    method: ProxyFL

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        if "projections" in received:
            local.trainable["projections"], local.layers = received["projections"], ("projections",)
        local.notes["counts_D"] = torch.zeros_like(received["shares"])
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        student = cast(Classifier, step.student)
        head = cast(nn.Linear, student.get_submodule(student.head))
        features = self.passed(student.features, step)
        logits = {view: head(features_NF) for view, features_NF in features.items()}
        loss, aux = self.loss_of(logits, step)
        classes_D = torch.arange(head.out_features, device=head.weight.device)
        if "labelled" in step.batch:
            known_ND = step.batch["labelled"].known_N[:, None] == classes_D
            step.notes["counts_D"] = step.notes["counts_D"] + known_ND.sum(dim=0)
        if "unlabelled" not in step.batch:
            return loss, aux
        best_MD = aux["labels_N"][:, None] == classes_D
        step.notes["counts_D"] = step.notes["counts_D"] + (best_MD & aux["kept_N"][:, None]).sum(dim=0)
        if not self.method.proxy_weight:
            return loss, aux
        p_MD = torch.softmax(logits["global"], dim=-1)
        candidates_MD, unsure_M1 = self._candidates(p_MD, step), ~aux["kept_N"][:, None]
        weight_MD = torch.where(unsure_M1, p_MD * candidates_MD, best_MD.to(p_MD.dtype))
        sets = [torch.where(unsure_M1, candidates_MD, best_MD)] * 2  # weak and strong view
        if "labelled" in step.batch:
            sets.insert(0, self._labelled_candidates(step, classes_D))
        compared = torch.cat(list(features.values())), head.weight
        if "projections" in step.trainable:
            layers = cast(nn.ParameterDict, step.trainable["projections"])
            compared = (
                F.linear(compared[0], layers["feature_weight"], layers["feature_bias"]),
                F.linear(compared[1], layers["proxy_weight"]),
            )
        contrast = contrast_loss(*compared, weight_MD.repeat(2, 1), torch.cat(sets))
        loss = loss + self.method.proxy_weight * contrast
        return loss, {**aux, "client/proxy_loss": contrast, "client/loss": loss}

    def _candidates(self, p_ND: Tensor, step: fl.Step) -> Tensor:
        if self.method.candidates is None:
            return p_ND > step.received["shares"]
        return p_ND >= p_ND.topk(min(self.method.candidates, p_ND.shape[1]), dim=-1).values[:, -1:]

    def _labelled_candidates(self, step: fl.Step, classes_D: Tensor) -> Tensor:
        labelled = step.batch["labelled"]
        if self.method.labelled_candidates == "paper":
            return labelled.known_N[:, None] == classes_D
        with torch.no_grad():
            logits_ND = step.frozen["global"](labelled.views["weak"])
        best = pseudo_labels(logits_ND, self.method.threshold)
        candidates_ND = self._candidates(torch.softmax(logits_ND, dim=-1), step)
        return torch.where(best.kept_N[:, None], best.labels_N[:, None] == classes_D, candidates_ND)

    def finish(self, local: fl.Local) -> fl.Tree:
        projections = {name: local.trainable[name] for name in local.layers}
        return {**super().finish(local), **projections, "counts": local.notes["counts_D"]}


def contrast_loss(features_NF: Tensor, proxies_DF: Tensor, weight_MD: Tensor, sets_ND: Tensor) -> Tensor:
    """Compute the contrastive loss ICPL, a mean over the last M of the N images.

    It is a cross-entropy over cosines, in which the weighted sum of an image's proxies is the positive example, and the
    images without a class in common with the image's set are the negative ones.
    """
    features_NF, proxies_DF = F.normalize(features_NF, dim=-1), F.normalize(proxies_DF, dim=-1)
    of_M = slice(len(features_NF) - len(weight_MD), None)
    near_M1 = (features_NF[of_M] * (weight_MD @ proxies_DF)).sum(dim=-1, keepdim=True)
    similar_MN, sets_ND = features_NF[of_M] @ features_NF.T, sets_ND.to(features_NF.dtype)
    left_out_MN = (sets_ND[of_M] @ sets_ND.T > 0) | (similar_MN < LEAST_SIMILAR)
    logits_MX = torch.cat([near_M1, similar_MN.masked_fill(left_out_MN, -torch.inf)], dim=-1)
    return (torch.logsumexp(logits_MX, dim=-1) - near_M1[:, 0]).mean()
