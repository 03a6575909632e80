"""ProxyFL: whole rounds by plain torch, its contrast image by image, the server's tuning by autograd."""

import functools
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.protocol import Job, Key, Limit, LocalUpdate, Stream, Weights
from benchmark.methods.proxyfl import ProxyFL, contrast_loss, tuned
from benchmark.models.build import Model
from benchmark.streams import numpy_stream
from tests.federated.helpers import difference
from tests.methods.test_sage import LR, T, experiment_of
from tests.methods.watch import tiny_with, watched

SIZES: dict[str, Any] = {"batch_size": 8, "labelled_batch_size": 12, "tuning_batch_size": 6}
RATES: dict[str, Any] = {"threshold": 0.4, "unlabelled_weight": 2.0, "proxy_weight": 0.7, "decay": 0.6}
METHOD = ProxyFL(**SIZES, **RATES, tuning_passes=3, tuning_rate=0.01)
WAYS: dict[str, ProxyFL] = {
    "released": METHOD,
    "no projections": replace(METHOD, projections="paper"),
    "labels as candidates": replace(METHOD, labelled_candidates="paper"),
    "no margin": replace(METHOD, margin="paper"),
    "two candidates": replace(METHOD, candidates=2),
    "GPT alone": replace(METHOD, proxy_weight=0.0),
    "ICPL alone": replace(METHOD, tuning_passes=0),
    "batch norm": replace(METHOD, threshold=0.5),
    "batch norm, apart": replace(METHOD, threshold=0.5, forward="apart"),
}


def contrast(z: list[Tensor], W: list[Tensor], p: list[Tensor], sets: list[set[int]], sure: list[bool], of: range):
    """Image by image: -log of exp(near) over itself and all images of other classes that look alike at all."""
    z, W = [v / v.norm() for v in z], [w / w.norm() for w in W]
    terms = []
    for i in of:
        (best,) = p[i].argmax(0, keepdim=True).tolist()
        near = z[i] @ W[best] if sure[i] else sum((p[i][c] * (z[i] @ W[c]) for c in sets[i]), start=torch.zeros(()))
        others = [z[i] @ z[j] for j in range(len(z)) if not sets[i] & sets[j] and z[i] @ z[j] >= 1e-6]
        terms.append(torch.stack([near, *others]).logsumexp(0) - near)
    return torch.stack(terms).mean()


@functools.cache
def by_plain_torch(method: ProxyFL, norm: str = "gn") -> tuple[Weights, Tensor]:
    """The student after two rounds, and the classes' shares."""
    environment = prepare(experiment_of(method, norm))
    now, share_D = weights_of(environment.network()), torch.full((10,), 0.1)
    draw = numpy_stream(0, "start", "projections")
    drawn = [torch.from_numpy(draw.uniform(-0.125, 0.125, shape)).float() for shape in ((64, 64), (64,), (64, 64))]
    for number in (1, 2):
        students, layers, counts_D = [], [], torch.zeros(10)
        for client in environment.world(number, None).cohort():  # type: ignore[arg-type]
            student, received = environment.network(), environment.network()
            student.load_state_dict(now)
            received.load_state_dict(now)
            received.eval()
            layer = cast(nn.Linear, student.fc2)
            own = [value.clone().requires_grad_() for value in drawn]
            optimizer = torch.optim.SGD([*student.parameters(), *own], lr=LR, momentum=0.9)
            streams = {
                "labelled": Stream(part="labelled", batch_size=12, views=("weak",)),
                "unlabelled": Stream(part="unlabelled", batch_size=8, views=("weak", "strong")),
            }
            job = Job(key=Key(client=client), update=LocalUpdate(), receives={}, data=streams, limit=Limit(steps=T))
            for batch in JobBatches(environment, job, number):
                views: Any = [batch.streams["labelled"].views["weak"], *batch.streams["unlabelled"].views.values()]
                labels_N: Any = batch.streams["labelled"].labels_N
                sizes = [len(view) for view in views]
                seen: list[Tensor] = []
                hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))  # noqa: B023
                if method.forward == "joint":
                    labelled, weak, strong = student(torch.cat(views)).split(sizes)
                else:
                    labelled, weak, strong = (student(view) for view in views)
                hook.remove()
                with torch.no_grad():
                    p_x, p_u = received(views[0]).softmax(1), received(views[1]).softmax(1)
                    sure_u = (p_u.amax(1) >= method.threshold) | (weak.softmax(1).amax(1) >= method.threshold)
                loss = F.cross_entropy(labelled, labels_N)
                of_image = F.cross_entropy(strong, p_u.argmax(1), reduction="none")
                loss = loss + 2.0 * of_image[sure_u].sum() / len(of_image)
                for label in [*labels_N.tolist(), *p_u.argmax(1)[sure_u].tolist()]:
                    counts_D[label] += 1
                if method.proxy_weight:
                    z, W = torch.cat(seen), layer.weight
                    if method.projections == "released_code":
                        z, W = z @ own[0].T + own[1], W @ own[2].T
                    p = [*p_x, *p_u, *p_u]
                    sure = [*(p_x.amax(1) >= method.threshold).tolist(), *sure_u.tolist(), *sure_u.tolist()]
                    above = [p_i > (p_i.sort().values[-3] if method.candidates else share_D) for p_i in p]
                    sets = [set(a.nonzero().flatten().tolist()) for a in above]
                    sets = [{int(p[i].argmax())} if sure[i] else s for i, s in enumerate(sets)]
                    if method.labelled_candidates == "paper":
                        sets[: sizes[0]] = [{int(label)} for label in labels_N]
                    of = range(sizes[0], sum(sizes))
                    loss = loss + 0.7 * contrast(list(z), list(W), p, sets, sure, of)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            students.append(weights_of(student))
            layers.append([value.detach() for value in own])
        now = {
            name: torch.stack([student[name].double() for student in students]).mean(0).to(value.dtype)
            for name, value in now.items()
        }
        drawn = [torch.stack(values).mean(0) for values in zip(*layers, strict=True)]
        share_D = 0.6 * share_D + 0.4 * counts_D / counts_D.sum()
        order = environment.world(number, None).generator("tuning")  # type: ignore[arg-type]
        now["fc2.weight"] = by_autograd(now["fc2.weight"], [s["fc2.weight"] for s in students], method, order)
    return now, share_D


def by_autograd(mean_DF: Tensor, clients: list[Tensor], method: ProxyFL, order: np.random.Generator) -> Tensor:
    W_DF, D = mean_DF.double().requires_grad_(), len(mean_DF)
    optimizer = torch.optim.SGD([W_DF], lr=method.tuning_rate)
    nearest = [min(float(torch.dist(a, b)) for j, b in enumerate(mean_DF) if j != i) for i, a in enumerate(mean_DF)]
    margin = min(max(nearest), 100.0) if method.margin == "released_code" else 0.0
    proxies_PF, labels_P = torch.cat(clients).double(), torch.arange(D).repeat(len(clients))
    for _ in range(method.tuning_passes):
        for at_N in torch.from_numpy(order.permutation(len(labels_P))).split(method.tuning_batch_size):
            distances_ND = torch.cdist(proxies_PF[at_N], W_DF) + margin * F.one_hot(labels_P[at_N], D)
            optimizer.zero_grad()
            F.cross_entropy(-distances_ND, labels_P[at_N]).backward()
            optimizer.step()
    return W_DF.detach().float()


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    """By plain torch, too, every switch gives other weights."""
    norm: Any = "bn" if "batch norm" in way else "gn"
    expected, share_D = by_plain_torch(WAYS[way], norm)
    module, _ = watched(experiment_of(WAYS[way], norm), 2)
    student = module.models()["student"]
    trained = {name: value for name, value in student.items() if value.is_floating_point()}
    assert difference(trained, expected) < 1e-6
    assert torch.allclose(module.state.server["shares"], share_D, atol=1e-6)
    assert 0.05 < module.metrics["pseudo/kept"] < 0.95
    default = by_plain_torch(WAYS["batch norm" if norm == "bn" else "released"], norm)[0]
    assert (difference(expected, default) > 2e-6) == (way not in ("released", "batch norm"))


def test_the_contrast_by_hand():
    """Two classes with proxies along the axes; images (1, 0), (0, 1) and (.6, .8), of which the first is labelled. The
    second, of class 1, has no other image of a disjoint set that looks alike: 0. The third, unsure of both with .5
    each, is near to .5 x .6 + .5 x .8 = .7, and all images share a class with it: 0. With {1} alone the first image is
    against it: log(e^.4 + e^.6) - .4 = .798."""
    z, W = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]]), torch.eye(2)
    weight_MD = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    sets = torch.tensor([[True, False], [False, True], [True, True]])
    assert float(contrast_loss(z, W, weight_MD, sets)) == pytest.approx(0.0, abs=1e-6)
    weight_MD[1, 0], sets[2, 0] = 0.0, False
    assert float(contrast_loss(z, W, weight_MD, sets)) == pytest.approx(0.798139 / 2, abs=1e-6)


def test_tuning_draws_the_mean_to_what_most_clients_have():
    """Of three clients one is an outlier: the mean moves from it. Without passes it stays."""
    proxies_KDF = torch.tensor([[[1.0, 0], [0, 1]], [[1, 0], [0, 1]], [[-2, 0], [0, 1]]])
    mean_DF, order = proxies_KDF.mean(0), np.random.default_rng(0)
    moved_DF = tuned(mean_DF, proxies_KDF, replace(METHOD, margin="paper", tuning_passes=200, tuning_rate=0.05), order)
    assert float(moved_DF[0, 0]) > float(mean_DF[0, 0]) + 0.3
    assert torch.equal(tuned(mean_DF, proxies_KDF, replace(METHOD, tuning_passes=0), order), mean_DF)


def test_a_network_without_features_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "own_net", type("", (), {"Net": OwnNet}))
    experiment = replace(tiny_with(METHOD, "share"), model=Model(network="own_net:Net"))
    with pytest.raises(ConfigError, match=r"own_net:Net has no features; make it a benchmark.models.classifier.Class"):
        prepare(experiment)


class OwnNet(torch.nn.Module):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.fc = torch.nn.Linear(64, num_classes)

    def forward(self, images_NCHW):
        return self.fc(images_NCHW.flatten(1))
