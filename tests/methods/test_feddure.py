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

    def job(self, client: int) -> Weights:
        method, student, copy = self.method, self.network(), self.network()
        with_f = method.regulator == "paper"
        if client not in self.fines:
            self.fines[client] = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1), nn.Sigmoid())
            draw = torch_stream(0, "train", "round", self.number, "client", client, "draw", 0, "start")
            with torch.no_grad():
                for value, inputs in zip(self.fines[client].parameters(), (10, 10, 6, 6), strict=True):
                    value.copy_((2 * torch.rand(value.shape, generator=draw) - 1) / math.sqrt(inputs))
        f = self.fines[client]
        sgds = {name: self.optimizer(client, net, name=name) for name, net in (("s", student), ("c", copy), ("f", f))}
        for number, batch in enumerate(self.batches(client), start=1):
            x, y = batch["labelled"].views["weak"], batch["labelled"].labels_N
            weak, strong = batch["unlabelled"].views.values()
            logits = self.passed(student, (x, weak, strong))
            p = logits[1].detach().softmax(1)
            label, sure = p.argmax(1), (p.amax(1) >= method.threshold).float()

            def unlabelled(net_logits, weights, label=label):
                return sum(w * -row.log_softmax(0)[c] for w, row, c in zip(weights, net_logits, label)) / len(label)  # noqa: B905

            if with_f:
                step(sgds["f"], fine_loss(copy, f, p, weak, x, y, unlabelled, method.virtual_rate))
            weights = f(p)[:, 0].detach() if with_f else sure
            with torch.no_grad():
                before = F.cross_entropy(copy(x), y)
            # base_ssl.py:768: `s_loss = loss_fn(s_logits_us, targets_u)`, the mean over all unlabelled images.
            of_all = F.cross_entropy(copy(weak), label) if method.copy_learns == "released_code" else None
            step(sgds["c"], unlabelled(copy(weak), weights) if of_all is None else of_all)
            with torch.no_grad():
                d = before - F.cross_entropy(copy(x), y)
            scale = 2.0 * min(1.0, number / 2)
            loss = F.cross_entropy(logits[0], y)
            if method.feedback == "paper":
                loss = loss + scale * unlabelled(logits[2], weights + d)
            else:
                own = F.cross_entropy(logits[2], logits[2].argmax(1))
                loss = loss + scale * unlabelled(logits[2], weights) + (-d) * own
            step(sgds["s"], loss)
        for name, sgd in sgds.items():
            self.keep(client, sgd, name)
        return weights_of(student)


def fine_loss(copy, f, p, weak, x, y, unlabelled, rate) -> Tensor:
    """Compute the gradient of f without a second derivative.

    The gradient with respect to f's weight w_i is -rate grad l_i . grad L(after) / N, since the step is linear in the
    weights.
    """
    weights = f(p)[:, 0]
    net = deepcopy(copy).train()
    of_images = []
    for i in range(len(weak)):
        one_hot = torch.zeros(len(weak))
        one_hot[i] = 1.0
        of_images.append(torch.autograd.grad(unlabelled(net(weak), one_hot), list(net.parameters())))
    with torch.no_grad():
        for k, value in enumerate(net.parameters()):
            value -= rate * sum(w * g[k] for w, g in zip(weights, of_images, strict=True))
    v = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
    slopes = []
    for g in of_images:
        slopes.append(-rate * sum((a * b).sum() for a, b in zip(g, v, strict=True)))
    return (weights * torch.stack(slopes)).sum()


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    compared(Plain, of(way), of("batch norm" if "batch norm" in way else "paper"), least=2e-6)
