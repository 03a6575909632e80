"""(FL)^2: thresholds and perturbation by hand, whole rounds against plain torch."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.data.augment import Weak
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.methods.flfl import FL2, adaptively_labelled, perturbed
from benchmark.methods.protocol import SERVER, Key, Selected, Stream
from benchmark.optim.sgd import SGD, Constant
from tests.federated.helpers import difference
from tests.methods.plain_torch import batches, step
from tests.methods.watch import tiny_with, watched


def test_a_client_of_equal_images_keeps_all():
    """Each is at the mean exactly, whatever is rounded."""
    for count in (1, 3, 7, 1000):
        logits_ND = torch.tensor([[0.1, 0.7, 0.2]]).repeat(count, 1)
        assert adaptively_labelled(logits_ND, threshold=0.95).kept_N.all()


def test_the_perturbation_by_hand():
    """Loss 3 w + 4 b at w = -.49, b = 2: T = (.5, 1), T g = (1.5, 4), its norm sqrt(18.25), e = rho T (T g) / norm."""
    network = nn.Linear(1, 1)
    network.weight.data.fill_(-0.49)
    network.bias.data.fill_(2.0)
    loss = (3 * network.weight + 4 * network.bias).sum()
    moved, norm = perturbed(network, loss, rho=0.2), 18.25**0.5
    assert moved["weight"].item() == pytest.approx(-0.49 + 0.2 * 0.75 / norm, rel=1e-5)
    assert moved["bias"].item() == pytest.approx(2.0 + 0.2 * 4.0 / norm, rel=1e-5)
    (gradient,) = torch.autograd.grad(moved["bias"].square().sum(), [network.bias])
    assert float(gradient) == pytest.approx(2 * moved["bias"].item())  # that at the perturbed weights
    still = perturbed(network, loss * 0.0, rho=0.2)
    assert torch.equal(still["weight"], network.weight) and torch.equal(still["bias"], network.bias)


RATE = SGD(lr=0.05, momentum=0.9, schedule=Constant(), weight_decay=1e-3, nesterov=True)
# Labels come from images as they are; strong views are drawn. Weights move far within two rounds: rho is large.
METHOD = FL2(threshold=0.13, rho=1.0, batch_size=8, server_batch_size=8)
WAYS = {
    "paper": METHOD,
    "another weight": replace(METHOD, consistency_weight=5.0),
    "released momentum": replace(METHOD, momentum="released_code"),
    "weak anchor": replace(METHOD, anchor="weak"),
    "after a warm start": replace(METHOD, warm_start_rounds=1),
}


def experiment_of(method: FL2) -> Experiment:
    e = tiny_with(method)
    plain = replace(e.data.augmentation, weak=Weak(flip=0.0, crop_padding=0.0))
    return replace(e, data=replace(e.data, augmentation=plain), optimizer=RATE)


class Holder:
    """A network and its optimizer. Buffers stay where the method keeps them."""

    def __init__(self, environment: Environment, keeps: bool) -> None:
        self.network, self.keeps = environment.network(), keeps
        self._renew()

    def _renew(self) -> None:
        self.sgd = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)

    def begin(self, weights: dict[str, Tensor]) -> None:
        self.network.load_state_dict(weights)
        self.network.train()
        if not self.keeps:
            self._renew()


def on_labels(environment: Environment, server: Holder, weights: Any, number: int, draw: int) -> Any:
    server.begin(weights)
    streams = {"labelled": Stream.whole("labelled", 8)}
    for batch in batches(environment, number, Key(client=SERVER, draw=draw), 2, streams):
        labelled = batch["labelled"]
        step(server.sgd, nn.functional.cross_entropy(server.network(labelled.views["weak"]), labelled.labels_N))
    return weights_of(server.network)


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def client_step(holder: Holder, method: FL2, views: Any, labels_N: Tensor, sure_N: Tensor) -> None:
    """By moving the weights themselves, as ASAM's code does, and adding two gradients."""
    network, images = holder.network, views["strong"]
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        target_ND = network(views["weak" if method.anchor == "weak" else "strong"]).softmax(1)
    away = {name: torch.zeros_like(p) for name, p in parameters.items()}
    if sure_N.any():
        network.zero_grad()
        nn.functional.cross_entropy(network(images[sure_N]), labels_N[sure_N]).backward()
        T = {name: p.detach().abs() + 0.01 if "weight" in name else torch.ones(()) for name, p in parameters.items()}
        norm = sum(float((T[name] * gradient_of(p)).square().sum()) for name, p in parameters.items()) ** 0.5
        away = {name: method.rho * T[name] ** 2 * gradient_of(p) / norm for name, p in parameters.items()}
    with torch.no_grad():
        for name, p in parameters.items():
            p.add_(away[name])
    log_ND = network(images).log_softmax(1)
    divergence = (target_ND * (target_ND.log() - log_ND)).sum(1)[sure_N].sum() / len(images)
    there = torch.autograd.grad(method.consistency_weight * divergence, list(parameters.values()))
    with torch.no_grad():
        for name, p in parameters.items():
            p.sub_(away[name])
    holder.sgd.zero_grad()
    nn.functional.cross_entropy(network(images), labels_N).backward()
    for p, gradient in zip(parameters.values(), there, strict=True):
        gradient_of(p).add_(gradient)
    holder.sgd.step()


@functools.cache
def by_plain_torch(method: FL2, rounds: int) -> dict[str, Tensor]:
    environment = prepare(experiment_of(method))
    data, keeps = environment.data, method.momentum == "released_code"
    holders = {k: Holder(environment, keeps) for k in (SERVER, 0, 1, 2, 3)}
    weights = weights_of(environment.network())
    velocity = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    views = ("weak", "strong") if method.anchor == "weak" else ("strong",)
    for number in range(1, rounds + 1):
        if number == 1:
            weights = on_labels(environment, holders[SERVER], weights, number, draw=0)
        if number <= method.warm_start_rounds:
            if number > 1:
                weights = on_labels(environment, holders[SERVER], weights, number, draw=0)
            continue
        sent = {}
        for k in range(4):
            holders[k].begin(weights)
            at_N = torch.as_tensor(environment.held.unlabelled[k])
            images = (data.train_images_NCHW[at_N].float() / 255 - data.mean[0]) / data.std[0]
            with torch.no_grad():
                p_ND = holders[k].network.eval()(images).softmax(1)
            holders[k].network.train()
            p_N, y_N = p_ND.max(1)
            cut_D = p_N.mean() * p_ND.mean(0) / p_ND.mean(0).max()
            in_A = (p_N >= cut_D[y_N]).nonzero().flatten()
            marks_N = y_N + 100 * (p_N >= 0.13)
            chosen = Selected(positions_N=in_A, labels_N=marks_N[in_A])
            streams = {"unlabelled": Stream.whole("unlabelled", 8, *views)}
            for batch in batches(environment, number, k, 2, streams, {"unlabelled": chosen}):
                marks = batch["unlabelled"].pseudo_labels_N
                client_step(holders[k], method, batch["unlabelled"].views, marks % 100, marks >= 100)
            sent[k] = (1 - float(p_N.mean()), weights_of(holders[k].network))
        total = sum(weight for weight, _ in sent.values())
        mean = {name: sum(b / total * w[name].double() for b, w in sent.values()) for name in weights}
        velocity = {name: 0.5 * velocity[name] + weights[name].double() - mean[name] for name in weights}
        weights = {name: (w.double() - velocity[name]).float() for name, w in weights.items()}
        weights = on_labels(environment, holders[SERVER], weights, number, draw=1)
    return weights


@pytest.mark.parametrize("way", WAYS)
def test_rounds_by_plain_torch(way):
    """Two rounds with clients, and one before them where there is a warm start."""
    method = WAYS[way]
    rounds = 2 + method.warm_start_rounds
    module, _ = watched(experiment_of(method), rounds)
    expected = by_plain_torch(method, rounds)
    assert difference(module.models()["student"], expected) < 1e-6
    assert module.metrics["client/consistency"] > 1e-4 and 0.3 < module.metrics["pseudo/kept"] < 1
    if way != "paper":
        assert difference(expected, by_plain_torch(METHOD, rounds)) > 1e-4
