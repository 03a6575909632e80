"""SSFL's limit cases: what has to be the same, and what must not be."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.errors import ConfigError
from benchmark.methods.protocol import SERVER, Batch
from benchmark.methods.shared import is_statistic, mean
from benchmark.methods.ssfl import (
    CRL,
    ConsistencyUpdate,
    FedAvg,
    Grouping,
    SelfTraining,
    SelfTrainingUpdate,
    TwoViewSelfTrainingUpdate,
    cut,
)
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal, module_of, weights_after
from tests.methods.watch import tiny_with, watched


def with_method(experiment, **changes):
    return replace(experiment, method=replace(experiment.method, **changes))


def test_one_group_is_fedavg(tiny):
    """Eq. 7 with S = 1 is Eq. 8, bit by bit."""
    assert equal(weights_after(tiny), weights_after(with_method(tiny, averaging=Grouping(S=1))))


def test_one_round_of_grouping_is_the_control(tiny):
    """All start from the same weights in round 1; equal groups of 2 of 4 then average to FedAvg with weight 1/3."""
    grouping = with_method(tiny, averaging=Grouping(S=2))
    control = with_method(tiny, averaging=FedAvg(server_weight=1 / 3))
    assert difference(weights_after(grouping, rounds=1), weights_after(control, rounds=1)) < 1e-6
    assert difference(weights_after(grouping, rounds=2), weights_after(control, rounds=2)) > 1e-6


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


def test_half_of_the_samples_are_kept_in_these_tests(tiny):
    """The comparisons above are not made where the test is empty."""
    module = module_of(tiny)
    module.training_step(1, 0)
    assert 0.3 <= module.metrics["pseudo/kept"] <= 0.7


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


def test_a_replica_for_each_group_trains_s_servers(tiny):
    one = module_of(with_method(tiny, averaging=Grouping(S=2)))
    replicas = module_of(with_method(tiny, averaging=Grouping(S=2), server_models="released_code"))
    for module in (one, replicas):
        module.training_step(1, 0)
    assert one.metrics["local_steps"] == 2 * (4 + 1)
    assert replicas.metrics["local_steps"] == 2 * (4 + 2)
    assert difference(one.state.server["average"], replicas.state.server["average"]) > 0


def test_momentum_stays_with_the_slot(tiny):
    kept = module_of(with_method(tiny, momentum="released_code"))
    kept.training_step(1, 0)
    assert set(kept.state.clients) == {"server-0", "slot-0", "slot-1", "slot-2", "slot-3"}
    assert equal(weights_after(tiny, rounds=1), kept.models()["average"])
    kept.training_step(2, 0)
    assert difference(weights_after(tiny, rounds=2), kept.models()["average"]) > 0


def test_batch_statistics_stay_at_the_server_or_are_averaged(tiny):
    norm = replace(tiny, model=replace(tiny.model, norm="bn"))
    kept, averaged = weights_after(norm, rounds=1), weights_after(with_method(norm, bn_statistics="averaged"), rounds=1)
    statistics = {name for name in kept if is_statistic(name)}  # two forwards count twice as many batches at clients
    assert statistics and all((kept[name] != averaged[name]).any() for name in statistics)
    assert equal(
        {name: kept[name] for name in kept if name not in statistics},
        {name: averaged[name] for name in averaged if name not in statistics},
    )


def test_a_slot_goes_on_from_its_own_batch_statistics(tiny):
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

    norm = with_method(replace(tiny, model=replace(tiny.model, norm="bn")), objective=SelfTraining())
    servers, slots = module_of(norm), module_of(with_method(norm, bn_statistics="slot"))
    for module in (servers, slots):
        module.training_step(1, 0)
    assert not servers.state.clients and set(slots.state.clients) == {"slot-0", "slot-1", "slot-2", "slot-3"}
    assert equal(servers.models()["average"], slots.models()["average"])  # the server's are evaluated by both
    with pytest.raises(ConfigError, match="'slot' moves nothing but self-training"):
        module_of(with_method(tiny, bn_statistics="slot"))


def test_one_forward_equals_two_without_batch_statistics(tiny):
    """Group normalisation sees one image at a time: joining the views changes rounding only."""
    joined = with_method(tiny, objective=CRL(threshold=0.14, views="one_forward"))
    assert difference(weights_after(tiny, rounds=1), weights_after(joined, rounds=1)) < 1e-5


def test_warm_start_moves_no_client(tiny):
    module = module_of(with_method(tiny, warm_start_rounds=1))
    module.training_step(1, 0)
    assert module.metrics["comm/bytes_up"] == 0 and module.metrics["local_steps"] == 2
    module.training_step(2, 0)
    assert module.metrics["comm/bytes_up"] > 0


def test_cohorts_are_drawn_evenly():
    """C = 1 of K = 4 over 400 rounds: each client about 100 times (binomial, standard deviation 8.7)."""
    experiment = tiny_experiment(federation=replace(tiny_experiment().federation, C=1, rounds=400))
    module = module_of(experiment)
    drawn = np.bincount([module._world(t).cohort()[0] for t in range(1, 401)], minlength=4)
    assert drawn.sum() == 400 and abs(drawn - 100).max() < 4 * 8.7


# SSFL with labels at the clients: both losses by NumPy, who trains, and groups without a server.
#
# Legend: N images, D classes.


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


def test_local_epochs_count_for_everybody(tiny):
    """Two passes over a holder's images are twice the steps of one, and T does not count."""

    def steps(**federation):
        module = module_of(replace(tiny, federation=replace(tiny.federation, **federation)))
        module.training_step(1, 0)
        return module.metrics["local_steps"]

    assert steps(epochs=2, T=1) == steps(epochs=2, T=7) == 2 * steps(epochs=1) > 0
