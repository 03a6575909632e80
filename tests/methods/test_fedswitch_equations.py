"""FedSwitch's equations on numbers: the EMA (Eq. 1), divergences (Eq. 2), the rule (Eq. 3) and FedProx's pull."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from torch import nn

from benchmark.methods.averaging import ema_
from benchmark.methods.fedswitch import FedSwitch, histogram, kl_from_uniform, mean_softmax
from benchmark.methods.proximal_fixmatch import pull
from tests.federated.helpers import equal


def test_divergence_of_a_uniform_and_of_a_one_class_prediction():
    """ln 4 + sum p ln p: 0 for four quarters, ln 4 for one class, and for (1/2, 1/4, 1/4, 0)
    2 ln 2 - ln 2 / 2 - 2 (2 ln 2) / 4 = ln 2 / 2."""
    shares = torch.tensor([[0.25] * 4, [0, 1, 0, 0], [0.5, 0.25, 0.25, 0]], dtype=torch.float64)
    found = [float(kl_from_uniform(share_D)) for share_D in shares]
    assert found == pytest.approx([0.0, math.log(4), math.log(2) / 2], abs=1e-12)


@given(st.lists(st.lists(st.floats(-30, 30), min_size=5, max_size=5), min_size=1, max_size=7))
def test_divergence_against_scipy(logits):
    logits_ND = torch.tensor(logits)
    for share in (mean_softmax, histogram):
        share_D = share(logits_ND)
        assert float(share_D.sum()) == pytest.approx(1.0) and float(kl_from_uniform(share_D)) >= -1e-12
        assert float(kl_from_uniform(share_D)) == pytest.approx(entropy(share_D.numpy(), np.full(5, 0.2)), abs=1e-9)


def test_two_ways_to_read_distribution_of_predictions():
    """Logits (ln 3, 0), (ln 3, 0), (0, ln 3), (0, 0): class 0 has 3/4, 3/4, 1/4 and 1/2, on average 9/16. Labels are 0,
    0, 1 and, of equals, 0: three quarters."""
    logits_ND = torch.tensor([[3.0, 1], [3, 1], [1, 3], [1, 1]]).log()
    assert mean_softmax(logits_ND).tolist() == pytest.approx([9 / 16, 7 / 16])
    assert histogram(logits_ND).tolist() == [0.75, 0.25]


def test_local_teacher_by_hand():
    """T = 4 follows S = 2, then S = 0, with alpha = 3/4: 3.5, then 2.625. Counters are the student's, ratio 0 gives S
    and ratio 1 leaves T."""
    teacher, student = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for network, value, batches in ((teacher, 4.0, 3), (student, 2.0, 7)):
        network.load_state_dict(
            {
                "weight": torch.tensor([value]),
                "bias": torch.zeros(1),
                "running_mean": torch.tensor([value]),
                "running_var": torch.ones(1),
                "num_batches_tracked": torch.tensor(batches),
            }
        )
    ema_(teacher, student, 0.75)
    after = teacher.state_dict()
    assert after["weight"].item() == after["running_mean"].item() == 3.5 and after["num_batches_tracked"].item() == 7
    nn.init.zeros_(student.weight)
    ema_(teacher, student, 1.0)
    assert teacher.weight.item() == 3.5
    ema_(teacher, student, 0.75)
    assert teacher.weight.item() == 2.625
    ema_(teacher, student, 0.0)
    assert equal(teacher.state_dict(), student.state_dict())


@pytest.mark.parametrize(
    ("beta", "kl_teacher", "kl_student", "sent"),
    [
        (0.0, 0.3, 0.5, True),  # .3 < .5
        (1.0, 0.3, 0.5, False),  # .7 > .5
        (0.5, 0.75, 0.25, False),  # .25 = .25: a tie is "otherwise" in Eq. 3
        (0.5, 0.7, 0.2, True),  # .2 < .3
    ],
)
def test_eq_3_by_hand(beta, kl_teacher, kl_student, sent):
    assert FedSwitch(beta=beta).sends_teacher(kl_teacher, kl_student) is sent


@given(*[st.floats(0, 3)] * 3)
def test_the_algorithms_do_the_opposite_of_eq_3(beta, kl_teacher, kl_student):
    equation, algorithm = FedSwitch(beta=beta), FedSwitch(beta=beta, rule="algorithm")
    assert equation.sends_teacher(kl_teacher, kl_student) != algorithm.sends_teacher(kl_teacher, kl_student)


def test_the_first_round_has_nothing_to_go_by():
    for rule in ("equation", "algorithm"):
        assert FedSwitch(rule=rule).sends_teacher(None, None)
        assert not FedSwitch(rule=rule, first_round="student").sends_teacher(None, None)


@pytest.mark.parametrize(("proximal", "factor"), [("half", 1.0), ("full", 2.0)])
def test_the_pull_by_hand(proximal, factor):
    """w = (3, -1), received (1, 0), mu = 1/2: w - a = (2, -1), squares 5; mu/2 ||.||^2 = 5/4 with gradient mu (w - a) =
    (1, -1/2); without the half both are twice that. The received weights get no gradient."""
    student, anchor = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    for network, values in ((student, [[3.0, -1.0]]), (anchor, [[1.0, 0.0]])):
        network.weight.data.copy_(torch.tensor(values))
    term = pull(student, anchor, 0.5, proximal)
    term.backward()
    assert float(term.detach()) == factor * 1.25
    assert student.weight.grad is not None and student.weight.grad.tolist() == [[factor * 1.0, factor * -0.5]]
    assert anchor.weight.grad is None


def test_running_statistics_are_not_pulled():
    """Two batch norms that differ in their statistics alone: the term is 0."""
    student, anchor = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert student.running_mean is not None
    student.running_mean.fill_(5.0)
    assert float(pull(student, anchor, 1.0, "full").detach()) == 0.0
