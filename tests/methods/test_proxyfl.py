"""ProxyFL: whole rounds against plain torch, its contrastive loss image by image, and the tuning by autograd."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federated.environment import weights_of
from benchmark.methods.proxyfl import ProxyFL
from benchmark.streams import numpy_stream
from tests.methods.plain_torch import PlainRounds, compared, mean, partly_labelled, step
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
    """Compute image by image -log of exp(near) over itself and all images of other classes that look alike at all."""
    z = [v / v.norm() for v in z]
    W = [w / w.norm() for w in W]
    terms = []
    for i in of:
        (best,) = p[i].argmax(0, keepdim=True).tolist()
        near = z[i] @ W[best] if sure[i] else sum((p[i][c] * (z[i] @ W[c]) for c in sets[i]), start=torch.zeros(()))
        others = [z[i] @ z[j] for j in range(len(z)) if not sets[i] & sets[j] and z[i] @ z[j] >= 1e-6]
        terms.append(torch.stack([near, *others]).logsumexp(0) - near)
    return torch.stack(terms).mean()


def of(way: str) -> Any:
    return partly_labelled(WAYS[way], "bn" if "batch norm" in way else "gn", T=5)


class Plain(PlainRounds):
    """ProxyFL in plain torch: `share_D` are the classes' shares, `layers` the projections."""

    def begin(self) -> None:
        self.share_D, self.counts_D = torch.full((10,), 0.1), torch.zeros(10)
        draw = numpy_stream(0, "start", "projections")
        shapes = ((64, 64), (64,), (64, 64))
        self.layers = [torch.from_numpy(draw.uniform(-0.125, 0.125, shape)).float() for shape in shapes]

    def job(self, client: int) -> Any:
        method, student, received = self.method, self.network(), self.network().eval()
        layer = cast(nn.Linear, student.fc2)
        own = nn.ParameterList([value.clone() for value in self.layers])
        optimizer = self.optimizer(client, student, own)
        for batch in self.batches(client):
            views: Any = [batch["labelled"].views["weak"], *batch["unlabelled"].views.values()]
            labels_N, sizes, seen = batch["labelled"].labels_N, [len(view) for view in views], list[Tensor]()
            hook = layer.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
            labelled, weak, strong = self.passed(student, views)
            hook.remove()
            with torch.no_grad():
                p_x, p_u = received(views[0]).softmax(1), received(views[1]).softmax(1)
                sure_u = (p_u.amax(1) >= method.threshold) | (weak.softmax(1).amax(1) >= method.threshold)
            of_image = F.cross_entropy(strong, p_u.argmax(1), reduction="none")
            loss = F.cross_entropy(labelled, labels_N) + 2.0 * of_image[sure_u].sum() / len(of_image)
            for label in [*labels_N.tolist(), *p_u.argmax(1)[sure_u].tolist()]:
                self.counts_D[label] += 1
            if method.proxy_weight:
                z, W = torch.cat(seen), layer.weight
                if method.projections == "released_code":
                    z, W = z @ own[0].T + own[1], W @ own[2].T
                p = [*p_x, *p_u, *p_u]
                sure = [*(p_x.amax(1) >= method.threshold).tolist(), *sure_u.tolist(), *sure_u.tolist()]
                above = [p_i > (p_i.sort().values[-3] if method.candidates else self.share_D) for p_i in p]
                sets = [set(a.nonzero().flatten().tolist()) for a in above]
                sets = [{int(p[i].argmax())} if sure[i] else s for i, s in enumerate(sets)]
                if method.labelled_candidates == "paper":
                    sets[: sizes[0]] = [{int(label)} for label in labels_N]
                loss = loss + 0.7 * contrast(list(z), list(W), p, sets, sure, range(sizes[0], sum(sizes)))
            step(optimizer, loss)
        return weights_of(student), [value.detach() for value in own]

    def ends(self, returned: list[Any]) -> None:
        students, layers = zip(*returned, strict=True)
        self.now = mean(students)
        self.layers = [torch.stack(values).mean(0) for values in zip(*layers, strict=True)]
        self.share_D = 0.6 * self.share_D + 0.4 * self.counts_D / self.counts_D.sum()
        self.counts_D = torch.zeros(10)
        order = self.environment.world(self.number, None).generator("tuning")  # type: ignore[arg-type]
        clients = [student["fc2.weight"] for student in students]
        self.now["fc2.weight"] = by_autograd(self.now["fc2.weight"], clients, self.method, order)


def by_autograd(mean_DF: Tensor, clients: list[Tensor], method: ProxyFL, order: np.random.Generator) -> Tensor:
    W_DF, D = mean_DF.double().requires_grad_(), len(mean_DF)
    optimizer = torch.optim.SGD([W_DF], lr=method.tuning_rate)
    nearest = []
    for i, a in enumerate(mean_DF):
        nearest.append(min(float(torch.dist(a, b)) for j, b in enumerate(mean_DF) if j != i))
    margin = min(max(nearest), 100.0) if method.margin == "released_code" else 0.0
    proxies_PF, labels_P = torch.cat(clients).double(), torch.arange(D).repeat(len(clients))
    for _ in range(method.tuning_passes):
        for at_N in torch.from_numpy(order.permutation(len(labels_P))).split(method.tuning_batch_size):
            distances_ND = torch.cdist(proxies_PF[at_N], W_DF) + margin * F.one_hot(labels_P[at_N], D)
            optimizer.zero_grad()
            F.cross_entropy(-distances_ND, labels_P[at_N]).backward()
            optimizer.step()
    return W_DF.detach().float()


def test_a_round_that_counts_no_label_leaves_the_shares():
    """Run one client without labels per round, with tau = 1, so that no image has a label to count."""
    e = tiny_with(replace(METHOD, threshold=1.0), "some_clients", C=1, T=1)
    module, _ = watched(replace(e, seed=1))
    assert module.state.server["shares"].tolist() == pytest.approx([0.1] * 10)


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    module, plain = compared(Plain, of(way), of("batch norm" if "batch norm" in way else "released"), least=2e-6)
    assert torch.allclose(module.state.server["shares"], plain.share_D, atol=1e-6)
    assert 0.05 < module.metrics["pseudo/kept"] < 0.95
