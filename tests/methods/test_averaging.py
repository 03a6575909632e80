"""Averaging by hand: SSFL Eqs. 7 and 8.

Server w_s = (1, 2); clients w_1 = (4, 5), w_2 = (7, 8), w_3 = (10, 5), w_4 = (1, 1).

FedAvg, Eq. 8: (1 + 4 + 7 + 10 + 1) / 5 = 4.6, (2 + 5 + 8 + 5 + 1) / 5 = 4.2.
Groups {1, 2}, {3, 4}, Eq. 7: ((1+4+7)/3, (2+5+8)/3) = (4, 5); ((1+10+1)/3, (2+5+1)/3) = (4, 8/3);
the mean of both: (4, 23/6).
Unequal groups {1, 2, 3}, {4}: ((1+4+7+10)/4, (2+5+8+5)/4) = (5.5, 5); ((1+1)/2, (2+1)/2) = (1, 1.5); mean (3.25, 3.25).
Control with server weight 1/3 and the clients' mean (5.5, 4.75): (1/3 + 11/3, 2/3 + 9.5/3) = (4, 23/6): the same as
grouping, since the groups are equal in size; grouping of equal groups is an average with another server weight.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmark.errors import ConfigError
from benchmark.methods.shared import RunningMean, ema_, mean
from benchmark.methods.ssfl import Grouping, with_server
from tests.federated.helpers import equal

SERVER = {"w": torch.tensor([1.0, 2.0])}
CLIENTS = [{"w": torch.tensor(pair)} for pair in ([4.0, 5.0], [7.0, 8.0], [10.0, 5.0], [1.0, 1.0])]


def group_mean(members, server_weight=None):
    clients = RunningMean()
    for member in members:
        clients.add(member)
    return with_server(clients, SERVER, server_weight)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [([CLIENTS], [4.6, 4.2]), ([CLIENTS[:2], CLIENTS[2:]], [4.0, 23 / 6]), ([CLIENTS[:3], CLIENTS[3:]], [3.25, 3.25])],
    ids=["FedAvg", "equal groups", "unequal groups count equally"],
)
def test_groups_by_hand(groups, expected):
    torch.testing.assert_close(mean([group_mean(members) for members in groups])["w"], torch.tensor(expected))


def test_sums_are_float64():
    """2^24 + 1 is not a float32: a float32 sum of 2^24, 1 and 1 loses both ones; the mean of three is 5592406."""
    parts = [{"w": torch.tensor([float(2**24)])}, {"w": torch.tensor([1.0])}, {"w": torch.tensor([1.0])}]
    assert mean(parts)["w"].item() == 5592406.0


def test_counters_keep_their_type():
    counted = mean([{"n": torch.tensor(3)}, {"n": torch.tensor(6)}])
    assert counted["n"].dtype == torch.int64 and counted["n"].item() == 4


@given(st.integers(1, 60), st.integers(1, 60))
def test_paper_groups_hold_everyone_and_differ_by_at_most_one(C, S):
    if S > C:
        with pytest.raises(ConfigError, match=f"choose S from 1 to {C}"):
            Grouping(S=S).group_sizes(C)
        return
    sizes = Grouping(S=S).group_sizes(C)
    assert sum(sizes) == C and len(sizes) == S and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("C", "S", "sizes"), [(10, 2, (5, 5)), (20, 2, (10, 10)), (30, 3, (10, 10, 10)), (47, 5, (10, 10, 10, 10, 7))]
)
def test_released_groups(C, S, sizes):
    """utils_v2.py:1498-1567 of the released code."""
    assert Grouping(S=S, sizes="released_code").group_sizes(C) == sizes


def test_released_groups_that_leave_one_empty_are_refused():
    with pytest.raises(ConfigError, match="leaves no client"):
        Grouping(S=5, sizes="released_code").group_sizes(6)  # 2, 2, 2, 0, -2


@pytest.mark.parametrize("lerp", [False, True])
def test_ema_in_place_by_hand(lerp):
    """T = 4 follows S = 2, then S = 0, with decay 3/4: 3.5, then 2.625; running statistics do so, counters are the
    student's. decay 1 leaves T, decay 0 gives S bit by bit."""
    teacher, student = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for network, value, batches in ((teacher, 4.0, 3), (student, 2.0, 7)):
        for name, tensor in network.state_dict().items():
            tensor.fill_(batches if name == "num_batches_tracked" else value)
    ema_(teacher, student, 0.75, lerp=lerp)
    after = teacher.state_dict()
    assert after["weight"].item() == after["running_mean"].item() == 3.5 and after["num_batches_tracked"].item() == 7
    nn.init.zeros_(student.weight)
    ema_(teacher, student, 1.0, lerp=lerp)
    assert teacher.weight.item() == 3.5
    ema_(teacher, student, 0.75, lerp=lerp)
    assert teacher.weight.item() == 2.625
    ema_(teacher, student, 0.0, lerp=lerp)
    assert equal(teacher.state_dict(), student.state_dict())
