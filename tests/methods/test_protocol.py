"""Shapes of local work that SSFL does not need and other methods will: by hand, and the same in two workers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Key, Limit, Local, Outcome, Tree
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal
from tests.methods.toys import LABELLED, UNLABELLED, Counting, Elastic, ToConstant, Toy, WithTeacher, equal_trees
from tests.methods.toys_of_several import TOYS, InTurn, OnSelected, Slices, leading

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


@pytest.fixture(scope="module")
def workers(environment: Environment) -> Iterator[ProcessPool]:
    with ProcessPool(environment, workers=2, plain=True) as engine:
        yield engine


def run(toy: Toy, environment: Environment, engine: Engine, rounds: int = 2) -> FederatedModule:
    module = FederatedModule(replace(environment, experiment=replace(environment.experiment, method=toy)), engine)
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


@pytest.mark.parametrize("name", TOYS)
def test_every_shape_is_the_same_in_two_workers(name, environment, workers):
    """Two rounds: what the server and the clients hold, and all metrics, bit by bit."""
    here, there = run(TOYS[name], environment, ReferenceEngine(environment)), run(TOYS[name], environment, workers)
    assert equal_trees(here.state.server, there.state.server)
    assert equal_trees(here.state.clients, there.state.clients)
    assert here.metrics == there.metrics
    start = TOYS[name].init(environment.setup()).server
    assert not equal_trees(start, here.state.server), "the toy trained nothing"


def test_a_client_sits_out(environment):
    out, then = alone(environment, job(environment, SitsOut()), job(environment, ToConstant()))
    assert out.sends == {} and out.steps == 0 and then.steps == 2
    sitting = run(TOYS["sits out"], environment, ReferenceEngine(environment), rounds=1)
    assert sitting.metrics["comm/sat_out"] == 2  # clients 1 and 3 of 0..3


def test_the_same_client_twice_draws_other_batches_and_sees_what_it_left(environment):
    first, second = alone(environment, *(job(environment, ToConstant(), draw=d) for d in (0, 1)))
    assert difference(first.sends["student"], second.sends["student"]) > 0
    kept: dict[str, Tree] = {}
    counts = [job(environment, Counting(), draw=d) for d in (0, 1)]
    again = list(ReferenceEngine(environment).fit(counts, 1, kept))
    assert [kept_by(o)["times"] for o in again] == [1, 2] and kept["0"]["times"] == 2
    assert difference(kept_by(again[0])["student"], kept_by(again[1])["student"]) > 0


def test_twice_a_round_for_two_rounds_is_four_times(environment, workers):
    clients = run(TOYS["twice"], environment, workers).state.clients
    assert {client: kept["times"] for client, kept in clients.items()} == dict.fromkeys("0123", 4)


def test_each_of_two_losses_steps_its_own_weight_set(environment):
    """Two local steps are four optimizer steps: sigma moves in the first and third, psi in the second and fourth.

    Weight decay and momentum must not move the other one either: bit by bit.
    """
    half = {name: value / 2 for name, value in weights_of(environment.network()).items()}
    asked = replace(
        job(environment, InTurn(), data={"labelled": LABELLED, "unlabelled": UNLABELLED}),
        receives={"sigma": half, "psi": half},
    )
    (found,) = alone(environment, asked)
    kept = {"sigma after step 0": half, "psi after step 0": half, **kept_by(found)}
    moved = [
        tuple(
            not equal(kept[f"{name} after step {step - 1}"], kept[f"{name} after step {step}"])
            for name in ("sigma", "psi")
        )
        for step in (1, 2, 3, 4)
    ]
    assert found.steps == 4 and moved == [(True, False), (False, True), (True, False), (False, True)]


def test_a_teacher_follows_and_is_sent_back(environment):
    """One step from w: teacher = w + (student - w) / 2."""
    start = weights_of(environment.network())
    asked = replace(
        job(environment, WithTeacher(), limit=Limit(steps=1)), receives={"student": start, "teacher": start}
    )
    (one,) = alone(environment, asked)
    half = {name: (start[name] + one.sends["student"][name]) / 2 for name in start}
    assert difference(one.sends["teacher"], half) < 1e-6 < difference(one.sends["teacher"], start)


def test_start_weights_stay_at_the_client(environment):
    """With a quarter of the server's pull, the second round starts at w_k + (w - w_k) / 4: without a step, it ends
    there. Two of four clients were drawn: only they keep anything."""
    module = run(TOYS["kept start"], environment, ReferenceEngine(environment), rounds=1)
    assert len(module.state.clients) == 2
    client, kept = next(iter(module.state.clients.items()))
    student = module.state.server["student"]
    asked = replace(job(environment, Elastic(), int(client), limit=Limit(steps=0)), receives={"student": student})
    (outcome,) = ReferenceEngine(environment).fit([asked], 2, dict(module.state.clients))
    expected = {name: 0.75 * value + 0.25 * student[name] for name, value in kept["student"].items()}
    assert difference(outcome.sends["student"], expected) < 1e-6 < difference(outcome.sends["student"], kept["student"])


def test_a_sub_network_changes_only_its_leading_slices(environment):
    """All clients at half width: the rest of the server's weights keeps every bit. Widths 1 and .5 in turn: the rest
    is the mean of clients 0 and 2 alone, the leading slice of all four."""
    half = run(Slices(widths=(0.5, 0.5)), environment, ReferenceEngine(environment), rounds=1).state.server["student"]
    start = weights_of(environment.network())
    narrow = Slices().narrowed(start, replace(EXPERIMENT.model, width=0.5))
    assert narrow["conv2.weight"].shape == (16, 8, 3, 3) and narrow["fc1.weight"].shape == (32, 256)
    for name, value in half.items():
        touched = torch.zeros_like(value, dtype=torch.bool)
        touched[leading(narrow[name])] = True
        assert torch.equal(value[~touched], start[name][~touched])
    assert difference(half, start) > 0
    spy = _Spy(environment)
    module = run(Slices(), environment, spy, rounds=1)
    mixed = module.state.server["student"]["conv2.weight"]
    returned = {outcome.key.client: outcome.sends["student"]["conv2.weight"] for outcome in spy.seen}
    assert torch.allclose(mixed[-1], (returned[0] + returned[2])[-1] / 2, atol=1e-7)
    first = torch.stack([returned[k][0, 0] for k in range(4)])
    assert torch.allclose(mixed[0, 0], first.mean(dim=0), atol=1e-7)


class _Spy(ReferenceEngine):
    """Notes what comes back."""

    def fit(self, jobs, round_number, kept):
        self.seen = list(super().fit(jobs, round_number, kept))
        yield from self.seen


def test_labelled_and_unlabelled_images_in_one_step(environment):
    """Batches of 4 labelled images beside unlabelled ones whose labels are hidden."""
    metrics = run(TOYS["both labels"], environment, ReferenceEngine(environment), rounds=1).metrics
    assert metrics["client/images"] == 4.0 and metrics["hid"] == 1.0


def test_steps_are_counted_after_pseudo_labelling(environment):
    """Two passes over n selected images in batches of 8, the last one smaller: 2 ceil(n / 8) steps."""
    streams = {"unlabelled": replace(UNLABELLED, drop_last=False)}
    jobs = [job(environment, OnSelected(), client=k, data=streams, limit=Limit(epochs=2)) for k in range(4)]
    trained = [outcome for outcome in alone(environment, *jobs) if not outcome.sat_out]
    assert trained and all(outcome.steps == 2 * -(-outcome.sends["count"] // 8) for outcome in trained)
    assert all(0 < o.sends["count"] < len(environment.part(o.key.client, "unlabelled")) for o in trained)


def test_a_round_without_a_client_sends_nothing(environment):
    metrics = run(TOYS["central"], environment, ReferenceEngine(environment), rounds=1).metrics
    assert metrics["comm/bytes_up"] == metrics["comm/bytes_down"] == 0 and metrics["local_steps"] == 2


def test_predict_looks_at_every_image_in_order(environment):
    (found,) = alone(environment, job(environment, Predicts()))
    part = environment.part(0, "unlabelled")
    network, data = environment.network().eval(), environment.data
    images = (part.images_NCHW[part.positions_N].float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        assert torch.allclose(kept_by(found)["logits"], network(images), atol=1e-5)


def test_epochs_are_passes_over_the_holder_s_images(environment):
    streams = {"unlabelled": replace(UNLABELLED, drop_last=False)}
    (found,) = alone(environment, job(environment, ToConstant(), data=streams, limit=Limit(epochs=2)))
    assert found.steps == 2 * -(-len(environment.part(0, "unlabelled")) // 8)


def test_one_holder_of_everything():
    environment = prepare(tiny_experiment())
    assert len(environment.part(CENTRAL, "unlabelled")) == sum(environment.sizes[k] for k in range(4))
    assert len(environment.part(CENTRAL, "labelled")) == environment.sizes[SERVER] == 20


def test_equal_jobs_give_equal_results_in_any_engine_object(environment):
    results = [next(ReferenceEngine(environment).fit([job(environment, ToConstant())], 3, {})) for _ in range(2)]
    assert equal(results[0].sends["student"], results[1].sends["student"])
