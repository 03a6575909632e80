"""SSFL with labels at the clients: both losses by NumPy, who trains, and groups without a server.

Legend: N images, D classes.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.methods.averaging import Grouping, mean
from benchmark.methods.objectives import (
    CRL,
    ConsistencyUpdate,
    SelfTraining,
    SelfTrainingUpdate,
    TwoViewSelfTrainingUpdate,
)
from benchmark.methods.protocol import SERVER, Batch
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal
from tests.methods.watch import tiny_with, watched

BASE = tiny_experiment()


def experiment(setting="every_client", N_s=20, **changes):
    return tiny_with(replace(BASE.method, **changes), setting, N_s=N_s)


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


@pytest.mark.parametrize("setting", ["every_client", "share"])
@pytest.mark.parametrize("client_labels", ["paper", "released_code"])
def test_the_server_only_averages(setting, client_labels):
    """Eq. 7 without w_s: two groups of two clients; w_avg is the mean of their means, and so of the four."""
    module, watch = watched(experiment(setting, averaging=Grouping(S=2), client_labels=client_labels))
    assert [job.key.client for job in watch.jobs()] == module._world(1).cohort()
    students = [outcome.sends["student"] for _, outcome in watch.seen[1]]
    groups = [mean(students[:2]), mean(students[2:])]
    assert equal(module.state.server["groups"]["0"], groups[0]) and equal(module.state.server["groups"]["1"], groups[1])
    assert difference(module.models()["average"], mean(students)) < 1e-6
    for job, outcome in watch.seen[1]:
        assert set(job.data) == {"labelled", "unlabelled"} and outcome.metrics["client/labelled_loss"] > 0


def test_labels_at_the_server_beside_those_at_clients_take_no_part():
    """N_s images go to nobody: with N_s = 0 there are none, and both are settings that run."""
    for N_s in (0, 20):
        _, watch = watched(experiment(N_s=N_s))
        assert SERVER not in [job.key.client for job in watch.jobs()]


def test_batch_norm_statistics_are_the_clients_mean():
    module, watch = watched(replace(experiment(), model=replace(BASE.model, norm="bn")))
    students = [outcome.sends["student"] for _, outcome in watch.seen[1]]
    expected = torch.stack([student["norm1.running_mean"] for student in students]).double().mean(dim=0)
    torch.testing.assert_close(module.models()["average"]["norm1.running_mean"].double(), expected)


def test_a_warm_start_is_on_the_clients_labels():
    module, watch = watched(experiment(warm_start_rounds=1))
    assert [tuple(job.data) for job in watch.jobs()] == [("labelled",)] * 4
    module.training_step(2, 0)
    assert set(watch.jobs(2)[-1].data) == {"labelled", "unlabelled"}


def test_where_all_labels_are_visible_the_server_still_trains():
    """ "everywhere" with CRL: clients hold all labels and use none, as before labels at clients existed."""
    _, watch = watched(experiment("everywhere"))
    server, *clients = watch.jobs()
    assert server.key.client == SERVER and all("labelled" not in job.data for job in clients)
