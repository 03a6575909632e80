"""FedDure: two regulators weigh a client's pseudo-labels by what they do to its labels.

Bai, Li, Zhuang, Zhang, Yang, Hou, Zhang, Yi, Gao. Combating Data Imbalances in Federated Semi-supervised Learning with
Dual Regulators. AAAI 2024, arXiv:2307.05358. Its equations were not at hand; released code: White1973/FedDure, 50ecb77
(groups/client_ssl/base_ssl.py, configs/cifar10).

A client trains three things in turn on each batch, on the student's labels of the unlabelled images' weak view:
1. The fine regulator f, a small network from predicted probabilities to a weight: cross-entropy of the labels after one
   step of the copy c on the pseudo-labels so weighted (bi-level).
2. The copy c, which begins each job as the student: that step. d is how much less its loss on the labels then is.
3. The student: labels, and pseudo-labels of the strong view with weights f + d (the coarse regulator).

The released method never calls f (WNet stands in a class that no configuration names): it is Meta Pseudo Labels.

The local step is within that of `sage`, whose protocol ProxyFL runs it in, and whose switches it has. Departures:
reports/sage/departures.md, entries 22 and 23. Besides:
1. One optimizer, the experiment's, for all three. Released: Adam for each; the step of (1) has a rate of its own.
2. Pseudo-labels are classes. Released: the predicted probabilities.
3. The student has no steps on labels alone first. Released: as many as of both.
4. f stays with the client. In the class that has it, it begins anew in each job.
5. With regulator = released_code, the copy learns from the images of which the student is sure, as the student does.
   Released: from all unlabelled images (base_ssl.py:768).
6. A client without labels, or with nothing else, takes the step of FixMatch-LPL.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from benchmark.config import Count, Positive, Share
from benchmark.losses import pseudo_labels, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.sage import ClientUpdate, TwoLabellers
from benchmark.methods.shared import labelled_loss


@dataclass(frozen=True, kw_only=True)
class FedDure(TwoLabellers):
    """The round of `sage`; the student alone is sent."""

    threshold: Share = 0.6  # teacher_thre, of images that the released way keeps
    # Of a job's first steps, in which lambda_u grows, evenly. 10 in the class that has f, where lambda_u is 1 and grows
    # as an exponential; 20 in the released method, where it is 8.
    ramp_steps: Count = 10
    hidden: Count = 100  # units of f
    virtual_rate: Positive = 0.1  # of the step after which f is judged; the optimizer's rate
    # "released_code": f is not called, and the weights are 1 where the student is sure, else 0 (but see departure 5).
    regulator: Literal["paper", "released_code"] = "paper"
    # What d is and weighs. "paper": before minus after, the pseudo-labels. "released_code": after minus before, the
    # student's own classes of the strong view (Meta Pseudo Labels has before minus after).
    feedback: Literal["paper", "released_code"] = "paper"

    needs = frozenset({"drawn_apart", "every_client", "share"})
    uses_global = False

    def update(self, world: fl.World, client: int) -> ClientUpdate:
        shared: dict[str, Any] = {"method": self, "keeps_momentum": self.keeps_momentum}
        if not (world.labelled[client] and world.unlabelled(client)):
            return ClientUpdate(**shared)
        if self.regulator == "released_code":
            return CopyUpdate(**shared)
        return RegulatedUpdate(**shared, num_classes=world.num_classes)


@dataclass(frozen=True, kw_only=True)
class CopyUpdate(ClientUpdate):
    """Steps 2 and 3. The student's logits of a batch, with their graph, are handed on from phase to phase."""

    method: FedDure
    phases: ClassVar[tuple[str, ...]] = ("of_copy", "of_student")

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        local.trainable["copy"] = received["student"]
        local.notes["steps"] = torch.zeros((), dtype=torch.float64)
        return local

    def of_copy(self, step: fl.Step) -> fl.Loss:
        if self.phases[0] == "of_copy":
            self.label(step)
        with torch.no_grad():
            step.notes["before"] = labelled_loss(step.trainable["copy"], step.batch["labelled"])
        logits_ND = step.trainable["copy"](step.batch["unlabelled"].views["weak"])
        loss = self._weighted(logits_ND, self.weights(step), step)
        return loss, {"client/copy_loss": loss}

    def of_student(self, step: fl.Step) -> fl.Loss:
        method, logits = self.method, step.notes.pop("logits")
        with torch.no_grad():
            d = step.notes["before"] - labelled_loss(step.trainable["copy"], step.batch["labelled"])
        step.notes["steps"] = step.notes["steps"] + 1
        ramp = (step.notes["steps"] / method.ramp_steps).clamp(max=1.0)
        weight = (method.unlabelled_weight * ramp).to(logits["strong"])
        supervised = supervised_loss(logits["labelled"], step.batch["labelled"].known_N)
        weights_N, strong_ND = self.weights(step), logits["strong"]
        if method.feedback == "paper":
            loss = supervised + weight * self._weighted(strong_ND, weights_N + d, step)
        else:
            own = supervised_loss(strong_ND, strong_ND.argmax(dim=-1))
            loss = supervised + weight * self._weighted(strong_ND, weights_N, step) - d * own
        sure_N = step.notes["sure_N"]
        return loss, {
            "client/supervised_loss": supervised,
            "client/fine": weights_N.mean(),
            "client/coarse": d,
            "client/loss": loss,
            "labels_N": step.notes["labels_N"],
            "kept_N": sure_N if method.regulator == "released_code" else torch.ones_like(sure_N),
        }

    def label(self, step: fl.Step) -> None:
        """What the phases of a batch share. Its graph lasts, since the student is stepped in the last one alone."""
        logits = self.passed(step.student, step)
        labels_N, _, sure_N = pseudo_labels(logits["weak"], self.method.threshold)
        p_ND = torch.softmax(logits["weak"].detach(), dim=-1)
        step.notes.update(logits=logits, labels_N=labels_N, sure_N=sure_N, p_ND=p_ND)

    def weights(self, step: fl.Step) -> Tensor:
        """weights_N of the pseudo-labels, without a gradient."""
        return step.notes["sure_N"].float()

    def _weighted(self, logits_ND: Tensor, weights_N: Tensor, step: fl.Step) -> Tensor:
        return (weights_N * F.cross_entropy(logits_ND, step.notes["labels_N"], reduction="none")).mean()


@dataclass(frozen=True, kw_only=True)
class RegulatedUpdate(CopyUpdate):
    """Steps 1 to 3."""

    num_classes: int
    phases = ("of_fine", "of_copy", "of_student")

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        """f begins as PyTorch's layers do, or as the client left it."""
        local = super().begin(received, private, reader)
        device, hidden, D = next(iter(received["student"].values())).device, self.method.hidden, self.num_classes
        shapes = {"hidden_weight": (hidden, D), "hidden_bias": (hidden,), "last_weight": (1, hidden), "last_bias": (1,)}
        fine = {}
        for name, shape in shapes.items():
            inputs = D if name.startswith("hidden") else hidden
            fine[name] = ((2 * torch.rand(shape, generator=reader.draw) - 1) * inputs**-0.5).to(device)
        local.trainable["fine"], local.layers = (private or {}).get("fine", fine), ("fine",)
        return local

    def of_fine(self, step: fl.Step) -> fl.Loss:
        """The labels' loss after a step of the copy, whose own weights take no gradient here."""
        self.label(step)
        copy = step.trainable["copy"]
        buffers = {name: value.clone() for name, value in copy.named_buffers()}
        before = {name: value.detach() for name, value in copy.named_parameters()}
        weights_N = self._fine(step)

        def weighted(weights: fl.Weights) -> Tensor:
            own_buffers = {name: value.clone() for name, value in buffers.items()}  # a batch norm steps them in place
            logits_ND = functional_call(copy, own_buffers | weights, (step.batch["unlabelled"].views["weak"],))
            return self._weighted(logits_ND, weights_N, step)

        slopes = grad(weighted)(before)
        after = {name: value - self.method.virtual_rate * slopes[name] for name, value in before.items()}
        logits_ND = functional_call(copy, buffers | after, (step.batch["labelled"].views["weak"],))
        judged = supervised_loss(logits_ND, step.batch["labelled"].known_N)
        return judged, {"client/fine_loss": judged}

    def weights(self, step: fl.Step) -> Tensor:
        with torch.no_grad():
            return self._fine(step)

    def _fine(self, step: fl.Step) -> Tensor:
        """f of the student's probabilities of the weak view."""
        f = cast(nn.ParameterDict, step.trainable["fine"])
        hidden_NH = torch.relu(F.linear(step.notes["p_ND"], f["hidden_weight"], f["hidden_bias"]))
        return torch.sigmoid(F.linear(hidden_NH, f["last_weight"], f["last_bias"]))[:, 0]

    def finish(self, local: fl.Local) -> fl.Tree:
        sends = super().finish(local)
        local.private = {**(local.private or {}), "fine": local.trainable["fine"]}
        return sends
