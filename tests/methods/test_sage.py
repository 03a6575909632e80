"""SAGE and its baselines: whole rounds against plain torch, image by image, and state that passes from job to job."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmark.federated.environment import weights_of
from benchmark.methods.protocol import Batch, Selected, Weights
from benchmark.methods.sage import SAGE, FedLabel, FixMatchGPL, FixMatchLPL, FlexMatchLPL
from tests.methods.plain_torch import PlainRounds, compared, partly_labelled, step
from tests.methods.watch import tiny_with, watched

SHARED: dict[str, Any] = {"unlabelled_weight": 2.0, "batch_size": 8, "labelled_batch_size": 12}
# With these values a change of 1e-7 in the initial weights changes the final weights by less than 1e-6: no image is so
# near tau that rounding decides.
TAU = {FixMatchLPL: 0.14, FixMatchGPL: 0.14, FlexMatchLPL: 0.7, FedLabel: 0.142, SAGE: 0.142}
METHODS: dict[type, Any] = {kind: kind(**SHARED, threshold=tau) for kind, tau in TAU.items()}
METHODS[FedLabel] = replace(METHODS[FedLabel], agreement_weight=0.5)
WAYS: dict[str, Any] = {
    **{kind.__name__: method for kind, method in METHODS.items()},
    "FlexMatch that forgets": replace(METHODS[FlexMatchLPL], counts="forgotten"),
    "FedLabel, strong": replace(METHODS[FedLabel], agreement_view="strong"),
    "FedLabel, from local": replace(METHODS[FedLabel], divergence="from_local"),
    "SAGE, batch norm": replace(METHODS[SAGE], threshold=0.14),
    "SAGE, batch norm, apart": replace(METHODS[SAGE], threshold=0.14, forward="apart"),
    "SAGE, shared momentum": replace(METHODS[SAGE], momentum="released_code"),
    "SAGE, kept momentum": replace(METHODS[SAGE], momentum="kept"),
    "SAGE, released list": replace(METHODS[SAGE], labelled_list="released_code"),
    "SAGE, wide gap": replace(METHODS[SAGE], half_gap=0.5),
}


class Plain(PlainRounds):
    """The methods in plain torch: `counts` counts images by whether p_L and p_G are confident and agree."""

    def begin(self) -> None:
        self.last: dict[int, list[int | None]] = {}
        self.counts: Counter[tuple[bool, bool, bool]] = Counter()
        self.kept: list[bool] = []

    def job(self, client: int) -> Weights:
        method = self.method
        assignment = self.environment.assignment
        student, received = self.network(), self.network().eval()
        optimizer = self.optimizer(client, student)
        images = len(assignment.unlabelled[client])
        if client not in self.last or getattr(method, "counts", "") == "forgotten":
            self.last[client] = [None] * images
        selected: dict[str, Any] = {
            "unlabelled": Selected(positions_N=torch.arange(images), labels_N=torch.arange(images))
        }
        if method.labelled_list == "released_code":
            selected["labelled"] = Selected(positions_N=torch.arange(len(assignment.labelled[client])).repeat(2000))
        for batch in self.batches(client, **selected):
            views = [batch["labelled"].views["weak"], *batch["unlabelled"].views.values()]
            labelled, weak, strong = self.passed(student, views)
            with torch.no_grad():
                p_G_ND = received(views[1]).softmax(1)
            loss = F.cross_entropy(labelled, batch["labelled"].labels_N)
            step(optimizer, loss + 2.0 * self.unlabelled_loss(weak, strong, p_G_ND, batch["unlabelled"], client))
        self.labelled = len(views[0])
        self.last_client = client
        self.keep(client, optimizer)
        return weights_of(student)

    def unlabelled_loss(self, weak_ND, strong_ND, p_G_ND, unlabelled: Batch, client: int) -> torch.Tensor:
        """Compute L_u image by image."""
        method = self.method
        terms = []
        sure_classes = Counter(self.last[client])
        for i, position in enumerate(unlabelled.given_N.tolist()):
            p_L, p_G, log_p = weak_ND[i].detach().softmax(0), p_G_ND[i], strong_ND[i].log_softmax(0)
            y_L, y_G = int(p_L.argmax()), int(p_G.argmax())
            sure_L, sure_G = bool(p_L.max() >= method.threshold), bool(p_G.max() >= method.threshold)
            self.counts[sure_L, sure_G, y_L == y_G] += 1
            term = torch.zeros(())
            if isinstance(method, FixMatchLPL) and sure_L:
                term = -log_p[y_L]
            if isinstance(method, FixMatchGPL) and sure_G:
                term = -log_p[y_G]
            if isinstance(method, FlexMatchLPL):
                b = sure_classes[y_L] / max(sure_classes.values())
                self.kept.append(bool(p_L.max() >= method.threshold * b / (2 - b)))
                term = -log_p[y_L] * self.kept[-1]
                if sure_L:
                    self.last[client][position] = y_L
            if isinstance(method, FedLabel):
                if sure_L or sure_G:
                    term = -log_p[y_L if p_L.max() >= p_G.max() else y_G]
                if y_L == y_G:
                    local = (weak_ND if method.agreement_view == "weak" else strong_ND)[i].softmax(0)
                    pair = (p_G, local) if method.divergence == "from_global" else (local, p_G)
                    term = term + method.agreement_weight * (pair[0] * (pair[0] / pair[1]).log()).sum()
            if isinstance(method, SAGE) and (sure_L or sure_G):
                share = 0.5 ** ((abs(float(p_L.max() - p_G.max())) + 1e-6) / method.half_gap) if sure_L else 0.0
                target = share * F.one_hot(torch.tensor(y_L), 10) + (1 - share) * F.one_hot(torch.tensor(y_G), 10)
                term = F.kl_div((log_p.exp() + 1e-10).log(), target + 1e-10, reduction="sum")
            terms.append(term)
        return torch.stack(terms).mean()


def of(way: str) -> Any:
    return partly_labelled(WAYS[way], "bn" if "batch norm" in way else "gn")


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    """Include each implementation choice at each value."""
    default = "SAGE, batch norm" if "batch norm" in way else type(WAYS[way]).__name__
    module, plain = compared(Plain, of(way), of(default))
    assert plain.labelled == (12 if "list" in way else len(module.environment.assignment.labelled[plain.last_client]))
    if way == "SAGE":
        assert all(plain.counts[case] > 5 for case in ((True, False, True), (True, True, False), (False, False, True)))
    if "FlexMatch" in way:
        assert 0.5 < sum(plain.kept) / len(plain.kept) < 0.999


def test_an_epoch_is_as_many_steps_as_labelled_batches_would_be():
    e = tiny_with(SAGE(batch_size=8, labelled_batch_size=4, labelled_list="released_code"), "share", epochs=3)
    module, watch = watched(replace(e, data=replace(e.data, images=240)))
    for job, outcome in watch.clients():
        assert outcome.steps == 3 * (len(module.environment.assignment.unlabelled[job.key.client]) // 4)
