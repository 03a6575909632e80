"""(FL)^2: thresholds and perturbation by hand, whole rounds against plain torch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.data.augment import Weak
from benchmark.experiment import Experiment
from benchmark.federated.environment import weights_of
from benchmark.methods.flfl import FL2, adaptively_labelled
from benchmark.methods.protocol import Selected, Stream
from tests.methods.plain_torch import AlternatingRounds, batches, compared, experiment_of, mean, plain_images


def test_a_client_of_equal_images_keeps_all():
    """Expect that all images are selected, since each is exactly at the mean, whatever is rounded."""
    for count in (1, 3, 7, 1000):
        logits_ND = torch.tensor([[0.1, 0.7, 0.2]]).repeat(count, 1)
        assert adaptively_labelled(logits_ND, threshold=0.95).kept_N.all()


# Labels come from images without augmentation; strong views are drawn. rho is large, so that two rounds change weights
# by a large amount.
METHOD = FL2(threshold=0.13, rho=1.0, batch_size=8, server_batch_size=8)
WAYS = {
    "paper": METHOD,
    "another weight": replace(METHOD, consistency_weight=5.0),
    "released momentum": replace(METHOD, momentum="released_code"),
    "weak anchor": replace(METHOD, anchor="weak"),
    "no server momentum": replace(METHOD, server_momentum=0.0),
    "after a warm start": replace(METHOD, warm_start_rounds=1),
}


def of(way: str) -> Experiment:
    e = experiment_of(WAYS[way], "server")
    plain = replace(e.data.augmentation, weak=Weak(flip=0.0, crop_padding=0.0))
    return replace(e, data=replace(e.data, augmentation=plain, images=300))


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Plain(AlternatingRounds):
    def play(self, cohort: list[int]) -> None:
        warm = self.number <= self.method.warm_start_rounds
        if self.number == 1 or warm:
            self.serve(0, keeps=True)
        if not warm:
            certainty, students = zip(*[self.job(client) for client in cohort], strict=True)
            total = sum(1 - tau for tau in certainty)
            self.follow(mean(students, [(1 - tau) / total for tau in certainty]))
            self.serve(1, keeps=True)

    def job(self, client: int) -> Any:
        """Return the mean confidence and the weights."""
        network = self.network()
        with torch.no_grad():
            p_ND = network.eval()(plain_images(self.environment, client)).softmax(1)
        p_N, y_N = p_ND.max(1)
        cut_D = p_N.mean() * p_ND.mean(0) / p_ND.mean(0).max()
        in_A = (p_N >= cut_D[y_N]).nonzero().flatten()
        marks_N = y_N + 100 * (p_N >= 0.13)
        chosen = {"unlabelled": Selected(positions_N=in_A, labels_N=marks_N[in_A])}
        views = ("weak", "strong") if self.method.anchor == "weak" else ("strong",)
        streams = {"unlabelled": Stream.whole("unlabelled", 8, *views)}
        sgd = self.optimizer(client, network.train())
        for batch in batches(self.environment, self.number, client, 2, streams, chosen):
            marks = batch["unlabelled"].pseudo_labels_N
            self.client_step(network, sgd, batch["unlabelled"].views, marks % 100, marks >= 100)
        self.keep(client, sgd)
        return float(p_N.mean()), weights_of(network)

    def client_step(self, network: nn.Module, sgd: Any, views: Any, labels_N: Tensor, sure_N: Tensor) -> None:
        """Take the step by moving the weights themselves, as in ASAM's code, and adding two gradients."""
        method = self.method
        images = views["strong"]
        parameters = dict(network.named_parameters())
        with torch.no_grad():
            target_ND = network(views["weak" if method.anchor == "weak" else "strong"]).softmax(1)
        away = {name: torch.zeros_like(p) for name, p in parameters.items()}
        if sure_N.any():
            network.zero_grad()
            F.cross_entropy(network(images[sure_N]), labels_N[sure_N]).backward()
            T = {
                name: p.detach().abs() + 0.01 if "weight" in name else torch.ones(()) for name, p in parameters.items()
            }
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
        sgd.zero_grad()
        F.cross_entropy(network(images), labels_N).backward()
        for p, gradient in zip(parameters.values(), there, strict=True):
            gradient_of(p).add_(gradient)
        sgd.step()


@pytest.mark.parametrize("way", WAYS)
def test_rounds_by_plain_torch(way):
    """Compare two rounds with clients, after one round of the warm start if there is one.

    Less confident clients have a higher weight.
    """
    module, _ = compared(Plain, of(way), of("paper"), 2 + WAYS[way].warm_start_rounds)
    assert module.metrics["client/consistency"] > 1e-4 and 0.3 < module.metrics["pseudo/kept"] < 1
