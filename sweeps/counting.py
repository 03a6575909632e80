"""Counts what a round costs without data: one real job of each kind runs on torch's meta device.

A method's own `round` is played with weights that have shapes and no numbers, on a stand-in for the data set. Of each
kind of job one is run by the engines' `JobRunner`, with one local step per phase; its outcome and its cost stand for
all jobs of the kind.

Legend: N images of a batch, C channels, H W pixels.
"""

import copy
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmark.data.partition import Iid
from benchmark.experiment import Experiment
from benchmark.federated.batches import JobBatches, LocalBatch, sources_of
from benchmark.federated.environment import Environment, Part
from benchmark.federated.evaluate import CHUNK
from benchmark.federated.jobs import JobRunner, keeper_of
from benchmark.federated.local import LocalModule
from benchmark.federated.processes import CPU
from benchmark.federated.trees import tree_bytes
from benchmark.methods.calls import first_state, play_round, voters_of
from benchmark.methods.protocol import Batch, Job, Local, Outcome, Tree
from benchmark.models.build import Model
from benchmark.optimizer import Constant
from sweeps.meta import META, WithoutNumbers, network_on_meta
from sweeps.stand_in import SureReader, stand_in

MILD = 1e-3  # a learning rate with which nothing diverges

# Seconds of one core of the reference processor, an AMD EPYC: of an operation that torch is given, of a FLOP, of a
# pixel of each view, and of a round (the Trainer, the record and the observers). `python -m
# tests.performance.estimates` compares them with recorded runs.
OPERATION_SECONDS, FLOP_SECONDS = 1.6e-5, 2.6e-11
PIXEL_SECONDS = {"plain": 5e-10, "weak": 2.5e-9, "weak2": 2.5e-9, "strong": 1.2e-8}
ROUND_SECONDS = 0.003

COUNTS = ("local_steps", "flops", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class Note:
    """What a count is instead of exact, in words, and the names of the counts that it concerns."""

    text: str
    at_most: frozenset[str] = frozenset()  # smaller if there are fewer confident pseudo-labels, or fewer changes
    about: frozenset[str] = frozenset()  # estimates
    factor: float = 1.75  # by which the sum of a run may differ from an estimate


ALL_CONFIDENT = Note(
    "all pseudo-labels are taken as confident: where steps, bytes or time depend on them, this is the most",
    at_most=frozenset({"local_steps", "bytes_up"}),
)
WHOLE_CHANGES = Note(
    "some methods send only what has changed: their bytes are those of whole weights, the most",
    at_most=frozenset({"bytes_up", "bytes_down"}),
)
BY_REPORTS = Note(
    "what the server sends depends on what clients report: bytes down are an estimate",
    about=frozenset({"bytes_down"}),
    factor=2.5,
)
BY_PARTITION = Note(
    "how many steps a pass has depends on the partition: the totals are those of equal clients",
    about=frozenset({"local_steps", "bytes_up", "bytes_down"}),
)

BY_COHORTS = Note(
    "each client downloads what is not trained once: how many clients ever take part depends on the seed",
    about=frozenset({"bytes_down"}),
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What jobs, rounds or runs cost, in sums. `seconds` are an estimate; notes say what else is not exact."""

    local_steps: float = 0
    flops: float = 0
    bytes_up: float = 0
    bytes_down: float = 0
    seconds: float = 0.0
    notes: tuple[Note, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        sums = {name: getattr(self, name) + getattr(other, name) for name in (*COUNTS, "seconds")}
        return Cost(**sums, notes=tuple(dict.fromkeys(self.notes + other.notes)))

    def __mul__(self, times: float) -> "Cost":
        products = {name: getattr(self, name) * times for name in (*COUNTS, "seconds")}
        return Cost(**products, notes=self.notes if times else ())

    def to_json(self, side_by_side: int) -> dict[str, Any]:
        """Return whole numbers, FLOPs, hours and notes; so many runs take place at a time."""
        whole_numbers = {name: round(getattr(self, name)) for name in COUNTS if name != "flops"}
        hours = self.seconds / 3600 / side_by_side
        texts = list(dict.fromkeys(note.text for note in self.notes))
        return {**whole_numbers, "flops": self.flops, "hours": hours, "notes": texts}


def step_seconds(flops: float, operations: float) -> float:
    """Return the seconds of a core of the reference processor for FLOPs and for the operations that have them."""
    return flops * FLOP_SECONDS + operations * OPERATION_SECONDS


class MetaEnvironment(Environment):
    """An environment whose networks are on the meta device."""

    def network(self, model: Model | None = None, device: str | torch.device = CPU) -> nn.Module:
        return network_on_meta(model or self.experiment.model, self.data.image_shape, self.data.num_classes)

    def pass_cost(self, images: Mapping[str, int], model: Model | None = None) -> Cost:
        """Return the cost of passes of images, counted by their view, through a network in evaluation mode."""
        model, N = model or self.experiment.model, sum(images.values())
        flops, operations = pass_of(model, self.data.image_shape, self.data.num_classes)
        chunks = -(-N // CHUNK)
        seconds = step_seconds(N * flops, chunks * operations) + self.view_seconds(images)
        return Cost(flops=N * flops, seconds=seconds)

    def view_seconds(self, images: Mapping[str, int]) -> float:
        """Return the seconds that the views of these images take."""
        pixels = self.data.test_images_NCHW[0].numel()
        return pixels * sum(N * PIXEL_SECONDS[view] for view, N in images.items())


@cache
def pass_of(model: Model, image_shape: tuple[int, int, int], num_classes: int) -> tuple[int, int]:
    """Count the FLOPs and the operations of one image's forward pass in evaluation mode."""
    network = copy.deepcopy(network_on_meta(model, image_shape, num_classes)).eval()
    with WithoutNumbers() as counter, torch.no_grad():
        network(torch.empty(1, *image_shape, device=META))
    return counter.flops, counter.operations


class OneStepRunner(JobRunner):
    """Runs jobs on the meta device with one local step per phase, and adds up what whole jobs cost."""

    def __init__(self, environment: MetaEnvironment, counter: WithoutNumbers) -> None:
        super().__init__(environment)
        self._environment: MetaEnvironment = environment
        self._device = META  # of jobs; labels stay on the CPU, since readers look at them
        self._counter = counter
        self._cost = Cost()

    def play(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, Cost]:
        """Return what the job leaves, and its cost without the bytes that it receives."""
        self._cost = Cost()
        outcome, _ = self._trained(job, round_number, private)
        reader = self._last_reader
        cost = self._cost + self._environment.pass_cost(reader.images_read, job.network)
        notes = (ALL_CONFIDENT,) if reader.predicted else ()
        if getattr(job.update, "sends_changes", False):
            notes = (*notes, WHOLE_CHANGES)
        bytes_up = tree_bytes(outcome.sends, self._environment.tied)
        return outcome, cost + Cost(bytes_up=bytes_up, notes=notes)

    def _reader(self, job: Job, round_number: int, purpose: str) -> SureReader:
        self._last_reader = SureReader(self._environment, job, round_number)
        return self._last_reader

    def _training(
        self, job: Job, local: Local, round_number: int, *arguments: Any, **named: Any
    ) -> tuple[LocalModule, Any]:
        """Return the module that trains the job, and one empty batch for each phase in place of all its batches."""
        module, batches = super()._training(job, local, round_number, *arguments, **named)
        module.fused = False  # torch has no such kernel for the meta device
        sources = sources_of(job, self._environment, round_number, local.selected)
        return module, self._first_steps(job, sources, batches)

    def _first_steps(self, job: Job, sources: Mapping[str, Part], batches: JobBatches) -> Iterator[LocalBatch]:
        """Yield one batch for each phase. After their steps, add the cost of all steps of the job."""
        sizes = {name: min(job.data[name].batch_size, len(source)) for name, source in sources.items()}
        streams, views = {}, Counter[str]()
        for name, source in sources.items():
            streams[name] = empty_batch(self._environment, job.data[name].views, source, sizes[name])
            views.update(dict.fromkeys(job.data[name].views, sizes[name]))
        flops, operations = self._counter.flops, self._counter.operations
        for phase in range(batches.phases):
            yield LocalBatch(streams=streams, truth_N=None, phase=phase)
        flops, operations = self._counter.flops - flops, self._counter.operations - operations
        seconds = step_seconds(flops, operations) + self._environment.view_seconds(views)
        times = times_timed = batches.steps / batches.phases
        if every := self._environment.experiment.evaluation.gradient_diversity_every:
            passed = self._environment.sizes.get(job.key.client, 0) / max(sizes.values())
            times_timed += passed / every
        self._cost += Cost(local_steps=batches.steps, flops=times * flops, seconds=times_timed * seconds)


def empty_batch(environment: Environment, views: Sequence[str], source: Part, size: int) -> Batch:
    """Return a batch on the meta device, with labels if the source has some."""
    images_NCHW = torch.empty(size, *environment.data.image_shape, device=META)
    numbers_N = torch.empty(size, dtype=torch.int64, device=META)
    return Batch(
        views=dict.fromkeys(views, images_NCHW),
        labels_N=None if source.labels_N is None else numbers_N,
        pseudo_labels_N=None if source.pseudo_labels_N is None else numbers_N,
        positions_N=numbers_N,
    )


@dataclass(frozen=True, kw_only=True)
class FirstDownloads:
    """The parameters that are not trained, which every client downloads with its first job."""

    bytes_each: int = 0
    K: int = 0
    clients: int = 0  # that take part in a round

    def of_first(self, rounds: int) -> Cost:
        """Return the bytes of the clients that take part in one of these rounds: K (1 - (1 - clients / K)^rounds)."""
        if not self.bytes_each:
            return Cost()
        has_part = self.K * (1 - (1 - self.clients / self.K) ** rounds)
        notes = (BY_COHORTS,) if self.clients < self.K else ()
        return Cost(bytes_down=self.bytes_each * has_part, notes=notes)


class RoundCounter:
    """Counts the rounds of a new run, whatever its seed and partition. Client state is kept from round to round."""

    def __init__(self, run: Experiment) -> None:
        """Prepare a stand-in of the run's environment. Raise ConfigError if the run itself would."""
        known = stand_in(run)
        self._environment = MetaEnvironment(
            experiment=known.experiment, data=known.data, split=known.split, held=known.held
        )
        self._meta = WithoutNumbers()
        self._runner = OneStepRunner(self._environment, self._meta)
        self._kinds: dict[Hashable, tuple[Outcome, Cost]] = {}
        with self._meta:
            self._state = first_state(run.method, self._environment.setup())
        self._kept: dict[str, Tree] = dict(self._state.clients)
        self._cost = Cost()
        self._clients: set[int] = set()  # that had jobs in the last round
        self._once = 0  # the bytes of the parameters that are not trained, of the largest network of a client

    @property
    def downloads(self) -> "FirstDownloads":
        """Return what clients download with their first job, by the last round that was played."""
        return FirstDownloads(bytes_each=self._once, K=self._environment.K, clients=len(self._clients))

    def play(self, number: int) -> Cost:
        """Count what this round costs, with its share of the measurements."""
        environment, method = self._environment, self._environment.experiment.method
        self._cost, self._clients = Cost(), set()
        with self._meta:
            world = environment.world(number, lambda jobs: self._fit(jobs, number))
            self._state, _ = play_round(method, replace(self._state, clients=dict(self._kept)), world)
            networks = max(1, len(voters_of(method, self._state)))
        evaluation = environment.experiment.evaluation
        tested = environment.split.validation_N if evaluation.validation else environment.data.test_labels_N
        tests = environment.pass_cost({"plain": networks * len(tested)})
        notes = (BY_REPORTS,) if getattr(method, "sends_by_reports", False) else ()
        if environment.experiment.federation.epochs:
            notes = (*notes, BY_PARTITION)
        return self._cost + Cost(seconds=tests.seconds / evaluation.every + ROUND_SECONDS, notes=notes)

    def _fit(self, jobs: Sequence[Job], number: int) -> Iterator[Outcome]:
        for job in jobs:
            private = self._kept.get(keeper_of(job))
            bytes_down = tree_bytes(job.receives, self._environment.tied)
            if job.key.client >= 0:
                self._clients.add(job.key.client)
                self._once = max(self._once, self._environment.fixed_bytes(job.network))
            kind = (self._kind(job, number), bytes_down, tree_bytes(private or {}))
            if kind not in self._kinds:
                self._kinds[kind] = self._runner.play(job, number, private)
            outcome, cost = self._kinds[kind]
            crosses = job.key.client >= 0  # what stays at the server crosses no network
            self._cost += replace(cost, bytes_up=cost.bytes_up * crosses, bytes_down=bytes_down * crosses)
            if outcome.private is not None:
                self._kept[keeper_of(job)] = outcome.private
            yield replace(outcome, key=job.key)

    def _kind(self, job: Job, number: int) -> Hashable:
        """Return what jobs with equal costs have in common, besides the trees that they start with."""
        client = job.key.client
        images = [len(self._environment.part(client, part, number)) for part in ("labelled", "unlabelled")]
        work = (repr(job.update), job.network, job.limit, *job.data.items())
        return (min(client, 0), *images, *work, *job.receives)


def of_any_seed(run: Experiment) -> Experiment:
    """Return the run whose counts are those of all runs that differ in seed, partition and learning rate."""
    optimizer = replace(run.optimizer, lr=MILD, server_lr=None, schedule=Constant())
    return replace(run, seed=0, partition=Iid(), profile="custom", optimizer=optimizer)
