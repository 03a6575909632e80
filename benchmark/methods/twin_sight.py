"""Twin-sight: a supervised and an unsupervised network per client that keep the same neighbourhoods of features.

Zhang, Yang, Tian, Wang, Liu, Han. Robust Training of Federated Models with Extremely Label Deficiency. ICLR 2024,
arXiv:2402.14430. Released code: visitworld123/Twin-sight, 2dd5db0 (trainers/normal_trainer.py: train_semiFed_model_PD,
model/SemiFed.py, ssl_model, configs/default.py).

In the setting "partial data", every client has some labels; in "partial client", some clients have labels for all of
their images and the others have none (label setting "some_clients"). The student S learns the labels, and
the pseudo-labels that it predicts on the weak view. The twin U has the same layers, with a projector in place of the
last one, and learns instance discrimination (SimCLR): the weak and the strong view of an image attract each other. For
the weak views of all images of a batch, the cosines of the features of S and of U are compared. The loss is L =
CE + lambda_u L_u + .5 InfoNCE + N + mu ||w - w_G||^2. S, U and the projector are sent, and averaged by the number of
images; S is tested.

Deviations:
1. A client without labelled or without unlabelled images leaves out this term of the loss. "Partial client" is
   therefore the same local step; there, the released code has no proximal term (`mu` = 0) and learns no pseudo-labels
   (`unlabelled_weight` = 0, PC_use_pesudo_label). If this is switched on, its weight is .5, and the released code
   predicts labels on the strong view and learns them on the weak one, which is not implemented.
2. U begins with the initial weights of S, of which each tensor is permuted at random. In the released code they are
   drawn separately, by the same rule.
3. U has the last layer of S also, which nothing uses: its bytes are counted.
4. BYOL and SimSiam, options of the released code, are not implemented; nor are its bounds of .9 and .95 for thresholds
   on SVHN.

Legend: N images of a batch, V = 2 N views of these images, the weak ones first; F features; P projected features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import Count, NotNegative, Positive
from benchmark.losses import consistency_loss, proximal_term, pseudo_labels, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.sage import ClientUpdate, TwoLabellers
from benchmark.methods.shared import RunningMean, sent
from benchmark.models.classifier import Classifier

SETS = ("student", "twin", "projector")
DECAY = 0.999  # of the running thresholds (normal_trainer.py: cal_time_p_and_p_model)


@dataclass(frozen=True, kw_only=True)
class TwinSight(TwoLabellers):
    """Twin-sight with partial data. The defaults are from configs/default.py."""

    batch_size: Count = 64
    labelled_batch_size: Count = 64
    unlabelled_weight: NotNegative = 5.0  # PD_ulb_loss_ratio
    instance_weight: NotNegative = 0.5  # insDis
    neighbour_weight: NotNegative = 1.0  # sim
    mu: NotNegative = 0.5  # fedprox_mu, of the squared distance and not of its half
    temperature: Positive = 0.07  # of InfoNCE
    hidden: Count = 4096  # of the projector
    projected: Count = 2048  # P
    # Which pseudo-labels count. "released_code": pseudo-labels above FreeMatch's running thresholds, which begin at 1 /
    # D in each job, so that nearly all count. "threshold": pseudo-labels above `threshold`, as in FixMatch. Default:
    # the code.
    confident: Literal["released_code", "threshold"] = "released_code"
    # The divisor of the sum of the N^2 squared differences of cosines. "paper": N^2. "released_code": N ^ 2, an
    # exclusive or in Python: 66 for a batch of 64. Default: the code, since `sim` was chosen with it.
    neighbours: Literal["paper", "released_code"] = "released_code"

    needs = frozenset({"drawn_apart", "every_client", "share", "some_clients"})
    uses_global = False

    def check(self, setup: fl.Setup) -> None:
        setup.width()

    def init(self, setup: fl.Setup) -> fl.State:
        student = setup.initial_weights()
        draw = setup.generator("twin")
        twin = {}
        for name, value in student.items():
            order_N = torch.from_numpy(draw.permutation(value.numel()))
            twin[name] = value.flatten()[order_N].view_as(value)
        width = setup.width()
        hidden = self.hidden
        sizes = {"in_weight": (hidden, width), "in_bias": (hidden,)}
        sizes |= {"out_weight": (self.projected, hidden), "out_bias": (self.projected,)}
        projector = {"scale": torch.ones(hidden), "shift": torch.zeros(hidden)}
        for name, shape in sizes.items():
            bound = (width if name.startswith("in") else hidden) ** -0.5
            drawn = torch.from_numpy(draw.uniform(-bound, bound, shape))
            projector[name] = drawn.to(torch.get_default_dtype())
        return fl.State(server={"student": student, "twin": twin, "projector": projector})

    def update(self, world: fl.World, client: int) -> "TwinUpdate":
        return TwinUpdate(method=self, keeps_momentum=self.keeps_momentum, num_classes=world.num_classes)

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        means = {name: RunningMean() for name in SETS}
        for client, sends in sent(world.fit(self.jobs(state.server["student"], world, dict(state.server)))):
            for name, mean in means.items():
                mean.add(sends[name], world.sizes[client])
        if not means["student"].total:
            return state, {}
        return fl.State(server={name: mean.value() for name, mean in means.items()}), {}

    def jobs(self, student: fl.Weights, world: fl.World, receives: fl.Tree | None = None) -> list[fl.Job]:
        """Build the jobs. Labelled images also have a weak and a strong view."""
        jobs = []
        for job in super().jobs(student, world):
            data = {name: replace(stream, views=self.views) for name, stream in job.data.items()}
            jobs.append(replace(job, data=data, receives=receives or job.receives))
        return jobs


@dataclass(frozen=True, kw_only=True)
class TwinUpdate(ClientUpdate):
    """Local work of a client."""

    method: TwinSight
    num_classes: int  # D

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        local.trainable = {name: received[name] for name in SETS}
        local.layers = ("projector",)
        D = self.num_classes
        first = next(iter(received["student"].values()))
        local.notes |= {"mean_D": torch.full((D,), 1 / D).to(first), "top": torch.full((), 1 / D).to(first)}
        if self.method.mu:
            local.frozen = {name: received[name] for name in ("student", "twin")}
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        method = self.method
        student = cast(Classifier, step.student)
        twin = cast(Classifier, step.trainable["twin"])
        head = cast(nn.Linear, student.get_submodule(student.head))
        names = [name for name in ("labelled", "unlabelled") if name in step.batch]
        places = list(product(("weak", "strong"), names))  # all weak views precede all strong views
        parts = [step.batch[name].views[view] for view, name in places]
        features = self._each(student.features, parts)
        logits = dict(zip(places, map(head, features), strict=True))
        own_VF, twin_VF = torch.cat(list(features)), torch.cat(list(self._each(twin.features, parts)))
        N = len(own_VF) // 2
        layers = cast(nn.ParameterDict, step.trainable["projector"])
        instance = instance_loss(projected(twin_VF, layers), method.temperature)
        neighbours = neighbour_loss(own_VF[:N], twin_VF[:N], method.neighbours)
        terms = [method.instance_weight * instance, method.neighbour_weight * neighbours]
        aux = {"client/instance_loss": instance, "client/neighbour_loss": neighbours}
        if "labelled" in step.batch:
            supervised = supervised_loss(logits["weak", "labelled"], step.batch["labelled"].known_N)
            terms.append(supervised)
            aux["client/supervised_loss"] = supervised
        if "unlabelled" in step.batch:
            labels_N, kept_N = self._pseudo_labels(logits["weak", "unlabelled"], step)
            consistency = consistency_loss(logits["strong", "unlabelled"], labels_N, kept_N)
            terms.append(method.unlabelled_weight * consistency)
            aux |= {"client/consistency_loss": consistency, "labels_N": labels_N, "kept_N": kept_N}
        if method.mu:
            terms += [proximal_term(step.trainable[n], step.frozen[n], method.mu, half=False) for n in step.frozen]
            before = step.received["projector"]
            squares = [(layers[name] - before[name]).square().sum() for name in before]
            terms.append(method.mu * torch.stack(squares).sum())
        loss = torch.stack(terms).sum()
        return loss, {**aux, "client/loss": loss}

    def _each(self, function: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Pass the parts through a network, together or one after the other."""
        if self.method.forward == "apart":
            return [function(images_NCHW) for images_NCHW in parts]
        return function(torch.cat(list(parts))).split([len(images_NCHW) for images_NCHW in parts])

    def _pseudo_labels(self, weak_ND: Tensor, step: fl.Step) -> tuple[Tensor, Tensor]:
        """Return labels_N, and whether each of them counts; update the running thresholds of the job."""
        labels_N, confidence_N, kept_N = pseudo_labels(weak_ND, self.method.threshold)
        if self.method.confident == "threshold":
            return labels_N, kept_N
        p_D = torch.softmax(weak_ND.detach(), dim=-1).mean(dim=0)
        mean_D, top = step.notes["mean_D"], step.notes["top"]
        step.notes["mean_D"] = mean_D = DECAY * mean_D + (1 - DECAY) * p_D
        step.notes["top"] = top = DECAY * top + (1 - DECAY) * confidence_N.mean()
        return labels_N, confidence_N >= (top * mean_D / mean_D.max())[labels_N]

    def finish(self, local: fl.Local) -> fl.Tree:
        sends = super().finish(local)
        return {**sends, **{name: local.trainable[name] for name in SETS if sends}}


def projected(features_VF: Tensor, layers: nn.ParameterDict | fl.Weights) -> Tensor:
    """Compute the projections of the features, (V, P): linear, batch norm with the batch's statistics, ReLU, linear."""
    hidden_VH = F.linear(features_VF, layers["in_weight"], layers["in_bias"])
    hidden_VH = F.batch_norm(hidden_VH, None, None, layers["scale"], layers["shift"], training=True)
    return F.linear(torch.relu(hidden_VH), layers["out_weight"], layers["out_bias"])


def instance_loss(outputs_VP: Tensor, temperature: float) -> Tensor:
    """Compute InfoNCE: the cross-entropy of each view's cosines with the other views, with its second view as the
    target.

    The second view of image n is in row N + n (ssl_utils.py: info_nce_loss).
    """
    unit_VP = F.normalize(outputs_VP, dim=-1)
    V = len(unit_VP)
    logits_VV = unit_VP @ unit_VP.T / temperature
    itself_VV = torch.eye(V, dtype=torch.bool, device=logits_VV.device)
    second_V = (unit_VP * unit_VP.roll(V // 2, 0)).sum(dim=-1) / temperature
    return (torch.logsumexp(logits_VV.masked_fill(itself_VV, -torch.inf), dim=-1) - second_V).mean()


def neighbour_loss(own_NF: Tensor, twin_NF: Tensor, divisor: Literal["paper", "released_code"]) -> Tensor:
    """Compute the squared differences of the cosines of all pairs of images in the two networks.

    They are divided by N^2, or by N ^ 2 as in the released code, at least 1.
    """
    N = len(own_NF)
    own_NF, twin_NF = F.normalize(own_NF, dim=-1), F.normalize(twin_NF, dim=-1)
    squares = (own_NF @ own_NF.T - twin_NF @ twin_NF.T).square().sum()
    return squares / (N**2 if divisor == "paper" else max(1, N ^ 2))
