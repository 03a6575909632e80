"""Labels that the setting hides cannot reach the weights: permuting them changes no bit; the server's do."""

from dataclasses import replace

import pytest
import torch

from benchmark.federated.environment import Environment, prepare
from benchmark.methods.averaging import Grouping
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.objectives import SelfTraining
from benchmark.methods.server_only import ServerOnly
from tests.conftest import tiny_experiment
from tests.federated.helpers import equal, weights_after

BASE = tiny_experiment()
METHODS = {
    "crl": BASE.method,
    "grouping": replace(BASE.method, averaging=Grouping(S=2)),
    "self-training": replace(BASE.method, objective=SelfTraining(threshold=0.14)),
    "released": replace(BASE.method, momentum="released_code", server_models="released_code"),
    "server only": ServerOnly(batch_size=8),
    "fixmatch": FixMatch(batch_size=8, unlabelled_ratio=1, threshold=0.14),
}


def permuted(environment: Environment, holders: str) -> Environment:
    """The same split, in which the labels of the server's or of all other training images are shifted by one class."""
    labels_N = environment.data.train_labels_N.clone()
    at_server = torch.zeros(len(labels_N), dtype=torch.bool)
    at_server[torch.as_tensor(environment.split.server_N)] = True
    chosen = at_server if holders == "server" else ~at_server
    labels_N[chosen] = (labels_N[chosen] + 1) % environment.data.num_classes
    test = environment.data.test_labels_N
    test = test if holders == "server" else (test + 1) % environment.data.num_classes
    data = replace(environment.data, train_labels_N=labels_N, test_labels_N=test)
    return replace(environment, data=data)


@pytest.mark.parametrize("name", METHODS)
def test_only_the_server_s_labels_matter(name):
    environment = prepare(replace(BASE, method=METHODS[name]))
    weights = weights_after(environment.experiment, rounds=2, environment=environment)
    hidden = permuted(environment, "everyone else")
    assert equal(weights, weights_after(environment.experiment, rounds=2, environment=hidden))
    visible = permuted(environment, "server")
    assert not equal(weights, weights_after(environment.experiment, rounds=2, environment=visible))


def test_oracle_labels_matter_where_clients_hold_them():
    from benchmark.methods.objectives import Supervised

    method = replace(BASE.method, objective=Supervised())
    experiment = replace(BASE, data=replace(BASE.data, label_setting="everywhere"), method=method)
    environment = prepare(experiment)
    weights = weights_after(experiment, rounds=2, environment=environment)
    assert not equal(weights, weights_after(experiment, rounds=2, environment=permuted(environment, "everyone else")))
