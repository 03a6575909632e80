"""The gpu engine keeps the engines' contract: job order, private state, errors when they are due, gradients."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.federated.choice import engine_again
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.gpu import GpuEngine
from benchmark.federated.gpu.engine import parts
from benchmark.methods.protocol import Limit, Tree
from tests.conftest import tiny_experiment
from tests.federated.test_gpu_equality import TOLERANCE, distance
from tests.federated.test_workers import Fails, jobs_of
from tests.methods.toys import Counting, Elastic, EvenOnly, ToConstant, WithTeacher, equal_trees, towards_zero

CANDIDATES = ("graphs", "batched", "plain")


@dataclass(frozen=True, kw_only=True)
class Draws(ToConstant):
    def loss(self, trainable, frozen, batch, draw):
        loss, aux = super().loss(trainable, frozen, batch, draw)
        return loss * (1 + torch.rand((), generator=draw)), aux


@dataclass(frozen=True, kw_only=True)
class ReadsANumber(ToConstant):
    def loss(self, trainable, frozen, batch, draw):
        loss, aux = super().loss(trainable, frozen, batch, draw)
        return (loss if float(loss.detach()) > 1.0 else 2 * loss), aux


@dataclass(frozen=True, kw_only=True)
class ChoosesRows(ToConstant):
    def loss(self, trainable, frozen, batch, draw):
        weak_NCHW = batch["unlabelled"].views["weak"]
        bright_N = weak_NCHW.mean((1, 2, 3)) > weak_NCHW.mean()
        return towards_zero(trainable["student"](weak_NCHW)[bright_N]), {}


@dataclass(frozen=True, kw_only=True)
class LeavesTorch(ToConstant):
    """What torch.func cannot see through: NumPy's view of a tensor's memory."""

    def loss(self, trainable, frozen, batch, draw):
        logits_ND = trainable["student"](batch["unlabelled"].views["weak"])
        highest = np.abs(logits_ND.detach().numpy()).max()
        return towards_zero(logits_ND / highest), {}


class Changeable:
    """An update that may be another one at the next step, for all that its type says."""

    phases = ("loss",)

    def __getattr__(self, name):
        return getattr(ToConstant(), name)


@dataclass(frozen=True, kw_only=True)
class CountsItsSteps(WithTeacher):
    """A teacher whose share falls from step to step: 1, 1/2, 1/3."""

    def after_step(self, training):
        for teacher, student in zip(
            training.frozen["teacher"].parameters(), training.trainable["student"].parameters(), strict=True
        ):
            teacher.lerp_(student, 1 / training.step)


@dataclass(frozen=True, kw_only=True)
class TwoPhases(ToConstant):
    """The second phase reaches the last layer alone: the rest is not stepped, and its momentum does not decay."""

    phases = ("loss", "last")

    def last(self, trainable, frozen, batch, draw):
        return trainable["student"].fc2.weight.square().sum(), {}


@pytest.fixture(scope="module")
def environment():
    return prepare(tiny_experiment())


def compared(environment, engine, jobs, rounds=(1, 2)) -> float:
    """The largest difference from the reference's outcomes and kept state, over these rounds."""
    here: dict[str, Tree] = {}
    there: dict[str, Tree] = {}
    found = 0.0
    reference = ReferenceEngine(environment)
    for number in rounds:
        for left, right in zip(reference.fit(jobs, number, here), engine.fit(jobs, number, there), strict=True):
            assert left.key == right.key and left.steps == right.steps and left.metrics.keys() == right.metrics.keys()
            found = max(found, distance(left.sends, right.sends), distance(left.private or {}, right.private or {}))
    return max(found, distance(here, there))


def jobs_with_teacher(environment, update, steps=(2, 2, 2, 2)):
    jobs = jobs_of(environment, update, steps=steps)
    return [replace(job, receives={**job.receives, "teacher": job.receives["student"]}) for job in jobs]


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("update", [ToConstant(), EvenOnly(), Elastic(), TwoPhases()], ids=lambda u: type(u).__name__)
def test_jobs_of_several_lengths(environment, candidate, update):
    engine = GpuEngine(environment, "cpu", candidate)
    assert compared(environment, engine, jobs_of(environment, update, steps=(1, 4, 2, 4))) < TOLERANCE


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_the_same_client_twice_sees_what_its_first_job_left(environment, candidate):
    engine = GpuEngine(environment, "cpu", candidate)
    assert compared(environment, engine, jobs_of(environment, Counting(), draws=(0, 1))) < TOLERANCE


@pytest.mark.parametrize("update", [WithTeacher(), CountsItsSteps()], ids=["fixed share", "share of the step"])
@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_teacher_follows_within_the_step_or_between_steps(environment, candidate, update):
    engine = GpuEngine(environment, "cpu", candidate)
    jobs = jobs_with_teacher(environment, update, steps=(3, 3, 2, 3))
    assert compared(environment, engine, jobs) < TOLERANCE
    (verdict,) = engine._verdicts.values()
    assert verdict.reason is None and verdict.after_inside == (type(update) is WithTeacher)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (Draws(), "draws from its generator"),
        (ReadsANumber(), "reads a value on the host"),
        (ChoosesRows(), "by a mask"),
        (Changeable(), "no frozen dataclass"),
    ],
)
@pytest.mark.parametrize("candidate", ["graphs", "batched"])
def test_what_cannot_be_replayed_runs_plain_and_bit_equal(environment, candidate, update, reason):
    engine = GpuEngine(environment, "cpu", candidate)
    assert compared(environment, engine, jobs_of(environment, update)) == 0.0
    (choice,) = engine.choices.values()
    assert choice["candidate"] == "plain" and reason in choice["reason"]


def test_what_cannot_be_batched_runs_plain(environment):
    engine = GpuEngine(environment, "cpu", "batched")
    assert compared(environment, engine, jobs_of(environment, LeavesTorch())) == 0.0
    (choice,) = engine.choices.values()
    assert choice["candidate"] == "plain" and "batched: " in choice["reason"]


@pytest.mark.parametrize("slowest", ["graphs", "batched", "plain"])
def test_a_run_that_goes_on_keeps_its_choice_and_measures_nothing(environment, slowest):
    """The record says 9 s for the candidate that was chosen, which no measurement would choose again."""
    recorded = {"ToConstant": {"candidate": slowest, "reason": "measured", "seconds": {slowest: 9.0, "other": 1.0}}}
    engine = engine_again(
        {"name": "gpu", "candidate": "measured", "choices": recorded}, environment, None, device="cpu"
    )
    assert isinstance(engine, GpuEngine)
    assert compared(environment, engine, jobs_of(environment, ToConstant())) < TOLERANCE
    (choice,) = engine.choices.values()
    assert choice["candidate"] == slowest and choice["seconds"] == {slowest: 9.0, "other": 1.0}
    assert choice["eager"] == ([] if slowest == "plain" else ["no CUDA device"])


def test_dropout_runs_plain_with_the_reference_s_masks():
    base = tiny_experiment()
    model = replace(base.model, network="emnist_cnn", norm="none", dropout=0.25)
    environment = prepare(replace(base, model=model))
    engine = GpuEngine(environment, "cpu", "graphs")
    assert compared(environment, engine, jobs_of(environment, ToConstant()), rounds=(1,)) == 0.0
    (choice,) = engine.choices.values()
    assert "dropout" in choice["reason"]


def test_a_job_without_steps_sends_what_it_received(environment):
    jobs = [replace(job, limit=Limit(steps=0)) for job in jobs_of(environment, ToConstant())]
    assert compared(environment, GpuEngine(environment, "cpu", "graphs"), jobs) == 0.0


def test_gradients_are_the_reference_s(environment):
    jobs = jobs_of(environment, ToConstant())
    expected = list(ReferenceEngine(environment).gradients(jobs, 2))
    found = list(GpuEngine(environment, "cpu").gradients(jobs, 2))
    assert len(found) == 4 and all(equal_trees(*pair) for pair in zip(expected, found, strict=True))


def test_a_failure_comes_when_its_outcome_is_due(environment):
    """Client 0's outcome, with its state kept, and then client 1's own error."""
    engine = GpuEngine(environment, "cpu", "graphs")
    outcomes = engine.fit(jobs_of(environment, Fails()), 1, {})
    assert next(outcomes).key.client == 0
    with pytest.raises(ConfigError, match="^tau: 7; 1 would be right$"):
        next(outcomes)


def test_leaving_off_half_way_and_small_waves(environment):
    """Only what was handed out is kept; a wave of one byte holds one job, and changes nothing but rounding."""
    engine = GpuEngine(environment, "cpu", "graphs", wave_bytes=1)
    jobs = jobs_of(environment, Counting())
    kept: dict[str, Tree] = {}
    left_off: Iterator = engine.fit(jobs, 1, kept)
    next(left_off)
    left_off.close()  # type: ignore[attr-defined]  # what leaving a `for` loop comes to
    assert list(kept) == ["0"]
    assert compared(environment, engine, jobs) < TOLERANCE


def test_a_closed_engine_works_again(environment):
    engine, jobs = GpuEngine(environment, "cpu", "graphs"), jobs_of(environment, ToConstant())
    first = list(engine.fit(jobs, 1, {}))
    engine.close()
    assert all(equal_trees(a.sends, b.sends) for a, b in zip(first, engine.fit(jobs, 1, {}), strict=True))


@pytest.mark.parametrize(
    ("count", "width", "sizes"), [(10, 8, [5, 5]), (47, 8, [8] * 5 + [7]), (3, 8, [3]), (0, 8, [])]
)
def test_groups_have_nearly_equal_sizes(count, width, sizes):
    """ceil(47 / 8) = 6 groups of 7 or 8: 47 = 5 x 8 + 7."""
    found = [len(part) for part in parts(list(range(count)), width)]  # type: ignore[arg-type]
    assert found == sizes
