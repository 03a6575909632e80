"""FedDure: whole rounds against plain torch, and the fine regulator's gradient by hand."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federated.environment import weights_of
from benchmark.methods.feddure import FedDure
from benchmark.methods.protocol import Weights
from benchmark.streams import torch_stream
from tests.methods.plain_torch import PlainRounds, compared, partly_labelled, step

METHOD = FedDure(
    threshold=0.14,
    unlabelled_weight=2.0,
    ramp_steps=2,
    hidden=6,
    virtual_rate=0.3,
    batch_size=8,
    labelled_batch_size=12,
)
WAYS: dict[str, FedDure] = {
    "paper": METHOD,
    "without f": replace(METHOD, regulator="released_code"),
    "released feedback": replace(METHOD, feedback="released_code"),
    "released copy": replace(METHOD, regulator="released_code", copy_learns="released_code"),
    "released": replace(METHOD, regulator="released_code", feedback="released_code", copy_learns="released_code"),
    "released copy with f": replace(METHOD, copy_learns="released_code"),
    "kept momentum": replace(METHOD, momentum="kept"),
    "batch norm": METHOD,
    "batch norm, apart": replace(METHOD, forward="apart"),
}


def of(way: str) -> Any:
    """Build an experiment with all four clients in each round, so that each client has a regulator to continue from."""
    return partly_labelled(WAYS[way], "bn" if "batch norm" in way else "gn", C=4, T=2)


class Plain(PlainRounds):
    """FedDure in plain torch: the step of the virtual copy is computed by hand, layer by layer."""

    def begin(self) -> None:
        self.fines: dict[int, nn.Module] = {}

    def fine_regulator(self, client: int) -> nn.Module:
        """Return f, which the client keeps, with the initial weights of PyTorch's linear layers."""
        if client not in self.fines:
            self.fines[client] = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1), nn.Sigmoid())
            draw = torch_stream(0, "train", "round", self.number, "client", client, "draw", 0, "start")
            with torch.no_grad():
                for value, inputs in zip(self.fines[client].parameters(), (10, 10, 6, 6), strict=True):
                    value.copy_((2 * torch.rand(value.shape, generator=draw) - 1) / math.sqrt(inputs))
        return self.fines[client]

    def job(self, client: int) -> Weights:
        method = self.method
        student, copy, f = self.network(), self.network(), self.fine_regulator(client)
        of_student = self.optimizer(client, student, name="s")
        of_copy = self.optimizer(client, copy, name="c")
        of_fine = self.optimizer(client, f, name="f")
        for number, batch in enumerate(self.batches(client), start=1):
            labelled = batch["labelled"]
            weak_NCHW, strong_NCHW = batch["unlabelled"].views.values()
            labelled_ND, weak_ND, strong_ND = self.passed(student, (labelled.views["weak"], weak_NCHW, strong_NCHW))
            p_ND = weak_ND.detach().softmax(1)
            pseudo_N = p_ND.argmax(1)
            if method.regulator == "paper":
                step(of_fine, fine_loss(copy, f, p_ND, weak_NCHW, labelled, method.virtual_rate))
                weights_N = f(p_ND)[:, 0].detach()
            else:
                weights_N = (p_ND.amax(1) >= method.threshold).float()
            with torch.no_grad():
                before = loss_on_labels(copy, labelled)
            step(of_copy, self.copy_loss(copy(weak_NCHW), pseudo_N, weights_N))
            with torch.no_grad():
                d = before - loss_on_labels(copy, labelled)
            scale = 2.0 * min(1.0, number / 2)
            supervised = F.cross_entropy(labelled_ND, labelled.labels_N)
            step(of_student, supervised + self.feedback(strong_ND, pseudo_N, weights_N, d, scale))
        for name, sgd in (("s", of_student), ("c", of_copy), ("f", of_fine)):
            self.keep(client, sgd, name)
        return weights_of(student)

    def copy_loss(self, weak_ND: Tensor, pseudo_N: Tensor, weights_N: Tensor) -> Tensor:
        """Compute the loss of the copy c on the pseudo-labels."""
        if self.method.copy_learns == "released_code":
            # base_ssl.py:768: `s_loss = loss_fn(s_logits_us, targets_u)`, the mean over all unlabelled images.
            return F.cross_entropy(weak_ND, pseudo_N)
        return weighted_loss(weak_ND, pseudo_N, weights_N)

    def feedback(self, strong_ND: Tensor, pseudo_N: Tensor, weights_N: Tensor, d: Tensor, scale: float) -> Tensor:
        """Compute the student's loss on the strong views, given the decrease d of the copy's loss."""
        if self.method.feedback == "paper":
            return scale * weighted_loss(strong_ND, pseudo_N, weights_N + d)
        own = F.cross_entropy(strong_ND, strong_ND.argmax(1))
        return scale * weighted_loss(strong_ND, pseudo_N, weights_N) + (-d) * own


def loss_on_labels(network: nn.Module, labelled: Any) -> Tensor:
    return F.cross_entropy(network(labelled.views["weak"]), labelled.labels_N)


def weighted_loss(logits_ND: Tensor, labels_N: Tensor, weights_N: Tensor) -> Tensor:
    """Compute the mean of the weighted cross-entropies, image by image."""
    total = torch.zeros(())
    for weight, logits_D, label in zip(weights_N, logits_ND, labels_N, strict=True):
        total = total + weight * -logits_D.log_softmax(0)[label]
    return total / len(labels_N)


def fine_loss(copy: nn.Module, f: nn.Module, p_ND: Tensor, weak_NCHW: Tensor, labelled: Any, rate: float) -> Tensor:
    """Compute a loss with the gradient of the loss of f, without a second derivative.

    The gradient with respect to f's weight w_i is -rate grad l_i . grad L(after) / N, since the step is linear in the
    weights.
    """
    weights_N = f(p_ND)[:, 0]
    after = deepcopy(copy).train()
    of_images = []
    for one_hot_N in torch.eye(len(weak_NCHW)):
        loss = weighted_loss(after(weak_NCHW), p_ND.argmax(1), one_hot_N)
        of_images.append(torch.autograd.grad(loss, list(after.parameters())))
    with torch.no_grad():
        for place, value in enumerate(after.parameters()):
            terms = [weight * of_image[place] for weight, of_image in zip(weights_N, of_images, strict=True)]
            value.sub_(rate * sum(terms, start=torch.zeros(())))
    of_labels = torch.autograd.grad(loss_on_labels(after, labelled), list(after.parameters()))
    slopes = []
    for of_image in of_images:
        products = [(a * b).sum() for a, b in zip(of_image, of_labels, strict=True)]
        slopes.append(-rate * sum(products, start=torch.zeros(())))
    return (weights_N * torch.stack(slopes)).sum()


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    compared(Plain, of(way), of("batch norm" if "batch norm" in way else "paper"), least=2e-6)
