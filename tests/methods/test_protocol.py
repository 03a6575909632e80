"""Kinds of local work: the same in two workers; a client twice; only reading."""

from dataclasses import dataclass

import pytest
import torch

from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.methods.protocol import Job, Key, Limit, Local, Outcome, Tree
from tests.conftest import tiny_experiment
from tests.federated.helpers import FastHere, difference
from tests.methods.golden import TRACES
from tests.methods.toys import UNLABELLED, Counting, ToConstant, equal_trees


@dataclass(frozen=True, kw_only=True)
class Predicts(ToConstant):
    """Looks at its images before training, in evaluation mode (SemiFL's pseudo-labels on receipt)."""

    def start(self, received, private, reader):
        logits_ND = reader.predict(received["student"], "unlabelled", "plain")
        return Local(trainable={"student": received["student"]}, private={"logits": logits_ND})

    def finish(self, local):
        return {}


@pytest.fixture(scope="module")
def environment() -> Environment:
    return prepare(tiny_experiment())


def run(environment: Environment, engine: Engine, rounds: int = 2) -> FederatedModule:
    module = FederatedModule(environment, engine)
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
    return module


def alone(environment: Environment, update, *draws: int, kept: dict[str, Tree] | None = None) -> list[Outcome]:
    """The outcomes of these jobs of client 0 in round 1."""
    receives = {"student": weights_of(environment.network())}
    jobs = [
        Job(
            key=Key(client=0, draw=draw),
            update=update,
            receives=receives,
            data={"unlabelled": UNLABELLED},
            limit=Limit(steps=2),
        )
        for draw in draws
    ]
    return list(ReferenceEngine(environment).fit(jobs, 1, {} if kept is None else kept))


def kept_by(outcome: Outcome) -> Tree:
    assert outcome.private is not None
    return outcome.private


# Sat out and steps known after pseudo-labelling; a client twice, with a teacher and momentum that stay; two losses in
# turn and helpers; a sub-network.
SHAPES = {name: TRACES[name] for name in ("semifl", "rscfed-released", "fedmatch", "heterofl")}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_the_same_in_two_workers(name):
    """Two rounds: what the server and the clients hold, and all metrics, bit by bit."""
    environment = prepare(SHAPES[name])
    here = run(environment, FastHere(environment))
    with ProcessPool(environment, workers=2) as engine:
        there = run(environment, engine)
    assert equal_trees(here.state.server, there.state.server)
    assert equal_trees(here.state.clients, there.state.clients)
    assert here.metrics == there.metrics


def test_the_same_client_twice_draws_other_batches_and_sees_what_it_left(environment):
    kept: dict[str, Tree] = {}
    first, second = alone(environment, Counting(), 0, 1, kept=kept)
    assert [kept_by(o)["times"] for o in (first, second)] == [1, 2] and kept["0"]["times"] == 2
    assert difference(kept_by(first)["student"], kept_by(second)["student"]) > 0


def test_predict_looks_at_every_image_in_order(environment):
    (actual,) = alone(environment, Predicts(), 0)
    part = environment.part(0, "unlabelled")
    network, data = environment.network().eval(), environment.data
    images = (part.images_NCHW[part.positions_N].float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        assert torch.allclose(kept_by(actual)["logits"], network(images), atol=1e-5)
