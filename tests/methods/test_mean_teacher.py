"""The mean teacher of RSCFed and Fed-Consist by hand: sharpening, both losses, the moving average."""

import math

import pytest
import torch
from torch import nn

from benchmark.methods.mean_teacher import MeanTeacherUpdate
from benchmark.methods.protocol import Batch, Training
from benchmark.methods.rscfed import RSCFed


class Constantly(nn.Module):
    """The same logits for any image."""

    def __init__(self, *logits):
        super().__init__()
        self.logits_D = nn.Parameter(torch.tensor(logits))

    def forward(self, images_NCHW):
        return self.logits_D.expand(len(images_NCHW), -1)


IMAGES = {name: torch.zeros(3, 1, 2, 2) for name in ("weak", "weak2")}
UNLABELLED = Batch(views=IMAGES, labels_N=None)


@pytest.mark.parametrize("temperature, expected", [(1.0, 0.02), (0.5, 2 * (9 / 13 - 0.5) ** 2)])
def test_the_student_is_pulled_towards_the_sharpened_teacher(temperature, expected):
    """Teacher (.6, .4), student (.5, .5). tau = 1: .1^2 + .1^2. tau = .5: .36 / .52 = 9/13, further from .5; the
    step raises the teacher's class. The teacher takes no gradient and every prediction counts as a pseudo-label."""
    networks = (
        nn.ModuleDict({"student": Constantly(0.0, 0.0)}),
        nn.ModuleDict({"teacher": Constantly(math.log(1.5), 0.0)}),
    )
    update = MeanTeacherUpdate(method=RSCFed(temperature=temperature, unlabelled_weight=3.0))
    loss, aux = update.loss(*networks, {"unlabelled": UNLABELLED}, torch.Generator())
    assert loss.item() == pytest.approx(3 * expected, rel=1e-5)
    assert aux["client/unlabelled_loss"].item() == pytest.approx(expected, rel=1e-5)
    assert aux["labels_N"].tolist() == [0, 0, 0] and aux["kept_N"].all()
    loss.backward()
    student, teacher = (dict(network.named_parameters()) for network in networks)
    gradient_D = student["student.logits_D"].grad
    assert gradient_D is not None and gradient_D[0] < 0 < gradient_D[1]
    assert teacher["teacher.logits_D"].grad is None


def test_both_losses_in_one_step():
    """Student (.5, .5), label 1: ln 2 for each image, + 3 x .02."""
    networks = (
        nn.ModuleDict({"student": Constantly(0.0, 0.0)}),
        nn.ModuleDict({"teacher": Constantly(math.log(1.5), 0.0)}),
    )
    batch = {
        "unlabelled": Batch(views=IMAGES, labels_N=None),
        "labelled": Batch(views=IMAGES, labels_N=torch.ones(3).long()),
    }
    update = MeanTeacherUpdate(method=RSCFed(temperature=1.0, unlabelled_weight=3.0))
    loss, _ = update.loss(*networks, batch, torch.Generator())
    assert loss.item() == pytest.approx(math.log(2) + 0.06, rel=1e-5)


@pytest.mark.parametrize(
    "ema_warm_up, steps, expected",
    [
        # Eq. 4 with alpha = .25 and students 4, 8: 1, then .25 x 8 + .75 x 1
        ("paper", 0, [1.0, 2.75]),
        # the student's share 1, then 1/2: 4, then (8 + 4) / 2
        ("released_code", 0, [4.0, 6.0]),
        # 1/3 is more than alpha, 1/4 is not less: 4/3, then 8/4 + 3/4 x 4/3
        ("released_code", 2, [4 / 3, 3.0]),
        # long after: alpha
        ("released_code", 1000, [1.0, 2.75]),
    ],
)
def test_the_teacher_after_two_steps(ema_warm_up, steps, expected):
    """The teacher starts at 0. A running statistic follows as weights do, a counter is the student's."""
    student, teacher = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    assert student.running_mean is not None and student.num_batches_tracked is not None
    assert teacher.running_mean is not None and teacher.num_batches_tracked is not None
    training = Training(
        trainable=nn.ModuleDict({"student": student}),
        frozen=nn.ModuleDict({"teacher": teacher}),
        private={"teacher_steps": steps},
        step=0,
    )
    teacher.weight.data.fill_(0.0)
    update = MeanTeacherUpdate(method=RSCFed(alpha=0.25, ema_warm_up=ema_warm_up))
    for value, after in zip((4.0, 8.0), expected, strict=True):
        student.weight.data.fill_(value)
        student.running_mean.fill_(value)
        student.num_batches_tracked.fill_(9)
        with torch.no_grad():
            update.after_step(training)
        assert teacher.weight.item() == teacher.running_mean.item() == pytest.approx(after)
        assert teacher.num_batches_tracked.item() == 9
    assert training.private["teacher_steps"] == steps + 2
