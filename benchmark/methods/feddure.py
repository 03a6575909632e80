"""FedDure: two regulators weigh a client's pseudo-labels by their effect on the loss of its labelled images.

Bai, Li, Zhuang, Zhang, Yang, Hou, Zhang, Yi, Gao. Combating Data Imbalances in Federated Semi-supervised Learning with
Dual Regulators. AAAI 2024, arXiv:2307.05358. Its equations were not available; released code: White1973/FedDure,
50ecb77 (groups/client_ssl/base_ssl.py, configs/cifar10).

The student labels the weak views of a batch's unlabelled images. A client then trains three networks on the batch, one
after the other:
1. The fine regulator f, a small network that maps predicted probabilities to a weight. Its loss is the cross-entropy on
   labelled images after one step of the copy c on the weighted pseudo-labels. This is bi-level optimisation.
2. The copy c, which begins each job with the student's weights, takes this step. d is the decrease of its loss on
   labelled images.
3. The student learns labels, and the pseudo-labels on the strong view with weights f + d (the coarse regulator).

The released method never calls f, because WNet is in a class that no configuration uses; it is Meta Pseudo Labels.

ProxyFL runs FedDure in the protocol of `sage`. Therefore its local step builds on the one of `sage` and has the same
implementation choices. Deviations: reports/sage/departures.md, entries 22 and 23. In addition:
1. The experiment's optimizer trains all three networks. Released code: Adam for each; the step of (1) has a separate
   rate.
2. Pseudo-labels are classes. Released code: the predicted probabilities.
3. The student takes no initial steps on labels only. Released code: the same number of steps as on both.
4. The client keeps f. In the released class that contains it, f begins anew in each job.
5. With regulator = released_code, the copy learns from the images that are selected for the student. Released code:
   from all unlabelled images (base_ssl.py:768); copy_learns = released_code.
6. A client without labels, or without unlabelled images, takes the step of FixMatch-LPL.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from benchmark.config import Count, Positive, Share, added
from benchmark.losses import pseudo_labels, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.sage import ClientUpdate, TwoLabellers
from benchmark.methods.shared import labelled_loss


@dataclass(frozen=True, kw_only=True)
class FedDure(TwoLabellers):
    """FedDure in the round of `sage`. Only the student is sent."""

    threshold: Share = 0.6  # teacher_thre, the threshold of the images that the released method selects
    # lambda_u grows linearly over this number of steps at the beginning of a job. 10 in the released class that
    # contains f, where lambda_u is 1 and grows exponentially; 20 in the released method, where it is 8.
    ramp_steps: Count = 10
    hidden: Count = 100  # hidden units of f
    virtual_rate: Positive = 0.1  # learning rate of the copy's step in the loss of f; equal to the optimizer's rate
    # "released_code": f is not called, and the weights are 1 for images above the threshold and 0 for the others; see
    # also deviation 5.
    regulator: Literal["paper", "released_code"] = "paper"
    # The use of the decrease d, the loss before minus after the step. "paper": d is added to the weights of the
    # pseudo-labels. "released_code": -d, the loss after minus before, weighs the cross-entropy of the student's own
    # classes on the strong view. Meta Pseudo Labels has before minus after.
    feedback: Literal["paper", "released_code"] = "paper"
    # The images that the copy learns from. "paper": with the weights of the student's pseudo-labels. "released_code":
    # from the classes of all unlabelled images, with weight 1 (base_ssl.py:768). The default is the copy of step 2,
    # since its loss on labels judges the weights; without f it learns from the images that the student is sure of.
    copy_learns: Literal["paper", "released_code"] = added("paper")

    needs = frozenset({"drawn_apart", "every_client", "share"})
    uses_global = False

    def update(self, world: fl.World, client: int) -> ClientUpdate:
        shared: dict[str, Any] = {"method": self, "keeps_momentum": self.keeps_momentum}
        if not (world.labelled[client] and world.unlabelled(client)):
            return ClientUpdate(**shared)
        if self.regulator == "released_code":
            return CopyUpdate(**shared)
        return RegulatedUpdate(**shared, num_classes=world.num_classes, fixed=tuple(world.fixed()))


@dataclass(frozen=True, kw_only=True)
class CopyUpdate(ClientUpdate):
    """Local work of steps 2 and 3.

    The student's logits of a batch are passed from phase to phase with their computation graph.
    """

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
        weights_N = self.weights(step)
        if self.method.copy_learns == "released_code":
            weights_N = torch.ones_like(weights_N)
        loss = self._weighted(logits_ND, weights_N, step)
        return loss, {"client/copy_loss": loss}

    def of_student(self, step: fl.Step) -> fl.Loss:
        method = self.method
        logits = step.notes.pop("logits")
        with torch.no_grad():
            d = step.notes["before"] - labelled_loss(step.trainable["copy"], step.batch["labelled"])
        step.notes["steps"] = step.notes["steps"] + 1
        ramp = (step.notes["steps"] / method.ramp_steps).clamp(max=1.0)
        weight = (method.unlabelled_weight * ramp).to(logits["strong"])
        supervised = supervised_loss(logits["labelled"], step.batch["labelled"].known_N)
        weights_N = self.weights(step)
        strong_ND = logits["strong"]
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
        """Compute the logits and pseudo-labels of a batch, and store them for its phases.

        The computation graph stays valid until the last phase, since the student is only updated there.
        """
        logits = self.passed(step.student, step)
        labels_N, _, sure_N = pseudo_labels(logits["weak"], self.method.threshold)
        p_ND = torch.softmax(logits["weak"].detach(), dim=-1)
        step.notes.update(logits=logits, labels_N=labels_N, sure_N=sure_N, p_ND=p_ND)

    def weights(self, step: fl.Step) -> Tensor:
        """Return weights_N of the pseudo-labels, without a gradient: 1 for selected images, 0 for the others."""
        return step.notes["sure_N"].float()

    def _weighted(self, logits_ND: Tensor, weights_N: Tensor, step: fl.Step) -> Tensor:
        return (weights_N * F.cross_entropy(logits_ND, step.notes["labels_N"], reduction="none")).mean()


@dataclass(frozen=True, kw_only=True)
class RegulatedUpdate(CopyUpdate):
    """Local work of steps 1 to 3."""

    num_classes: int
    fixed: tuple[str, ...] = ()  # parameters that are not trained, which the virtual step does not move
    phases = ("of_fine", "of_copy", "of_student")

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        """Start from the f that the client kept, or from the initial weights of PyTorch's linear layers."""
        local = super().begin(received, private, reader)
        device = next(iter(received["student"].values())).device
        hidden = self.method.hidden
        D = self.num_classes
        shapes = {"hidden_weight": (hidden, D), "hidden_bias": (hidden,), "last_weight": (1, hidden), "last_bias": (1,)}
        fine = {}
        for name, shape in shapes.items():
            inputs = D if name.startswith("hidden") else hidden
            fine[name] = ((2 * torch.rand(shape, generator=reader.draw) - 1) * inputs**-0.5).to(device)
        local.trainable["fine"] = (private or {}).get("fine", fine)
        local.layers = ("fine",)
        return local

    def of_fine(self, step: fl.Step) -> fl.Loss:
        """Compute the loss on labelled images after a step of the copy, with a gradient only for f."""
        self.label(step)
        copy = step.trainable["copy"]
        buffers = {name: value.clone() for name, value in copy.named_buffers()}
        trained = {name: value for name, value in copy.named_parameters() if name not in self.fixed}
        before = {name: value.detach() for name, value in trained.items()}
        weights_N = self._fine(step)

        def weighted(weights: fl.Weights) -> Tensor:
            own_buffers = {name: value.clone() for name, value in buffers.items()}  # a batch norm changes them in place
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
        """Compute weights_N, the output of f for the student's probabilities on the weak view."""
        f = cast(nn.ParameterDict, step.trainable["fine"])
        hidden_NH = torch.relu(F.linear(step.notes["p_ND"], f["hidden_weight"], f["hidden_bias"]))
        return torch.sigmoid(F.linear(hidden_NH, f["last_weight"], f["last_bias"]))[:, 0]

    def finish(self, local: fl.Local) -> fl.Tree:
        sends = super().finish(local)
        local.private = {**(local.private or {}), "fine": local.trainable["fine"]}
        return sends
