"""Jobs in windows: the same outcomes as one job after another, the same errors, and few reads by the host.

So are views: those of several jobs that are made at once are those that each job makes alone.
"""

import random
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark.data.augment import Gentle, Weak, make_views
from benchmark.data.randaugment import RandAugment
from benchmark.errors import ConfigError, Diverged
from benchmark.federated import batches, jobs
from benchmark.federated.batches import JobBatches, LocalBatch, make_together, passes
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.trees import first_not_finite, read_at_once
from benchmark.methods.protocol import (
    SERVER,
    Job,
    Key,
    Limit,
    Local,
    LocalUpdate,
    Outcome,
    Selected,
    Step,
    Stream,
    Tree,
)
from benchmark.streams import numpy_stream, torch_stream
from tests.federated.accelerator import Accelerator, OnAccelerator
from tests.federated.helpers import agree
from tests.methods.golden import TRACES, of, trace

# Views


def batches_one_by_one(environment: Environment, job: Job, selected: Mapping[str, Selected]) -> Iterator[Any]:
    """Yield each batch's views, labels, pseudo-labels and positions, gathered and augmented batch by batch."""
    seed = environment.experiment.seed
    data = environment.data
    key = job.key
    assert job.limit.steps is not None
    made: dict[str, list[Any]] = {}
    for name, stream in job.data.items():
        names = ("train", "round", 1, "client", key.client, "draw", key.draw, name)
        part = environment.part(key.client, stream.part)
        chosen = selected.get(name)
        within_N = torch.arange(len(part)) if chosen is None else chosen.positions_N
        order = numpy_stream(seed, *names, "order")
        places = passes(len(within_N), stream.batch_size, job.limit.steps, stream.drop_last, order)
        draw = torch_stream(seed, *names, "augmentation")
        made[name] = []
        for place in map(torch.from_numpy, places):
            at_N = part.positions_N[within_N[place]]
            how = (stream.views, environment.augmentation, data.mean, data.std, draw)
            labels_N = None if part.labels_N is None else part.labels_N[at_N]
            pseudo_N = None if chosen is None or chosen.labels_N is None else chosen.labels_N[place]
            truth_N = None if part.truth_N is None else part.truth_N[at_N]
            views = make_views(part.images_NCHW[at_N], *how)
            made[name].append((views, labels_N, pseudo_N, within_N[place], truth_N))
    yield from zip(*made.values(), strict=True)


def same(batch: LocalBatch, expected: Sequence[Any]) -> bool:
    found = []
    for name, stream in batch.streams.items():
        truth_N = batch.truth_N if name == "unlabelled" else None
        found.append((dict(stream.views), stream.labels_N, stream.pseudo_labels_N, stream.positions_N, truth_N))
    wanted = [
        (*parts, truth_N if name == "unlabelled" else None)
        for name, (*parts, truth_N) in zip(batch.streams, expected, strict=True)
    ]
    return all(agree(list(one), list(other)) for one, other in zip(found, wanted, strict=True))


KINDS: dict[str, tuple[Weak, RandAugment | Gentle, tuple[str, ...]]] = {
    "weak": (Weak(), RandAugment(), ("weak",)),
    "enlarged": (Weak(enlarge=1.25), RandAugment(), ("weak", "weak2")),
    "randaugment": (Weak(), RandAugment(), ("weak", "strong")),
    "semifl": (Weak(padding_mode="zero"), RandAugment(pool="semifl", levels=(10, 10), cutout=0.0), ("weak", "strong")),
    "gentle": (Weak(), Gentle(), ("plain", "weak", "weak2", "strong")),
}


def environment_with(kind: str) -> Environment:
    experiment = of("fedprox_fixmatch", "every_client")
    weak, strong, _ = KINDS[kind]
    augmentation = replace(experiment.data.augmentation, weak=weak, strong=strong)
    return prepare(replace(experiment, data=replace(experiment.data, augmentation=augmentation)))


def jobs_of(environment: Environment, views: tuple[str, ...]) -> list[tuple[Job, dict[str, Selected]]]:
    """Make the server's job, and jobs of clients with unequal sizes, numbers of steps, streams and selections."""
    given = []
    for client in (SERVER, 0, 1, 2, 3):
        streams = {"labelled": Stream.whole("labelled", 4)}
        if client >= 0:
            streams["unlabelled"] = Stream(part="unlabelled", batch_size=7 + client, views=views)
        limit = Limit(steps=5 + 3 * max(client, 0))
        job = Job(key=Key(client=client), update=LocalUpdate(), receives={}, data=streams, limit=limit)
        chosen: dict[str, Selected] = {}
        if client == 2:
            at_N = torch.tensor([3, 1, 1, 8, 0, 5, 9, 4, 4, 2])
            chosen = {"unlabelled": Selected(positions_N=at_N, labels_N=at_N % 3)}
        if len(environment.part(client, "labelled")):
            given.append((job, chosen))
    assert len(given) >= 4
    return given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [None, 1, 3])
def test_views_of_several_jobs_at_once_are_those_of_each_batch_alone(kind, steps):
    """Bit by bit, whether all steps are made at once, or some of all jobs and the rest by each job."""
    environment = environment_with(kind)
    given = jobs_of(environment, KINDS[kind][2])
    iterators = [iter(JobBatches(environment, job, 1, selected=chosen)) for job, chosen in given]
    make_together(iterators, steps)
    if steps == 3:
        next(iterators[0])
        make_together(iterators, steps)
    for place, ((job, chosen), iterator) in enumerate(zip(given, iterators, strict=True)):
        expected = list(batches_one_by_one(environment, job, chosen))
        found = list(iterator)
        expected = expected[1:] if steps == 3 and place == 0 else expected
        assert len(found) == len(expected)
        assert all(map(same, found, expected))


@pytest.mark.parametrize("span", [1, 5, 64])
def test_the_number_of_images_made_at_once_moves_no_view(span, monkeypatch):
    environment = environment_with("randaugment")
    monkeypatch.setattr(batches, "SPAN", span)
    for job, chosen in jobs_of(environment, ("weak", "strong")):
        found = JobBatches(environment, job, 1, selected=chosen)
        assert all(map(same, found, batches_one_by_one(environment, job, chosen)))


def test_views_of_many_jobs_take_the_operations_of_one():
    """On a device. Ten jobs have at most 1.2 times as many as one; one by one they have ten times as many."""
    environment = environment_with("randaugment")
    stream = Stream(part="unlabelled", batch_size=8, views=("weak", "strong"))
    given = [
        Job(
            key=Key(client=index % 4, draw=index),
            update=LocalUpdate(),
            receives={},
            data={"unlabelled": stream},
            limit=Limit(steps=6),
        )
        for index in range(10)
    ]
    counts: list[int] = []
    with Accelerator() as accelerator:
        here = OnAccelerator(environment)._work._environment
        for number in (1, 1, 10):  # tables are made once, by the first
            iterators = [iter(JobBatches(here, job, 1)) for job in given[:number]]
            with accelerator.step(f"views {len(counts)}"):
                make_together(iterators)
                made = [list(iterator) for iterator in iterators]
            counts.append(accelerator.operations[f"views {len(counts)}"])
            assert [len(one) for one in made] == [6] * number
    assert not accelerator.waits
    assert counts[2] <= 1.2 * counts[1]


# Outcomes


class InWindows(ReferenceEngine):
    """The reference engine, which runs jobs in windows on the CPU, too."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        yield from self._work.run_in_windows(jobs, round_number, kept)


def state_after(name: str, engine: type[ReferenceEngine]) -> tuple[Any, Any]:
    environment = prepare(TRACES[name])
    module = FederatedModule(environment, engine(environment))
    return trace(TRACES[name], module), vars(module.state)


@pytest.mark.parametrize("name", TRACES)
def test_windows_give_the_bits_of_one_job_after_another(name):
    """Numbers, the server's state and what clients keep, after two rounds."""
    numbers, state = state_after(name, ReferenceEngine)
    found, found_state = state_after(name, InWindows)
    assert agree(found, numbers) and agree(
        {**found_state, "clients": dict(found_state["clients"])}, {**state, "clients": dict(state["clients"])}
    )


@pytest.mark.parametrize("name", ["crl-fedavg", "rscfed", "semifl", "fedmatch"])
@pytest.mark.parametrize("most", [1, 200_000])
def test_the_size_of_a_window_moves_no_bit(name, most, monkeypatch):
    numbers, state = state_after(name, ReferenceEngine)
    monkeypatch.setattr(jobs, "MOST_BYTES", most)
    found, found_state = state_after(name, InWindows)
    assert agree(found, numbers) and agree(found_state["server"], state["server"])


@dataclass(frozen=True, kw_only=True)
class Drawing(LocalUpdate):
    """Draws from every global generator in each of its functions, and notes what it drew."""

    fails: str = ""
    spoils: bool = False
    steps_until_failure: int = 2

    def start(self, received: Tree, private: Tree | None, reader: Any) -> Local:
        if self.fails == "start":
            raise ConfigError("start fails")
        weights = received["student"]
        return Local(trainable={"student": weights}, private={"drawn": drawn()}, notes={"drawn": drawn()})

    def loss(self, step: Step) -> Any:
        (batch,) = step.batch.values()
        if self.fails == "loss" and step.number == self.steps_until_failure - 1:
            raise ConfigError("loss fails")
        logits_ND = step.trainable["student"](batch.views["weak"])
        loss = logits_ND.square().mean() * float(drawn()[0])
        return loss * torch.nan if self.spoils else loss, {"own/loss": loss}

    def finish(self, local: Local) -> Tree:
        local.private = {"drawn": torch.cat([local.private["drawn"], drawn()])}  # type: ignore[index]
        return {"student": local.trainable["student"], "drawn": torch.cat([local.notes["drawn"], drawn()])}


def drawn() -> Tensor:
    return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])


def drawing_jobs(environment: Environment, **fields: Any) -> list[Job]:
    """Make the jobs of four clients; client 1 has the fields.

    The last job is client 0's again, and needs the client state that its first job left.
    """
    stream = {"unlabelled": Stream(part="unlabelled", batch_size=8, views=("weak",))}
    weights = dict(environment.setup().initial_weights())
    given = []
    for draw, client in enumerate((0, 1, 2, 3, 0)):
        update = Drawing(**fields) if client == 1 else Drawing()
        key = Key(client=client, draw=draw)
        given.append(Job(key=key, update=update, receives={"student": weights}, data=stream, limit=Limit(steps=3)))
    return given


def outcomes_until_an_error(engine: ReferenceEngine, given: Sequence[Job]) -> tuple[list[Any], str, dict[str, Tree]]:
    kept: dict[str, Tree] = {}
    found: list[Any] = []
    try:
        for outcome in engine.fit(given, 1, kept):
            found.append(vars(outcome))
    except (ConfigError, Diverged) as error:
        return found, str(error), kept
    return found, "", kept


@pytest.mark.parametrize("fields", [{}, {"fails": "start"}, {"fails": "loss"}, {"spoils": True}])
def test_draws_state_and_errors_are_those_of_one_job_after_another(fields, tiny):
    """Functions that draw from global generators get the same numbers; the job before one that fails has ended."""
    environment = prepare(tiny)
    given = drawing_jobs(environment, **fields)
    expected = outcomes_until_an_error(ReferenceEngine(environment), given)
    found = outcomes_until_an_error(InWindows(environment), given)
    assert len(expected[0]) == (1 if fields else 5) and bool(expected[1]) == bool(fields)
    assert agree(list(found), list(expected))


# Reads


class AllReads(Accelerator):
    """Notes what is waited for in a whole round, not in local training only."""

    training = property(lambda self: True, lambda self, value: None)


def reads_of_a_round(name: str, clients: int) -> int:
    """Count the reads of local work and its reports, without the reads of evaluation, `start` and `round`."""
    known = TRACES[name]
    environment = prepare(replace(known, federation=replace(known.federation, K=clients, C=clients)))
    with AllReads() as accelerator:
        module = FederatedModule(environment, OnAccelerator(environment))
        accelerator.waits.clear()
        module.training_step(1, 0)
    files = ("federated/round_metrics", "federated/local", "federated/jobs", "federated/trees", "federated/batches")
    return sum(count for place, count in accelerator.waits.items() if place.split(" at ")[1].startswith(files))


@pytest.mark.parametrize("name", ["crl-fedavg", "rscfed"])
def test_the_number_of_reads_does_not_depend_on_the_number_of_jobs(name):
    assert reads_of_a_round(name, 8) == reads_of_a_round(name, 4) <= 8


def test_tensors_read_at_once_are_as_they_were():
    given = [
        torch.tensor([[1.5, -0.0, torch.nan], [torch.inf, 1e-40, 3.0]]),
        torch.tensor([2**52 + 1, -7]),
        torch.tensor([True, False]),
        torch.zeros(0),
        torch.tensor(0.1, dtype=torch.float64),
    ]
    with AllReads() as accelerator:
        there = [value.to("meta") for value in given]
        accelerator.waits.clear()
        found = read_at_once([there[0], given[1], *there[2:]])
    assert sum(accelerator.waits.values()) == 1
    for value, expected in zip(found, given, strict=True):
        assert value.dtype == expected.dtype and torch.equal(value.nan_to_num(9.0), expected.nan_to_num(9.0))


def test_a_tree_of_a_device_is_read_once_to_see_that_it_is_finite():
    with AllReads() as accelerator:
        tree = {name: torch.ones(3).to("meta") for name in "abc"}
        accelerator.waits.clear()
        assert first_not_finite(tree) is None
        assert sum(accelerator.waits.values()) == 1
