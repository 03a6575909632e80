"""FedIRM: whole rounds against plain torch, passes with dropout, what is sent."""

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmark.config import values_before
from benchmark.federated.environment import weights_of
from benchmark.methods.fedirm import FedIRM, RelationMatching
from benchmark.methods.protocol import Key
from tests.federated.helpers import difference
from tests.methods.plain_torch import experiment_of, rounds_by_plain_torch
from tests.methods.watch import watched

# --- the local loss ---


class Linear(nn.Module):
    """Logits of an image's four values."""

    def __init__(self, seed, dropout=0.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.norm, self.dropout, self.last = nn.BatchNorm1d(4), nn.Dropout(dropout), nn.Linear(4, 3)

    def forward(self, images_NCHW):
        return self.last(self.dropout(self.norm(images_NCHW.flatten(1))))


@pytest.mark.parametrize("asked", ["student", "teacher"])
def test_who_is_asked_with_dropout(asked):
    """The draws of dropout repeated by hand. Student: a pass that trains and gives label and confidence, then three
    whose logits are averaged; teacher: two whose probabilities are."""
    images_NCHW = torch.randn(40, 1, 2, 2, generator=torch.Generator().manual_seed(1)) * 2
    views = {"weak": images_NCHW, "weak2": images_NCHW + 0.1}
    student, teacher = Linear(5, dropout=0.3).train(), Linear(6, dropout=0.3).eval()
    update = RelationMatching(method=FedIRM(asked=asked, passes=2, uncertainty=0.8, least_confidence=0.6))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        _, aux = update.unlabelled_loss(student, teacher, views)
        torch.manual_seed(3)
        with torch.no_grad():
            trained_ND = student(views["weak2"])
            if asked == "student":
                mean_ND = torch.stack([student(views["weak2"]) for _ in range(3)]).mean(0).softmax(1)
                label_ND = trained_ND.softmax(1)
            else:
                teacher.dropout.train()
                mean_ND = torch.stack([teacher(views["weak"]).softmax(1) for _ in range(2)]).mean(0)
                label_ND = mean_ND
    kept_N = (-(mean_ND * mean_ND.log()).sum(1) < 0.8) & (label_ND.max(1).values >= 0.6)
    assert aux["labels_N"].tolist() == label_ND.argmax(1).tolist()
    assert aux["kept_N"].tolist() == kept_N.tolist() and 5 < kept_N.sum() < 35
    if asked == "student":  # two cuts on two predictions: neither alone gives the same
        assert kept_N.tolist() != (mean_ND.max(1).values >= 0.6).tolist()


# --- whole rounds, independently ---


METHOD = FedIRM(batch_size=8, ramp_rounds=4, uncertainty=2.29, least_confidence=0.13, ema_warm_up="paper", alpha=0.2)
WARM = replace(METHOD, warm_start_rounds=1, uncertainty=2.24, least_confidence=0.18)
WAYS = {
    "released": WARM,
    "teacher": replace(WARM, asked="teacher"),
    "joining": replace(WARM, ramp_from="joining"),
    "not smoothed": replace(WARM, smoothing=0.0),
    "one view": replace(WARM, labelled_views=1),
    "sum": replace(WARM, relation_weight=2.0),
    "before": replace(WARM, **values_before(FedIRM)),
}


def softened(logits_ND, labels_N, c):
    return (logits_ND[labels_N == c].mean(0) / 2.0).softmax(0) if (labels_N == c).any() else None


def local_loss(method, student, teacher, views, target, ramp):
    with torch.no_grad():
        q_ND = teacher(views["weak"]).softmax(1)
    logits_ND = student(views["weak2"])
    p_ND = {"teacher": q_ND, "student": logits_ND.detach().softmax(1)}[method.asked]
    sure_N = (-(p_ND * p_ND.log()).sum(1) < method.uncertainty) & (p_ND.max(1).values >= method.least_confidence)
    loss = ((logits_ND.softmax(1) - q_ND) ** 2).sum(1).mean()
    for c in range(10):
        mine = softened(logits_ND[sure_N], p_ND.argmax(1)[sure_N], c)
        if mine is not None and target[c] is not None:
            both = nn.functional.kl_div(mine.log(), target[c], reduction="sum")
            both = both + nn.functional.kl_div(target[c].log(), mine, reduction="sum")
            loss = loss + method.relation_weight * both / 20
    return 15.0 * min(ramp, 1.0) * loss


def by_plain_torch(method, rounds):
    relation: list[torch.Tensor | None] = []

    def on_labels(environment, student, client):
        """The labelled client's relations, for the others of the round."""
        positions_N, data = torch.as_tensor(environment.held.labelled[client]), environment.data
        channel = [torch.tensor(values).view(1, -1, 1, 1) for values in (data.mean, data.std)]
        with torch.no_grad():
            logits_ND = student((data.train_images_NCHW[positions_N].float() / 255 - channel[0]) / channel[1])
        relation[:] = [softened(logits_ND, data.train_labels_N[positions_N], c) for c in range(10)]

    def loss_of(student, teacher, views, number):
        t = number - 1 if method.ramp_from == "start" else number - 1 - method.warm_start_rounds
        return local_loss(method, student, teacher, views, relation, math.exp(-5 * (1 - t / 4) ** 2))

    def by_size(environment, states):
        total = sum(environment.sizes[k] for k in range(4))
        return {k: environment.sizes[k] / total for k in range(4)}

    mean, _ = rounds_by_plain_torch(
        experiment_of(method),
        rounds,
        weights=by_size,
        loss_of=loss_of,
        alpha=method.alpha,
        on_labels=on_labels,
        label_views=("weak", "weak2")[: method.labelled_views],
        smoothing=method.smoothing,
        warm=method.warm_start_rounds,
    )
    return mean


@functools.cache
def as_released():
    return by_plain_torch(WARM, 3)


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_after_one_on_labels_by_plain_torch(way):
    """Each switch at each value, and as records from before have them. By plain torch, too, the ways differ."""
    module, _ = watched(experiment_of(WAYS[way]), 3)
    mean = by_plain_torch(WAYS[way], 3)
    assert difference(module.models()["student"], mean) < 1e-6
    assert difference(mean, weights_of(module.environment.network())) > 1e-2
    assert module.metrics["client/relation_loss"] > 1e-4 and 0 < module.metrics["pseudo/kept"] <= 1
    assert (module.metrics["pseudo/kept"] < 1) == (way != "not smoothed")  # which is surer of its images
    assert (difference(mean, as_released()) > 3e-5) == (way != "released")


# --- what is sent and kept ---


def test_labelled_clients_send_their_relations_first():
    """A matrix of 10 x 10 floats up from the labelled client, and down to each of the three others, who use it in the
    same round; no client keeps the trained model."""
    module, watch = watched(experiment_of(METHOD), 1)
    jobs, outcomes = zip(*watch.seen[1], strict=True)
    labelled = next(k for k in range(4) if module.environment.labelled[k])
    assert [job.key for job in jobs[:2]] == [Key(client=labelled), Key(client=labelled, draw=1)]
    relation = outcomes[1].sends["relation"]
    for job in jobs[2:]:
        assert torch.equal(job.receives["relation"], relation) and torch.equal(job.update.relation_DD, relation)
    model = sum(value.nbytes for value in module.models()["student"].values())
    assert module.metrics["comm/bytes_up"] == 4 * model + 400
    assert module.metrics["comm/bytes_down"] == 4 * model + 3 * 400
    assert not any("trained" in kept for kept in module.state.clients.values())
