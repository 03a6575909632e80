"""FedAvg-FixMatch: clients learn the images that are confident enough, the threshold baseline of the open-set setting.

FixMatch (Sohn et al. NeurIPS 2020, arXiv:2001.07685, Eqs. 3 and 4) is the local training of FedAvg (McMahan et al.
2017), and the server trains on its labels after each average. FixMatch does not provide for unknown classes. A softmax
over the known classes gives each image a label, and only the threshold tau can discard an image of an unknown class:
such an image should have no class with a probability of tau.

A client predicts the label of a weak view. If the confidence is at least tau, it learns this label on a strong view.
The loss is the mean over all images of the batch. The averages have equal weights, as in the other methods of the same
comparison, so that FedProx-FixMatch without its proximal term is this method.

Source: no paper has this baseline with these choices. FedOpenMatch (ICLR 2026) and OpenFL (submitted to ICLR 2026)
compare themselves with federated versions of FixMatch. The code of these versions is not public.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from benchmark.config import Count, Share, Whole
from benchmark.losses import loss_on_confident, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods.shared import StudentUpdate, fit_each, mean_of, predict_weak, trained_at_server


@dataclass(frozen=True, kw_only=True)
class SelectingUpdate(StudentUpdate):
    """Local work of a client: the strong view learns the label of the weak view if the image is selected."""

    pseudo_label_mode: Literal["train", "eval"] = "train"

    def selected(self, logits_ND: Tensor, step: fl.Step) -> tuple[Tensor, Tensor]:
        """Return labels_N of weak views and whether each image is selected, without gradients."""
        raise NotImplementedError(f"{type(self).__name__} has no selected")

    def loss(self, step: fl.Step) -> fl.Loss:
        views = step.batch["unlabelled"].views
        logits_ND = predict_weak(step.student, views["weak"], self.pseudo_label_mode)
        labels_N, kept_N = self.selected(logits_ND, step)
        loss = loss_on_confident(step.student, views["strong"], labels_N, kept_N)
        return loss, {"client/loss": loss, "labels_N": labels_N, "kept_N": kept_N}


@dataclass(frozen=True, kw_only=True)
class ConfidentUpdate(SelectingUpdate):
    """Local work that selects images by their confidence."""

    threshold: float

    def selected(self, logits_ND: Tensor, step: fl.Step) -> tuple[Tensor, Tensor]:
        labels_N, _, kept_N = pseudo_labels(logits_ND, self.threshold)
        return labels_N, kept_N


@dataclass(frozen=True, kw_only=True)
class SelectingFedAvg(fl.Method):
    """The fields and the round that the threshold and the energy baseline share. Each defines its `client_work`."""

    batch_size: Count = 64
    server_batch_size: Count = 64
    pseudo_label_mode: Literal["train", "eval"] = "train"  # mode of the network that labels weak views, from FixMatch
    warm_start_rounds: Whole = 0  # initial rounds with training only at the server

    needs = frozenset({"server", "open"})

    def client_work(self, student: fl.Weights, world: fl.World) -> tuple[fl.LocalUpdate, fl.Tree]:
        """Return the clients' local update and the tree that they receive."""
        raise NotImplementedError(f"{type(self).__name__} has no client_work")

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        if world.round > self.warm_start_rounds:
            student = mean_of(self._trained_by_clients(student, world), otherwise=student)
        return fl.State(server={"student": trained_at_server(student, world, self.server_batch_size)}), {}

    def _trained_by_clients(self, student: fl.Weights, world: fl.World) -> Iterator[fl.Outcome]:
        update, receives = self.client_work(student, world)
        data = {"unlabelled": fl.Stream.whole("unlabelled", self.batch_size, "weak", "strong")}
        return fit_each(world, world.cohort(), update, receives, data)


@dataclass(frozen=True, kw_only=True)
class FedAvgFixMatch(SelectingFedAvg):
    """FedAvg-FixMatch: an image is selected if its largest softmax probability is at least tau."""

    threshold: Share = 0.95  # tau

    def client_work(self, student: fl.Weights, world: fl.World) -> tuple[fl.LocalUpdate, fl.Tree]:
        update = ConfidentUpdate(threshold=self.threshold, pseudo_label_mode=self.pseudo_label_mode)
        return update, {"student": student}
