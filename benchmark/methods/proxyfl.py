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

Paper and code differ in eleven points. Each is an implementation choice of `ProxyFL` with the values "paper" and
"released_code". With all of them at "paper" it is the paper's method. Deviations: reports/sage/departures.md, entries
19 to 21 and 26. In addition, under both values:
1. Shares of the classes are counted over all steps of a job. Released code: over the last fifth (lines 267-290).
2. The gradient of the tuning is an explicit formula in float64, and its batches have a separate random order.
3. Probabilities that weight the candidates have no gradient. Released code: the same; the paper does not specify it.

Legend: M images of both unlabelled views among the N images of a batch; F features; P proxies of clients.
"""

from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import Count, NotNegative, Positive, Share, Whole, added
from benchmark.losses import consistency_loss, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods.sage import ClientUpdate, Logits, TwoLabellers
from benchmark.methods.shared import RunningMean, sent
from benchmark.models.build import head_of
from benchmark.models.classifier import Classifier

MOST_MARGIN = 100.0  # upper bound of the margin in the tuning
LEAST_SIMILAR = 1e-6  # the smallest cosine similarity of two images that repel each other

Way = Literal["paper", "released_code"]


@dataclass(frozen=True, kw_only=True)
class ProxyFL(TwoLabellers):
    """ProxyFL; without tuning passes it is "ICPL alone" of Table 2, with proxy weight 0 it is "GPT alone".

    The defaults of all implementation choices follow the released code: Table 7 counts its projections, so that the
    published numbers were computed by this code.
    """

    proxy_weight: NotNegative = 1.0  # beta
    tuning_passes: Whole = 100  # Q    10 on CIFAR-100; passes of the server over the clients' proxies
    tuning_rate: Positive = 0.005  # scripts/train.sh; options.py has .01
    tuning_batch_size: Count = 4  # scripts/train.sh; options.py has 10
    decay: Share = 0.99  # the weight of the old shares in the update of the classes' shares
    # The number of most probable classes that are candidates (Table 4: 1, 5); None for classes above their share.
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
    # The model that decides by its confidence whether an unlabelled image is confident. "paper": the global one (5.2.1,
    # Eq. 3). "released_code": either model (lines 213-252).
    confident_images: Way = added("released_code")
    # The probabilities that weight the candidates of an unconfident image. "paper": the local model's (Eq. 6).
    # "released_code": the global model's (lines 300-344). The candidates are the global model's under both.
    candidate_weights: Way = added("released_code")
    # The similarity in ICPL. "paper": inner product, and all images of other classes repel (Eq. 8). "released_code":
    # cosine, and images with a cosine below 1e-6 are left out (lines 300-344).
    similarity: Way = added("released_code")
    # The mean in ICPL. "paper": a mean over confident images plus a mean over unconfident ones (Eq. 8).
    # "released_code": one mean over all.
    contrast_mean: Way = added("released_code")
    # The mean in L_u. "paper": over confident images (Eq. 9). "released_code": over all images of the batch.
    consistency_mean: Way = added("released_code")
    # The unlabelled views in ICPL. "paper": weak (Eq. 3). "released_code": weak and strong.
    contrast_views: Way = added("released_code")
    # The update of the classes' shares. "paper": the mean of the shares of this round's clients (Eq. 5).
    # "released_code": `decay` times the old shares plus the rest times the shares of all counted labels.
    class_shares: Way = added("released_code")
    # The softmax in the tuning. "paper": over the proxies of a client, for each global proxy (Eq. 2).
    # "released_code": over the global proxies, for each of the clients' (lines 72-106).
    tuning_softmax: Way = added("released_code")

    def check(self, setup: fl.Setup) -> None:
        setup.width()

    def init(self, setup: fl.Setup) -> fl.State:
        """Start with equal shares of the classes, and with the initial weights of PyTorch's linear layers."""
        D = setup.num_classes
        server: fl.Tree = {"student": setup.initial_weights(), "shares": torch.full((D,), 1 / D)}
        if self.projections == "released_code":
            width = setup.width()
            draw = setup.generator("projections")
            bound = width**-0.5
            shapes = {"feature_weight": (width, width), "feature_bias": (width,), "proxy_weight": (width, width)}
            server["projections"] = {
                name: torch.from_numpy(draw.uniform(-bound, bound, shape)).to(torch.get_default_dtype())
                for name, shape in shapes.items()
            }
        return fl.State(server=server)

    def consistency(self, logits: Logits) -> fl.Loss:
        local, common = pseudo_labels(logits["weak"], self.threshold), pseudo_labels(logits["global"], self.threshold)
        kept_N = common.kept_N if self.confident_images == "paper" else local.kept_N | common.kept_N
        loss = consistency_loss(logits["strong"], common.labels_N, kept_N)
        if self.consistency_mean == "paper":
            loss = loss * len(kept_N) / kept_N.sum().clamp(min=1)
        return loss, {"labels_N": common.labels_N, "kept_N": kept_N}

    def planned(self) -> "ProxyFL":
        """Return the method with at most one tuning pass, because a hundred would take most of a plan's time."""
        return replace(self, tuning_passes=min(1, self.tuning_passes))

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
        server["shares"] = self.shares(state.server["shares"], torch.stack(counts))
        return fl.State(server=server), {"proxyfl/tuned_by": float((tuned_DF - mean_DF).norm() / mean_DF.norm())}

    def shares(self, old_D: Tensor, counts_KD: Tensor) -> Tensor:
        """Update the shares of the classes from the clients' counts.

        They do not change in a round without a counted label. In the paper's mean, clients without one are left out.
        """
        if not counts_KD.any():
            return old_D
        if self.class_shares == "paper":
            with_labels_KD = counts_KD[counts_KD.any(dim=1)]
            return (with_labels_KD / with_labels_KD.sum(dim=1, keepdim=True)).mean(dim=0)
        counts_D = counts_KD.sum(dim=0)
        return self.decay * old_D + (1 - self.decay) * counts_D / counts_D.sum()


def tuned(mean_DF: Tensor, proxies_KDF: Tensor, method: ProxyFL, order: np.random.Generator) -> Tensor:
    """Tune the mean proxies by Q passes of SGD over the clients' proxies, on the CPU.

    The loss of a client's proxy is the cross-entropy of negative distances: to the mean proxies, or (paper, Eq. 2) from
    the mean proxy of its class to all proxies of the client.
    """
    W_DF, proxies_KDF = mean_DF.double().cpu(), proxies_KDF.double().cpu()
    K, D, _ = proxies_KDF.shape
    proxies_PF = proxies_KDF.flatten(0, 1)
    labels_P = torch.arange(D).repeat(K)
    margin = 0.0
    if method.margin == "released_code" and D > 1:
        apart_DD = torch.cdist(W_DF, W_DF).fill_diagonal_(torch.inf)
        margin = min(float(apart_DD.amin(dim=1).max()), MOST_MARGIN)
    own_DD = torch.eye(D, dtype=torch.float64)
    for _ in range(method.tuning_passes):
        shuffled_P = torch.from_numpy(order.permutation(K * D))
        for at_N in shuffled_P.split(method.tuning_batch_size):
            own_ND = own_DD[labels_P[at_N]]
            if method.tuning_softmax == "paper":
                away_NDF = W_DF[labels_P[at_N]][:, None] - proxies_KDF[at_N // D]
            else:
                away_NDF = W_DF - proxies_PF[at_N][:, None]
            distance_ND = away_NDF.norm(dim=-1)
            slope_ND = (own_ND - torch.softmax(-distance_ND - margin * own_ND, dim=-1)) / len(at_N)
            toward_ND = slope_ND / distance_ND.clamp(min=1e-30)  # a distance of 0 has no direction
            pull_NDF = toward_ND[..., None] * away_NDF
            if method.tuning_softmax == "paper":
                W_DF = W_DF.index_add(0, labels_P[at_N], pull_NDF.sum(dim=1), alpha=-method.tuning_rate)
            else:
                W_DF = W_DF - method.tuning_rate * pull_NDF.sum(dim=0)
    return W_DF.to(mean_DF)


@dataclass(frozen=True, kw_only=True)
class ProxyUpdate(ClientUpdate):
    """Local work of a client: the step of `sage` with the contrastive loss ICPL."""

    method: ProxyFL

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        if "projections" in received:
            local.trainable["projections"] = received["projections"]
            local.layers = ("projections",)
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
        candidates_MD = self._candidates(p_MD, step)
        unsure_M1 = ~aux["kept_N"][:, None]
        weighting_MD = p_MD
        if self.method.candidate_weights == "paper":
            weighting_MD = torch.softmax(logits["weak"].detach(), dim=-1)
        weight_MD = torch.where(unsure_M1, weighting_MD * candidates_MD, best_MD.to(p_MD.dtype))
        views = ["weak"] if self.method.contrast_views == "paper" else ["weak", "strong"]
        sets = [torch.where(unsure_M1, candidates_MD, best_MD)] * len(views)
        compared_views = list(views)
        if "labelled" in step.batch:
            sets.insert(0, self._labelled_candidates(step, classes_D))
            compared_views.insert(0, "labelled")
        compared = torch.cat([features[view] for view in compared_views]), head.weight
        if "projections" in step.trainable:
            layers = cast(nn.ParameterDict, step.trainable["projections"])
            compared = (
                F.linear(compared[0], layers["feature_weight"], layers["feature_bias"]),
                F.linear(compared[1], layers["proxy_weight"]),
            )
        losses_M = contrast_losses(
            *compared, weight_MD.repeat(len(views), 1), torch.cat(sets), cosine=self.method.similarity != "paper"
        )
        contrast = losses_M.mean()
        if self.method.contrast_mean == "paper":
            unsure_M = unsure_M1[:, 0].repeat(len(views))
            contrast = _mean_of(losses_M, ~unsure_M) + _mean_of(losses_M, unsure_M)
        loss = loss + self.method.proxy_weight * contrast
        # For Figure 6, which compares the candidates with the true classes.
        return loss, {**aux, "candidates_ND": candidates_MD, "client/proxy_loss": contrast, "client/loss": loss}

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


def contrast_losses(
    features_NF: Tensor, proxies_DF: Tensor, weight_MD: Tensor, sets_ND: Tensor, *, cosine: bool = True
) -> Tensor:
    """Compute the contrastive loss ICPL of each of the last M of the N images.

    It is a cross-entropy over similarities: the weighted sum of an image's proxies is the positive example, and the
    images without a class in common with the image's set are the negative ones. The similarity is the cosine, and
    images with a cosine below 1e-6 are left out, or it is the inner product, and none is left out.
    """
    if cosine:
        features_NF, proxies_DF = F.normalize(features_NF, dim=-1), F.normalize(proxies_DF, dim=-1)
    of_M = slice(len(features_NF) - len(weight_MD), None)
    near_M1 = (features_NF[of_M] * (weight_MD @ proxies_DF)).sum(dim=-1, keepdim=True)
    similar_MN = features_NF[of_M] @ features_NF.T
    sets_ND = sets_ND.to(features_NF.dtype)
    left_out_MN = sets_ND[of_M] @ sets_ND.T > 0
    if cosine:
        left_out_MN = left_out_MN | (similar_MN < LEAST_SIMILAR)
    logits_MX = torch.cat([near_M1, similar_MN.masked_fill(left_out_MN, -torch.inf)], dim=-1)
    return torch.logsumexp(logits_MX, dim=-1) - near_M1[:, 0]


def _mean_of(values_N: Tensor, chosen_N: Tensor) -> Tensor:
    """Compute the mean of the chosen values, which is 0 if none is chosen."""
    return (values_N * chosen_N).sum() / chosen_N.sum().clamp(min=1)
