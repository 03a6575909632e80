"""Shapes of local work that SSFL does not need and other methods will, through the reference engine."""

from dataclasses import dataclass, replace

import torch

from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.losses.supervised import supervised_loss
from benchmark.methods.objectives import StudentUpdate
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Key, Limit, Local, Outcome, Stream, Tree
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal

LABELLED = Stream(part="labelled", batch_size=8, views=("weak",))
UNLABELLED = Stream(part="unlabelled", batch_size=8, views=("weak",))


@dataclass(frozen=True, kw_only=True)
class ToConstant(StudentUpdate):
    """Pulls the prediction of any image towards class 0."""

    def loss(self, trainable, frozen, batch, draw):
        (stream,) = batch.values()
        logits_ND = trainable["student"](stream.views["weak"])
        return supervised_loss(logits_ND, torch.zeros(len(logits_ND), dtype=torch.int64)), {}


@dataclass(frozen=True, kw_only=True)
class SitsOut(ToConstant):
    def start(self, received, private, predict):
        return None


@dataclass(frozen=True, kw_only=True)
class WithTeacher(ToConstant):
    """A teacher that follows the student after every step, w_t = .5 w_t + .5 w_s, and is sent back."""

    def start(self, received, private, predict):
        return Local(trainable={"student": received["student"]}, frozen={"teacher": received["student"]})

    def after_step(self, local, frozen):
        for teacher, student in zip(frozen["teacher"].parameters(), local["student"].parameters(), strict=True):
            teacher.lerp_(student, 0.5)

    def finish(self, local):
        return {"student": local.trainable["student"], "teacher": local.frozen["teacher"]}


@dataclass(frozen=True, kw_only=True)
class Counts(ToConstant):
    """Keeps how often it was here, and starts from the weights it left (EASGD)."""

    def start(self, received, private, predict):
        return Local(trainable={"student": (private or received)["student"]}, private={"times": 0, **(private or {})})

    def finish(self, local):
        local.private = {"student": local.trainable["student"], "times": local.private["times"] + 1}
        return {}


@dataclass(frozen=True, kw_only=True)
class Predicts(ToConstant):
    """Looks at its images before training, in evaluation mode (SemiFL's pseudo-labels on receipt)."""

    def start(self, received, private, predict):
        logits_ND = predict(received["student"], "unlabelled", "plain")
        return Local(trainable={"student": received["student"]}, private={"logits": logits_ND})

    def finish(self, local):
        return {}


def kept_by(outcome: Outcome) -> Tree:
    assert outcome.private is not None
    return outcome.private


def job(environment, update, client=0, draw=0, stream=UNLABELLED, limit=None, **changes):
    from benchmark.federated.environment import weights_of

    return Job(
        key=Key(client=client, draw=draw),
        update=update,
        receives={"student": weights_of(environment.network())},
        data={"stream": stream},
        limit=limit or Limit(steps=2),
        **changes,
    )


def test_a_client_sits_out():
    environment = prepare(tiny_experiment())
    out, then = ReferenceEngine(environment).fit([job(environment, SitsOut()), job(environment, ToConstant())], 1, {})
    assert out.sends == {} and out.steps == 0 and then.steps == 2


def test_the_same_client_twice_draws_other_batches_and_sees_what_it_left():
    environment = prepare(tiny_experiment())
    kept: dict[str, Tree] = {}
    engine = ReferenceEngine(environment)
    first, second = engine.fit([job(environment, ToConstant(), draw=d) for d in (0, 1)], 1, {})
    assert difference(first.sends["student"], second.sends["student"]) > 0
    again = list(engine.fit([job(environment, Counts(), draw=d) for d in (0, 1)], 1, kept))
    assert [kept_by(o)["times"] for o in again] == [1, 2] and kept["0"]["times"] == 2
    assert difference(kept_by(again[0])["student"], kept_by(again[1])["student"]) > 0


def test_a_teacher_follows_and_is_sent_back():
    """One step from w: teacher = w + (student - w) / 2."""
    environment = prepare(tiny_experiment())
    (one,) = ReferenceEngine(environment).fit([job(environment, WithTeacher(), limit=Limit(steps=1))], 1, {})
    start = job(environment, WithTeacher()).receives["student"]
    half = {name: (start[name] + one.sends["student"][name]) / 2 for name in start}
    assert difference(one.sends["teacher"], half) < 1e-6 < difference(one.sends["teacher"], start)


def test_predict_looks_at_every_image_in_order():
    environment = prepare(tiny_experiment())
    (found,) = ReferenceEngine(environment).fit([job(environment, Predicts())], 1, {})
    part = environment.part(0, "unlabelled")
    network, data = environment.network().eval(), environment.data
    images = (part.images_NCHW[part.positions_N].float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        assert torch.allclose(kept_by(found)["logits"], network(images), atol=1e-5)


def test_epochs_are_passes_over_the_holder_s_images():
    environment = prepare(tiny_experiment())
    stream = replace(UNLABELLED, drop_last=False)
    (found,) = ReferenceEngine(environment).fit(
        [job(environment, ToConstant(), stream=stream, limit=Limit(epochs=2))], 1, {}
    )
    assert found.steps == 2 * -(-environment.sizes[0] // 8)


def test_one_holder_of_everything():
    environment = prepare(tiny_experiment())
    assert len(environment.part(CENTRAL, "unlabelled")) == sum(environment.sizes[k] for k in range(4))
    assert len(environment.part(CENTRAL, "labelled")) == environment.sizes[SERVER] == 20


def test_equal_jobs_give_equal_results_in_any_engine_object():
    environment = prepare(tiny_experiment())
    results = [next(ReferenceEngine(environment).fit([job(environment, ToConstant())], 3, {})) for _ in range(2)]
    assert equal(results[0].sends["student"], results[1].sends["student"])
