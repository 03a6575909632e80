"""FedIRM: whole rounds against plain torch, and passes with dropout."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.config import values_before
from benchmark.methods.fedirm import FedIRM, RelationMatching
from benchmark.methods.protocol import Batch, Step
from tests.methods.plain_torch import MeanTeachers, compared, experiment_of, plain_images


@pytest.mark.parametrize("asked", ["student", "teacher"])
def test_who_is_asked_with_dropout(asked):
    """Repeat the draws of dropout by hand.

    The student has a pass that trains and gives label and confidence, and then three passes, of which the logits are
    averaged. The teacher has two passes, of which the probabilities are averaged.
    """
    weak = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)) * 2
    views = {"weak": weak, "weak2": weak + 0.1}
    with torch.random.fork_rng():
        torch.manual_seed(5)
        student, teacher = (nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 3)) for _ in range(2))
        teacher.eval()
        update = RelationMatching(method=FedIRM(asked=asked, passes=2, uncertainty=0.9, least_confidence=0.6))
        torch.manual_seed(3)
        networks = nn.ModuleDict({"student": student}), nn.ModuleDict({"teacher": teacher})
        batch = {"unlabelled": Batch(views=views, labels_N=None)}
        notes = {"ramp": torch.ones((), dtype=torch.float64)}
        _, aux = update.unlabelled_loss(Step(trainable=networks[0], frozen=networks[1], batch=batch, notes=notes))
        torch.manual_seed(3)
        with torch.no_grad():
            label_ND = student(views["weak2"]).softmax(1)
            if asked == "student":
                mean_ND = torch.stack([student(views["weak2"]) for _ in range(3)]).mean(0).softmax(1)
            else:
                teacher[1].train()
                mean_ND = label_ND = torch.stack([teacher(views["weak"]).softmax(1) for _ in range(2)]).mean(0)
    kept_N = (-(mean_ND * mean_ND.log()).sum(1) < 0.9) & (label_ND.max(1).values >= 0.6)
    assert aux["labels_N"].tolist() == label_ND.argmax(1).tolist()
    assert aux["kept_N"].tolist() == kept_N.tolist() and 5 < kept_N.sum() < 35
    if asked == "student":  # the entropy is computed from the mean, and the confidence from one pass
        assert kept_N.tolist() != (mean_ND.max(1).values >= 0.6).tolist()


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


class Plain(MeanTeachers):
    """FedIRM in plain torch: `relations` are the labelled client's, by class."""

    def job(self, client):
        student = super().job(client)
        if self.environment.labelled[client]:
            at_N = torch.as_tensor(self.environment.assignment.labelled[client])
            network = self.environment.network()
            network.load_state_dict(student)
            with torch.no_grad():
                logits_ND = network.eval()(plain_images(self.environment, client, "labelled"))
            labels_N = self.environment.data.train_labels_N[at_N]
            self.relations = [softened(logits_ND, labels_N, c) for c in range(10)]
        return student

    def loss_on_labels(self, student, images):
        views = ("weak", "weak2")[: self.method.labelled_views]
        log_ND = torch.cat([student(images.views[view]).log_softmax(1) for view in views])
        right_N = log_ND.gather(1, images.labels_N.repeat(len(views))[:, None])
        smoothing = self.method.smoothing
        return -len(views) * ((1 - smoothing) * right_N.mean() + smoothing * log_ND.mean())

    def loss_of(self, student, teacher, views):
        method = self.method
        since = self.number - 1
        t = since if method.ramp_from == "start" else since - method.warm_start_rounds
        with torch.no_grad():
            q_ND = teacher(views["weak"]).softmax(1)
        logits_ND = student(views["weak2"])
        p_ND = {"teacher": q_ND, "student": logits_ND.detach().softmax(1)}[method.asked]
        sure_N = (-(p_ND * p_ND.log()).sum(1) < method.uncertainty) & (p_ND.max(1).values >= method.least_confidence)
        loss = ((logits_ND.softmax(1) - q_ND) ** 2).sum(1).mean()
        for c, theirs in enumerate(self.relations):
            mine = softened(logits_ND[sure_N], p_ND.argmax(1)[sure_N], c)
            if mine is not None and theirs is not None:
                both = F.kl_div(mine.log(), theirs, reduction="sum") + F.kl_div(theirs.log(), mine, reduction="sum")
                loss = loss + method.relation_weight * both / 20
        return 15.0 * min(math.exp(-5 * (1 - t / 4) ** 2), 1.0) * loss


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_after_one_on_labels_by_plain_torch(way):
    """Include each implementation choice at each value, and the values of older run records."""
    module, _ = compared(Plain, experiment_of(WAYS[way]), experiment_of(WARM), 3, least=3e-5)
    assert module.metrics["client/relation_loss"] > 1e-4 and 0 < module.metrics["pseudo/kept"] <= 1
    assert (module.metrics["pseudo/kept"] < 1) == (way != "not smoothed")  # this model is more confident
