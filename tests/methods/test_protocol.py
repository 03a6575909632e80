"""Kinds of local work: the same in two workers; sitting out, twice, only reading."""

from dataclasses import dataclass, replace

import pytest
import torch

from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Key, Limit, Local, Outcome, Tree
from tests.conftest import tiny_experiment
from tests.federated.helpers import FastHere, difference
from tests.methods.golden import TRACES
from tests.methods.toys import UNLABELLED, Counting, ToConstant, Toy, equal_trees

BASE = tiny_experiment()
# Labels at the server and at every client: each toy finds what it needs.
EXPERIMENT = replace(BASE, data=replace(BASE.data, label_setting="every_client", labels_per_client=1), method=Toy())


@dataclass(frozen=True, kw_only=True)
class SitsOut(ToConstant):
    def start(self, received, private, reader):
        return None


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
    return prepare(EXPERIMENT)


def run(environment: Environment, engine: Engine, rounds: int = 2) -> FederatedModule:
    module = FederatedModule(environment, engine)
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
    return module


def alone(environment: Environment, *jobs: Job) -> list[Outcome]:
    return list(ReferenceEngine(environment).fit(jobs, 1, {}))


def job(environment, update, client=0, draw=0, data=None, limit=None, **changes):
    return Job(
        key=Key(client=client, draw=draw),
        update=update,
        receives={"student": weights_of(environment.network())},
        data=data or {"unlabelled": UNLABELLED},
        limit=limit or Limit(steps=2),
        **changes,
    )


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


def test_a_client_sits_out(environment):
    out, then = alone(environment, job(environment, SitsOut()), job(environment, ToConstant()))
    assert out.sends == {} and out.steps == 0 and then.steps == 2


def test_the_same_client_twice_draws_other_batches_and_sees_what_it_left(environment):
    first, second = alone(environment, *(job(environment, ToConstant(), draw=d) for d in (0, 1)))
    assert difference(first.sends["student"], second.sends["student"]) > 0
    kept: dict[str, Tree] = {}
    counts = [job(environment, Counting(), draw=d) for d in (0, 1)]
    again = list(ReferenceEngine(environment).fit(counts, 1, kept))
    assert [kept_by(o)["times"] for o in again] == [1, 2] and kept["0"]["times"] == 2
    assert difference(kept_by(again[0])["student"], kept_by(again[1])["student"]) > 0


def test_predict_looks_at_every_image_in_order(environment):
    (actual,) = alone(environment, job(environment, Predicts()))
    part = environment.part(0, "unlabelled")
    network, data = environment.network().eval(), environment.data
    images = (part.images_NCHW[part.positions_N].float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        assert torch.allclose(kept_by(actual)["logits"], network(images), atol=1e-5)


def test_epochs_are_passes_over_the_holder_s_images(environment):
    streams = {"unlabelled": replace(UNLABELLED, drop_last=False)}
    (actual,) = alone(environment, job(environment, ToConstant(), data=streams, limit=Limit(epochs=2)))
    assert actual.steps == 2 * -(-len(environment.part(0, "unlabelled")) // 8)


def test_one_holder_of_everything():
    environment = prepare(tiny_experiment())
    assert len(environment.part(CENTRAL, "unlabelled")) == sum(environment.sizes[k] for k in range(4))
    assert len(environment.part(CENTRAL, "labelled")) == environment.sizes[SERVER] == 20
