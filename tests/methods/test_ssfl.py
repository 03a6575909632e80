"""SSFL: losses in NumPy, what clients start from, batch-norm statistics, and averages by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.errors import ConfigError
from benchmark.methods.protocol import SERVER, Batch
from benchmark.methods.shared import RunningMean, ema_, is_statistic, mean
from benchmark.methods.ssfl import (
    CRL,
    ConsistencyUpdate,
    Grouping,
    SelfTraining,
    SelfTrainingUpdate,
    TwoViewSelfTrainingUpdate,
    cut,
    with_server,
)
from tests.federated.helpers import difference, equal, module_of, weights_after
from tests.methods.watch import watched


def with_method(experiment, **changes):
    return replace(experiment, method=replace(experiment.method, **changes))


def test_nothing_confident_leaves_clients_where_they_are(tiny):
    """tau = 1 keeps nothing: clients move by weight decay alone, and without it not at all.

    With C = 4 the average is then (w_s + 4 w_0) / 5, so that the round moves by a fifth of the server's change.
    """
    idle = replace(with_method(tiny, objective=CRL(threshold=1.0)), optimizer=replace(tiny.optimizer, weight_decay=0.0))
    start = module_of(idle).state.server["average"]
    module, watch = watched(idle)
    (server_after,) = [o.sends["student"] for job, o in watch.seen[1] if job.key.client == SERVER]
    expected = {name: (server_after[name] + 4 * start[name]) / 5 for name in start}
    assert difference(module.state.server["average"], expected) < 1e-6
    assert module.metrics["pseudo/kept"] == 0.0 and "pseudo/accuracy" not in module.metrics


@pytest.mark.parametrize("start", ["released_code", "paper", "average"])
def test_what_clients_start_from(tiny, start):
    """After one round: the mean of the slot's group, of the group the client was in, or the average."""
    module, watch = watched(with_method(tiny, averaging=Grouping(S=2), client_start=start))
    state = module.state
    module.training_step(2, 0)
    received = {job.key.client: job.receives["student"] for job, _ in watch.clients(2)}
    groups = cut(module._world(2).cohort(), (2, 2))
    for group, members in enumerate(groups):
        for client in members:
            expected = {
                "released_code": state.server["groups"][str(group)],
                "paper": state.server["groups"][str(state.server["last_group"][str(client)])],
                "average": state.server["average"],
            }[start]
            assert equal(received[client], expected)


def test_batch_statistics_stay_at_the_server_or_are_averaged(tiny):
    norm = replace(tiny, model=replace(tiny.model, norm="bn"))
    kept, averaged = weights_after(norm, rounds=1), weights_after(with_method(norm, bn_statistics="averaged"), rounds=1)
    statistics = {name for name in kept if is_statistic(name)}  # two forwards count twice as many batches at clients
    assert statistics and all((kept[name] != averaged[name]).any() for name in statistics)
    assert equal(
        {name: kept[name] for name in kept if name not in statistics},
        {name: averaged[name] for name in averaged if name not in statistics},
    )


def test_a_slot_goes_on_from_its_own_batch_statistics():
    """By hand: weights are what was received, statistics what the slot left, if it left any."""
    update = SelfTrainingUpdate(keeps_statistics=True)
    received = {"conv.weight": torch.ones(2), "norm.running_mean": torch.zeros(2)}
    reader: Any = None  # nothing is read
    local = update.start({"student": received}, None, reader)
    assert local is not None
    local.trainable["student"] = {"conv.weight": torch.full((2,), 3.0), "norm.running_mean": torch.full((2,), 5.0)}
    assert equal(update.finish(local)["student"], local.trainable["student"])
    assert local.private is not None and set(local.private) == {"statistics"}
    again = update.start({"student": received}, local.private, reader)
    assert again is not None
    expected = {"conv.weight": torch.ones(2), "norm.running_mean": torch.full((2,), 5.0)}
    assert equal(again.trainable["student"], expected)


# The losses in NumPy, with labels at the clients. Legend: N images, D classes.


RNG = np.random.default_rng(7)
W_DC, WEAK, STRONG, LABELLED = (RNG.normal(size=size) for size in ((4, 3), (6, 3), (6, 3), (5, 3)))
LABELS = np.array([0, 3, 1, 1, 2])


@pytest.mark.parametrize(
    ("update", "learns", "taught_by"),
    [
        # Eq. 4: the strong view from the weak one's argmax. Eq. 5: the weak view from its own.
        (ConsistencyUpdate(objective=CRL(threshold=0.6)), [STRONG], [WEAK]),
        (SelfTrainingUpdate(objective=SelfTraining(threshold=0.6)), [WEAK], [WEAK]),
        # As released: each view from its own; a mean over both halves.
        (TwoViewSelfTrainingUpdate(objective=CRL(threshold=0.6)), [WEAK, STRONG], [WEAK, STRONG]),
    ],
)
def test_the_losses_by_numpy(update, learns, taught_by):
    """Cross-entropy of the labels, plus the mean over all views that learn of those at least tau sure."""
    layer = nn.Linear(3, 4, bias=False).double()
    layer.weight.data = torch.tensor(W_DC)
    batch = {
        "labelled": Batch(views={"weak": torch.tensor(LABELLED)}, labels_N=torch.tensor(LABELS)),
        "unlabelled": Batch(views={"weak": torch.tensor(WEAK), "strong": torch.tensor(STRONG)}, labels_N=None),
    }
    loss, aux = update.loss(nn.ModuleDict({"student": layer}), nn.ModuleDict(), batch, torch.Generator())
    on_labels = -log_softmax(LABELLED @ W_DC.T, axis=1)[np.arange(5), LABELS].mean()
    terms = []
    for view, teacher in zip(learns, taught_by, strict=True):
        p_ND = softmax(teacher @ W_DC.T, axis=1)
        kept_N = p_ND.max(axis=1) >= 0.6
        terms.append(-log_softmax(view @ W_DC.T, axis=1)[np.arange(6), p_ND.argmax(axis=1)] * kept_N)
        assert 0 < kept_N.sum() < 6
    assert loss.item() == pytest.approx(on_labels + np.concatenate(terms).mean())
    assert aux["client/labelled_loss"].item() == pytest.approx(on_labels)
    assert aux["labels_N"].tolist() == (WEAK @ W_DC.T).argmax(axis=1).tolist() and len(aux["kept_N"]) == 6


# Averaging by hand (Eqs. 7 and 8), and shared means.


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4], [4.6, 4.2]),  # FedAvg, Eq. 8: (1 + 4 + 7 + 10 + 1) / 5, (2 + 5 + 8 + 5 + 1) / 5
        ([2, 2], [4.0, 23 / 6]),  # Eq. 7: ((1+4+7)/3, (2+5+8)/3) = (4, 5); ((1+10+1)/3, (2+5+1)/3) = (4, 8/3)
        ([3, 1], [3.25, 3.25]),  # ((1+4+7+10)/4, (2+5+8+5)/4) = (5.5, 5); ((1+1)/2, (2+1)/2) = (1, 1.5)
    ],
)
def test_groups_by_hand(sizes, expected):
    """Groups count equally, whatever their size."""
    server, clients = {"w": torch.tensor([1.0, 2.0])}, torch.tensor([[4.0, 5.0], [7.0, 8.0], [10.0, 5.0], [1.0, 1.0]])
    means = []
    for members in cut(range(4), sizes):
        group = RunningMean()
        for member in members:
            group.add({"w": clients[member]})
        means.append(with_server(group, server, None))
    torch.testing.assert_close(mean(means)["w"], torch.tensor(expected))


def test_sums_are_float64_and_counters_keep_their_type():
    """2^24 + 1 is not a float32: a float32 sum of 2^24, 1 and 1 loses both ones; the mean of three is 5592406."""
    average = mean([{"w": torch.tensor([w]), "n": torch.tensor(n)} for w, n in ((2.0**24, 3), (1.0, 6), (1.0, 4))])
    assert average["w"].item() == 5592406.0
    assert average["n"].dtype == torch.int64 and average["n"].item() == 4


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
    for decay, weight in ((1.0, 3.5), (0.75, 2.625), (0.0, 0.0)):
        ema_(teacher, student, decay, lerp=lerp)
        assert teacher.weight.item() == weight
    assert equal(teacher.state_dict(), student.state_dict())
