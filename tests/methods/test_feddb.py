"""FedDB: whole rounds against plain torch, and the optimality condition of the clients' shares."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmark.federated.environment import weights_of
from benchmark.federated.evaluate import logits_of
from benchmark.methods.feddb import FedDB, least_biased
from benchmark.methods.protocol import Selected
from benchmark.streams import torch_stream
from tests.methods.plain_torch import AlternatingRounds, compared, mean, partly_labelled, step

METHOD = FedDB(shares="paper", threshold=0.115, batch_size=8, labelled_batch_size=4, unlabelled_weight=2.0)
WAYS: dict[str, Any] = {
    "paper": METHOD,
    "released shares": replace(METHOD, shares="released_code"),
    "equal shares": replace(METHOD, shares="equal"),
    "no server momentum": replace(METHOD, server_momentum=0.0),
    "batch norm": replace(METHOD, threshold=0.103),
    "batch norm, apart": replace(METHOD, threshold=0.103, forward="apart"),
    "sure of nothing": replace(METHOD, threshold=1.0),
}


def of(way: str) -> Any:
    return partly_labelled(WAYS[way], "bn" if "batch norm" in way else "gn", T=4, images=240)


class Plain(AlternatingRounds):
    """FedDB in plain torch: `kept` is the number of selected images of each job."""

    def begin(self) -> None:
        super().begin()
        self.kept: list[int] = []

    def job(self, client: int) -> Any:
        method = self.method
        student = self.network()
        draw = torch_stream(0, "train", "round", self.number, "client", client, "draw", 0, "start")
        with torch.no_grad():
            part = self.environment.part(client, "unlabelled")
            p_ND = logits_of(student, self.environment, part, "weak", draw).softmax(1)
        q = p_ND.mean(0)
        fair_ND = p_ND / q
        fair_ND = fair_ND / fair_ND.sum(1, keepdim=True)
        kept = [i for i in range(len(p_ND)) if fair_ND[i].max() >= method.threshold]
        self.kept.append(len(kept))
        positions_N = torch.tensor(kept)
        chosen = {"unlabelled": Selected(positions_N=positions_N, labels_N=fair_ND.argmax(1)[kept])} if kept else {}
        optimizer = self.optimizer(client, student.train())
        for batch in self.batches(client, ("strong",) if kept else (), **chosen):
            logits = self.passed(student, [next(iter(images.views.values())) for images in batch.values()])
            loss = F.cross_entropy(logits[0], batch["labelled"].labels_N)
            if kept:
                loss = loss + 2.0 * F.cross_entropy(logits[1], batch["unlabelled"].pseudo_labels_N)
                q = (q + logits[1].detach().softmax(1).mean(0)) / 2
            step(optimizer, loss)
        return weights_of(student), q.double()

    def ends(self, returned: list[Any]) -> None:
        students, qs = zip(*returned, strict=True)
        solvers: dict[str, Any] = {
            "paper": least_biased,
            "released_code": by_torch_optim,
            "equal": lambda q: [1 / len(q)] * len(q),
        }
        shares = [float(share) for share in solvers[self.method.shares](torch.stack(qs))]
        doubles = []
        for student in students:
            doubles.append({name: value.double() for name, value in student.items()})
        self.follow(mean(doubles, shares))


def by_torch_optim(q_KD: Tensor) -> Tensor:
    """Compute the released shares by 100 steps, each with a new optimizer."""
    weight = torch.full((len(q_KD), 1), 1 / len(q_KD), dtype=torch.float64)
    for _ in range(100):
        weight.requires_grad_(True)
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, weight_decay=0.9, nesterov=True)
        F.mse_loss((q_KD * weight).sum(0), torch.full((q_KD.shape[1],), 1 / q_KD.shape[1]).double()).backward()
        optimizer.step()
        weight = torch.softmax(weight.detach(), 0)
    return weight.flatten()


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    """Include clients without selected images, which only learn labels and send the q of the received model."""
    _, plain = compared(Plain, of(way), of("batch norm" if "batch norm" in way else "paper"))
    if way == "sure of nothing":
        assert set(plain.kept) == {0}
    else:
        assert min(plain.kept) > 0 and sum(plain.kept) < 0.8 * 2 * 216  # 216 images without labels per round


@given(st.integers(1, 8), st.integers(2, 10), st.sampled_from([0.1, 1.0, 10.0]), st.integers(0, 10**6))
def test_no_shares_are_less_biased(K, D, alpha, seed):
    """Check the optimality conditions: for each share above 0, the slope is the smallest one."""
    q_KD = torch.from_numpy(np.random.default_rng(seed).dirichlet([alpha] * D, size=K))
    shares_K = least_biased(q_KD)
    assert float(shares_K.min()) >= 0 and float(shares_K.sum()) == pytest.approx(1)
    slope_K = q_KD @ (shares_K @ q_KD) + 1e-6 * shares_K
    assert float((slope_K - slope_K.min())[shares_K > 1e-6].max()) < 1e-8
