"""FedDB: whole rounds by plain torch, and the clients' shares against other solvers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from benchmark.experiment import Experiment
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.evaluate import logits_of
from benchmark.methods.feddb import FedDB, least_biased, released_shares
from benchmark.methods.protocol import Job, Key, Limit, LocalUpdate, Selected, Stream, Weights
from benchmark.optim.sgd import SGD, Constant
from benchmark.streams import torch_stream
from tests.federated.helpers import difference
from tests.methods.watch import tiny_with, watched

LR, T = 0.02, 4
METHOD = FedDB(shares="paper", threshold=0.115, batch_size=8, labelled_batch_size=4, unlabelled_weight=2.0)
WAYS: dict[str, Any] = {
    "paper": METHOD,
    "released shares": replace(METHOD, shares="released_code"),
    "equal shares": replace(METHOD, shares="equal"),
    "no server momentum": replace(METHOD, server_momentum=0.0),
    "batch norm": replace(METHOD, threshold=0.103),
    "batch norm, apart": replace(METHOD, threshold=0.103, forward="apart"),
}


def experiment_of(method: Any, norm: Any = "gn") -> Experiment:
    """Batch norm tells a joint forward from two."""
    e = tiny_with(method, "share", T=T)
    sgd = SGD(lr=LR, schedule=Constant(), weight_decay=0.0, nesterov=False)
    return replace(e, data=replace(e.data, images=240), model=replace(e.model, norm=norm), optimizer=sgd)


def by_plain_torch(method: Any, norm: Any = "gn") -> tuple[Weights, list[int]]:
    """Two rounds, and how many images each job kept."""
    environment = prepare(experiment_of(method, norm))
    now, velocity, kept_counts = weights_of(environment.network()), None, []
    for number in (1, 2):
        students, qs = [], []
        for client in environment.world(number, None).cohort():  # type: ignore[arg-type]
            student = environment.network()
            student.load_state_dict(now)
            draw = torch_stream(0, "train", "round", number, "client", client, "draw", 0, "start")
            with torch.no_grad():
                part = environment.part(client, "unlabelled")
                p_ND = logits_of(student, environment, part, "weak", draw).softmax(1)
            q = p_ND.mean(0)
            fair_ND = p_ND / q
            fair_ND = fair_ND / fair_ND.sum(1, keepdim=True)
            kept = [i for i in range(len(p_ND)) if fair_ND[i].max() >= method.threshold]
            kept_counts.append(len(kept))
            streams = {"labelled": Stream(part="labelled", batch_size=4, views=("weak",))}
            selected = {}
            if kept:
                streams["unlabelled"] = Stream(part="unlabelled", batch_size=8, views=("strong",))
                positions_N = torch.tensor(kept)
                selected["unlabelled"] = Selected(positions_N=positions_N, labels_N=fair_ND.argmax(1)[positions_N])
            job = Job(key=Key(client=client), update=LocalUpdate(), receives={}, data=streams, limit=Limit(steps=T))
            optimizer = torch.optim.SGD(student.parameters(), lr=LR, momentum=0.9)
            student.train()
            for batch in JobBatches(environment, job, number, selected=selected):
                drawn: Any = batch.streams
                images = [drawn["labelled"].views["weak"]]
                if kept:
                    images.append(drawn["unlabelled"].views["strong"])
                logits = (
                    student(torch.cat(images)).split([len(view) for view in images])
                    if method.forward == "joint"
                    else [student(view) for view in images]
                )
                loss = F.cross_entropy(logits[0], drawn["labelled"].labels_N)
                if kept:
                    loss = loss + 2.0 * F.cross_entropy(logits[1], drawn["unlabelled"].pseudo_labels_N)
                    q = (q + logits[1].detach().softmax(1).mean(0)) / 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            students.append(weights_of(student))
            qs.append(q.double())
        solvers = {
            "paper": by_slsqp,
            "released_code": by_torch_optim,
            "equal": lambda q_KD: [1 / len(q_KD)] * len(q_KD),
        }
        shares = solvers[method.shares](torch.stack(qs).numpy())
        pairs = list(zip(shares, students, strict=True))
        target = {name: torch.stack([a * s[name].double() for a, s in pairs]).sum(0) for name in now}
        trained = dict(environment.network().named_parameters())
        step = {name: now[name].double() - target[name] for name in trained}
        if velocity is not None:
            step = {name: method.server_momentum * velocity[name] + change for name, change in step.items()}
        velocity = step
        moved = {name: now[name].double() - step[name] if name in trained else target[name] for name in now}
        now = {name: value.to(now[name].dtype) for name, value in moved.items()}
    return now, kept_counts


def by_slsqp(q_KD: np.ndarray) -> list[float]:
    K, D = q_KD.shape
    found = minimize(
        lambda a: 1e4 * (((a @ q_KD - 1 / D) ** 2).sum() + 1e-6 * (a**2).sum()),
        np.full(K, 1 / K),
        jac=lambda a: 2e4 * (q_KD @ (a @ q_KD - 1 / D) + 1e-6 * a),
        bounds=[(0, 1)] * K,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(K)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return [float(share) for share in found.x]


def by_torch_optim(q_array_KD: np.ndarray) -> list[float]:
    """As released: 100 steps, each with an optimizer of its own."""
    q_KD = torch.from_numpy(q_array_KD)
    weight = torch.full((len(q_KD), 1), 1 / len(q_KD), dtype=torch.float64)
    for _ in range(100):
        weight.requires_grad_(True)
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, weight_decay=0.9, nesterov=True)
        F.mse_loss((q_KD * weight).sum(0), torch.full((q_KD.shape[1],), 1 / q_KD.shape[1]).double()).backward()
        optimizer.step()
        weight = torch.softmax(weight.detach(), 0)
    return weight.flatten().tolist()


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    """By plain torch, too, every switch gives other weights."""
    norm = "bn" if "batch norm" in way else "gn"
    mean, kept = by_plain_torch(WAYS[way], norm)
    module, _ = watched(experiment_of(WAYS[way], norm), 2)
    student = module.models()["student"]
    trained = {name: value for name, value in student.items() if value.is_floating_point()}
    assert difference(trained, mean) < 1e-6
    assert min(kept) > 0 and sum(kept) < 0.8 * 2 * 216  # images without labels
    default = "batch norm" if norm == "bn" else "paper"
    assert (difference(mean, by_plain_torch(WAYS[default], norm)[0]) > 1e-5) == (way != default)


def test_clients_that_are_sure_of_nothing_learn_labels_alone():
    """Their q is that of the model received, and no pseudo-label is learned."""
    method = replace(METHOD, threshold=1.0)
    mean, kept = by_plain_torch(method)
    module, watch = watched(experiment_of(method), 2)
    assert set(kept) == {0} and module.metrics["pseudo/kept"] == 0.0
    assert difference(module.models()["student"], mean) < 1e-6
    assert all("client/consistency_loss" not in outcome.metrics for _, outcome in watch.clients())


@st.composite
def biases(draw) -> torch.Tensor:
    """q_KD, of one to eight clients."""
    K, D = draw(st.integers(1, 8)), draw(st.integers(2, 10))
    seed, alpha = draw(st.integers(0, 10**6)), draw(st.sampled_from([0.1, 1.0, 10.0]))
    return torch.from_numpy(np.random.default_rng(seed).dirichlet([alpha] * D, size=K))


@settings(max_examples=60, deadline=None)
@given(biases())
def test_no_shares_are_less_biased(q_KD):
    """The conditions of the least: where a share is above 0 its slope is the least of all."""
    shares_K = least_biased(q_KD)
    assert float(shares_K.min()) >= 0 and float(shares_K.sum()) == pytest.approx(1)
    slope_K = q_KD @ (shares_K @ q_KD) + 1e-6 * shares_K
    assert float((slope_K - slope_K.min())[shares_K > 1e-6].max()) < 1e-8


def test_shares_by_hand():
    """Classes 0 and 1 alone: half and half. A client of both outweighs none. All alike: a K-th each."""
    assert least_biased(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()).tolist() == pytest.approx([0.5, 0.5])
    three = least_biased(torch.tensor([[0.75, 0.25], [0.0, 1.0], [0.1, 0.9]]).double())
    assert (three @ torch.tensor([0.75, 0.0, 0.1]).double()).item() == pytest.approx(0.5, abs=1e-5)
    assert least_biased(torch.full((4, 5), 0.2).double()).tolist() == pytest.approx([0.25] * 4)


def test_the_release_hardly_leaves_the_plain_mean():
    q_KD = torch.from_numpy(np.random.default_rng(1).dirichlet([0.1] * 10, size=10))
    assert released_shares(q_KD).tolist() == pytest.approx(by_torch_optim(q_KD.numpy()), abs=1e-12)
    assert 0.09 < float(released_shares(q_KD).min()) < 0.0999 and float(released_shares(q_KD).max()) < 0.11
    assert float(least_biased(q_KD).max()) > 0.15
