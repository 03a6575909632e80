"""SSFL: losses in NumPy, what clients start from, and batch-norm statistics."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.methods.protocol import SERVER, Batch
from benchmark.methods.shared import is_statistic
from benchmark.methods.ssfl import (
    CRL,
    ConsistencyUpdate,
    Grouping,
    SelfTraining,
    SelfTrainingUpdate,
    TwoViewSelfTrainingUpdate,
    cut,
)
from tests.conftest import tiny_experiment
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


def test_cohorts_are_drawn_evenly():
    """C = 1 of K = 4 over 400 rounds: each client about 100 times (binomial, standard deviation 8.7)."""
    experiment = tiny_experiment(federation=replace(tiny_experiment().federation, C=1, rounds=400))
    module = module_of(experiment)
    drawn = np.bincount([module._world(t).cohort()[0] for t in range(1, 401)], minlength=4)
    assert drawn.sum() == 400 and abs(drawn - 100).max() < 4 * 8.7


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
