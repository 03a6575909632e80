"""Supervised FL: FedAvg computed again, and which clients train on which labels."""

from functools import reduce
from operator import add

import pytest

from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.supervised_fl import SupervisedFL
from tests.federated.helpers import equal, module_of
from tests.methods.watch import tiny_with, trained, watched

SETTINGS = ("everywhere", "every_client", "some_clients", "share", "one_more_client")


def experiment(setting, method=None, **factors):
    return tiny_with(SupervisedFL(batch_size=8) if method is None else method, setting, **factors)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_without_a_pull_it_is_fedavg(weighting):
    """w <- sum_k n_k w_k / n over clients that each took T steps on all their images: bit by bit, two rounds."""
    method = SupervisedFL(batch_size=8, mu=0.0, weighting=weighting)
    environment = prepare(experiment("everywhere", method))
    module = module_of(environment.experiment, environment)
    weights = weights_of(environment.network())
    sizes = [len(environment.split.clients[client]) for client in range(4)]
    assert len(set(sizes)) > 1  # else the two ways to weigh would be one
    for round_number in (1, 2):
        cohort = module._world(round_number).cohort()
        share = [float(sizes[client]) if weighting == "size" else 1.0 for client in cohort]
        students = [trained(environment, {client: weights}, round_number)[client] for client in cohort]
        weights = {
            name: (
                reduce(add, [n * s[name].double() for n, s in zip(share, students, strict=True)]) / sum(share)
            ).float()
            for name in weights
        }
        module.training_step(round_number, 0)
        assert equal(module.state.server["student"], weights)


@pytest.mark.parametrize("setting", SETTINGS)
def test_holders_of_labels_train_on_all_of_them_and_nobody_else_trains(setting):
    """One epoch of B = 8: ceil(n_k / 8) steps at each of the cohort's clients with n_k > 0 labels."""
    module, watch = watched(experiment(setting, epochs=1))
    labelled = module.environment.labelled
    holders = [client for client in module._world(1).cohort() if labelled[client]]
    if not holders:
        holders = [client for client in range(module.environment.K) if labelled[client]]
    assert [job.key.client for job in watch.jobs()] == holders
    for job, outcome in watch.seen[1]:
        held = module.environment.part(job.key.client, "labelled")
        assert outcome.steps == -(-len(held) // 8) == -(-labelled[job.key.client] // 8)
    if setting == "everywhere":
        assert sum(labelled[client] for client in holders) == sum(map(len, module.environment.split.clients))
