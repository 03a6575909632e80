"""Kinds of local work: the same in two workers; a client twice."""

from typing import Any

import pytest

from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.methods.protocol import Job, Key, Limit, Tree
from tests.conftest import tiny_experiment
from tests.federated.helpers import FastHere, difference
from tests.methods.golden import TRACES
from tests.methods.toys import UNLABELLED, Counting, equal_trees


def run(environment: Environment, engine: Engine) -> FederatedModule:
    module = FederatedModule(environment, engine)
    for round_number in (1, 2):
        module.training_step(round_number, 0)
    return module


# Sat out and steps known after pseudo-labelling; a client twice, with a teacher and momentum that stay; two losses in
# turn and helpers; a sub-network; one after another, on the momentum that the last one left.
@pytest.mark.parametrize("name", ["semifl", "rscfed-released", "fedmatch", "heterofl", "flexmatch-lpl"])
def test_every_shape_is_the_same_in_two_workers(name):
    """Two rounds: what the server and the clients hold, and all metrics, bit by bit."""
    environment = prepare(TRACES[name])
    here = run(environment, FastHere(environment))
    with ProcessPool(environment, workers=2) as engine:
        there = run(environment, engine)
    assert equal_trees(here.state.server, there.state.server)
    assert equal_trees(here.state.clients, there.state.clients)
    assert here.metrics == there.metrics


def test_the_same_client_twice_draws_other_batches_and_sees_what_it_left():
    environment, kept = prepare(tiny_experiment()), dict[str, Tree]()
    work: dict[str, Any] = {
        "update": Counting(),
        "receives": {"student": weights_of(environment.network())},
        "limit": Limit(steps=2),
    }
    jobs = [Job(key=Key(client=0, draw=draw), data={"unlabelled": UNLABELLED}, **work) for draw in (0, 1)]
    first, second = (outcome.sends for outcome in ReferenceEngine(environment).fit(jobs, 1, kept))
    assert (first["times"], second["times"]) == (1, 2) and kept["0"]["times"] == 2
    assert difference(first["student"], second["student"]) > 0
