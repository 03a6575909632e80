"""FedMatch: who moves which weights, who helps whom and when, what crosses the network."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from benchmark.data.noise import gaussian_image
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.ledger import tree_bytes
from benchmark.federated.local import load
from benchmark.methods.averaging import mean
from benchmark.methods.fedmatch import ClientUpdate, FedMatch, Lambdas, applied, nearest, summed
from benchmark.methods.protocol import SERVER, Job, Key, Limit
from benchmark.optim.sgd import SGD
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal, module_of
from tests.methods.watch import Watch, trained

BASE = replace(tiny_experiment(), optimizer=SGD(lr=0.005, momentum=0.9, weight_decay=1e-3))
METHOD = FedMatch(batch_size=8, labelled_batch_size=4, server_batch_size=8, threshold=0.14, helper_interval=3)
EXACT: dict[str, Any] = {"psi_threshold": 0.0, "delta_threshold": 0.0}
WHOLE = 4 * 38_378  # bytes of the tiny network's weights


def experiment(setting="server", method=METHOD, **factors):
    data = replace(BASE.data, label_setting=setting)
    return replace(BASE, data=data, method=method, federation=replace(BASE.federation, **factors))


def watched_states(e, rounds):
    """The module after so many rounds, what passed by, and the server's tree after each round, the first one first."""
    module = module_of(e)
    watch, states = Watch(module), [module.state.server]
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
        states.append(module.state.server)
    return module, watch, states


# Who moves which weights.


@dataclass(frozen=True, kw_only=True)
class Recorded(ClientUpdate):
    def after_step(self, training):
        for name, network in training.trainable.items():
            training.private[f"{name} {training.step}"] = {n: v.clone() for n, v in network.state_dict().items()}

    def finish(self, local):
        return {"steps": {**local.private, **{f"{n} 0": w for n, w in local.for_finish["start"].items()}}}


def test_sigma_and_psi_are_stepped_in_turn():
    """T = 3 with momentum and weight decay: the set that a loss does not reach does not move by a bit."""
    environment = prepare(experiment("every_client"))
    weights = weights_of(environment.network())
    streams = METHOD._streams(ClientUpdate(method=METHOD))
    job = Job(
        key=Key(client=1),
        update=Recorded(method=METHOD),
        receives={"sigma": weights, "psi": {name: 0.2 * value for name, value in weights.items()}},
        data=streams,
        limit=Limit(steps=3),
    )
    (outcome,) = ReferenceEngine(environment).fit([job], 1, {})
    steps = outcome.sends["steps"]
    assert outcome.steps == 6
    for step in range(6):
        moved, still = ("sigma", "psi") if step % 2 == 0 else ("psi", "sigma")
        assert equal(steps[f"{still} {step}"], steps[f"{still} {step + 1}"])
        assert difference(steps[f"{moved} {step}"], steps[f"{moved} {step + 1}"]) > 0


def test_labels_at_the_server_train_sigma_there_alone():
    """The server sends sigma and leaves psi; clients send psi, and keep the sigma they received."""
    module, watch, states = watched_states(experiment(method=replace(METHOD, **EXACT)), 3)
    for round_number in (1, 2, 3):
        before, after = states[round_number - 1], states[round_number]
        (server,) = [(j, o) for j, o in watch.seen[round_number] if j.key == Key(client=SERVER)]
        assert server[1].sends.keys() == {"sigma"} and equal(server[1].sends["sigma"], after["sigma"])
        assert equal(server[0].receives["psi"], before["psi"])
        assert difference(before["sigma"], after["sigma"]) > 0 and difference(before["psi"], after["psi"]) > 0
        assert list(server[0].data) == ["labelled"]
        for job, outcome in watch.clients(round_number):
            assert outcome.sends.keys() == {"psi"} and list(job.data) == ["unlabelled"]
            assert equal(after["known"][str(job.key.client)]["sigma"], after["sigma"])
    assert equal(module.models()["theta"], summed(states[3]["sigma"], states[3]["psi"]))


def test_labels_at_clients_average_both_and_the_server_trains_nothing():
    _, watch, states = watched_states(experiment("every_client", replace(METHOD, **EXACT)), 2)
    for round_number in (1, 2):
        known = [states[round_number]["known"][str(job.key.client)] for job, _ in watch.clients(round_number)]
        for name in ("sigma", "psi"):
            assert equal(states[round_number][name], mean([sets[name] for sets in known]))
        assert not [job for job, _ in watch.seen[round_number] if job.key.client == SERVER and job.data]


OFF = replace(METHOD, lambdas=Lambdas(s=1.0, i=0.0, a=0.0, l2=0.0, l1=0.0), psi_factor=0.0, helpers=0, **EXACT)


@pytest.mark.parametrize("setting", ["every_client", "server"])
def test_without_psi_and_helpers_it_is_training_on_labels_alone(setting):
    """FedAvg with equal weights on the clients' labels, or the server's own steps: two rounds, written out again."""
    e = experiment(setting, OFF)
    environment = prepare(e)
    module, _, states = watched_states(e, 2)
    weights = weights_of(environment.network())
    for round_number in (1, 2):
        holders = module._world(round_number).cohort() if setting == "every_client" else [SERVER]
        size = 4 if setting == "every_client" else 8
        students = trained(environment, dict.fromkeys(holders, weights), round_number, view="plain", batch_size=size)
        weights = mean([students[holder] for holder in holders])
        assert difference(states[round_number]["sigma"], weights) < 1e-6
        assert all(not value.any() for value in states[round_number]["psi"].values())
    assert difference(states[0]["sigma"], weights) > 1e-3


# Helpers.


def test_the_nearest_by_hand():
    """From (0, 0): 2 at distance 1, 10 at 1, 3 at 2, 4 at 5. Equal distances by number, and never oneself."""
    places = {"0": (0.0, 0.0), "10": (0.0, 1.0), "2": (1.0, 0.0), "3": (0.0, 2.0), "4": (3.0, 4.0)}
    outputs = {name: torch.tensor(place) for name, place in places.items()}
    assert nearest("0", outputs, 2) == ["2", "10"] and nearest("0", outputs, 3) == ["2", "10", "3"]
    assert nearest("4", outputs, 9) == ["3", "10", "2", "0"]
    assert nearest("0", {"0": outputs["0"]}, 2) == []


@pytest.mark.parametrize("setting", ["server", "every_client"])
def test_helpers_are_the_nearest_seen_clients_every_third_round(setting):
    """C = 3 of K = 6: each client seen before has the psi of the two whose last model's softmax on one and the same
    image of noise is nearest to its own, computed here once more; new ones and other rounds have none."""
    e = experiment(setting, METHOD, K=6, C=3, rounds=6)
    environment = prepare(e)
    _, watch, states = watched_states(e, 6)
    network = environment.network().eval()
    data = environment.data
    noise_1CHW = gaussian_image(data.image_shape, data.mean, data.std, e.seed)
    last: dict[int, np.ndarray] = {}
    helped = 0
    for round_number in range(1, 7):
        known = states[round_number - 1]["known"]
        for job, _ in watch.clients(round_number):
            client, has = job.key.client, job.receives.get("helpers", {})
            wanted = by_distance(client, last)[:2] if round_number % 3 == 0 and client in last else []
            assert len(has) == len(wanted)
            for index, helper in enumerate(wanted):
                psi = received(job, known[str(client)])["helpers"][index]
                assert difference(psi, known[str(helper)]["psi"]) <= METHOD.delta_threshold * 1.01
                helped += 1
        for job, _ in watch.clients(round_number):
            sets = states[round_number]["known"][str(job.key.client)]
            load(network, summed(sets["sigma"], sets["psi"]))
            with torch.no_grad():
                last[job.key.client] = softmax(network(noise_1CHW)[0].double().numpy())
    assert helped >= 4


def by_distance(client, outputs):
    """The other clients, nearest first."""
    return sorted(outputs.keys() - {client}, key=lambda other: np.linalg.norm(outputs[other] - outputs[client]))


def received(job, known):
    """What the client makes of what it is sent."""
    psi = applied(known["psi"], job.receives["psi"])
    return {"psi": psi, "helpers": [applied(psi, tree) for tree in job.receives.get("helpers", {}).values()]}


# What crosses the network.


@pytest.mark.parametrize("setting", ["server", "every_client"])
def test_server_and_client_know_the_same(setting):
    """What the server made of a client's changes is what the client keeps, bit by bit."""
    module, _, states = watched_states(experiment(setting, C=3), 4)
    assert len(states[4]["known"]) == 4
    for client, sets in states[4]["known"].items():
        assert all(equal(sets[name], module.state.clients[client][name]) for name in ("sigma", "psi"))


@pytest.mark.parametrize("setting", ["server", "every_client"])
def test_sparse_transfer_is_counted_and_below_dense(setting):
    """K = C = 4. Round 1 goes down whole. Later bytes fall as the thresholds rise, and lie below all entries' bytes;
    what goes up has an entry for each that moved by more than delta, as counted from the weights."""
    sets_up = 1 if setting == "server" else 2
    seen = []
    for delta in (0.0, 1e-4, 1e-2):
        module, watch, states = watched_states(
            experiment(setting, replace(METHOD, helpers=0, delta_threshold=delta)), 2
        )
        first = sum(tree_bytes(job.receives) for job, _ in watch.clients(1))
        assert first == 4 * 2 * WHOLE
        for job, outcome in watch.clients(2):
            kept = states[1]["known"][str(job.key.client)]
            entries = sum(
                int(((states[2]["known"][str(job.key.client)]["psi"][n] - received(job, kept)["psi"][n]) != 0).sum())
                for n in kept["psi"]
            )
            sent = tree_bytes({"psi": outcome.sends["psi"]})
            assert sent <= min(WHOLE, 8 * entries) and sent >= 4 * entries
        seen.append((module.metrics["comm/bytes_up"], module.metrics["comm/bytes_down"]))
        assert seen[-1][0] <= 4 * sets_up * WHOLE and seen[-1][1] <= 4 * 2 * WHOLE
    assert seen[0][0] > seen[1][0] > seen[2][0] and seen[0][1] > seen[1][1] > seen[2][1]


@pytest.mark.parametrize("setting", ["server", "every_client"])
def test_without_thresholds_sparse_transfer_changes_no_bit(setting):
    """delta = 0: the server's exact weights arrive, as the released code trains from them, for no more bytes."""
    (a, _, sparse), (b, _, dense) = (
        watched_states(experiment(setting, replace(METHOD, down=down, **EXACT), C=3), 4)
        for down in ("paper", "released_code")
    )
    assert equal(sparse[4]["sigma"], dense[4]["sigma"]) and equal(sparse[4]["psi"], dense[4]["psi"])
    assert a.metrics["comm/bytes_down"] <= b.metrics["comm/bytes_down"]


def test_a_warm_start_trains_sigma_alone():
    for setting in ("server", "every_client"):
        _, watch, states = watched_states(experiment(setting, replace(METHOD, warm_start_rounds=1)), 2)
        assert equal(states[0]["psi"], states[1]["psi"]) and difference(states[0]["sigma"], states[1]["sigma"]) > 0
        assert difference(states[1]["psi"], states[2]["psi"]) > 0
        assert not [job for job, _ in watch.seen[1] if "unlabelled" in job.data]
