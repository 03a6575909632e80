"""Count the cost of a round without data, by running one job of each kind on torch's meta device.

A method's own `round` is called with weights that have shapes but no numbers, on a data set without images
(`sweeps.blank_data`). The engines' `JobRunner` runs one job of each kind, with one local step per phase. All jobs of
the kind are then given its outcome and its cost.

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
from benchmark.federated.jobs import JobRunner
from benchmark.federated.local import LocalModule
from benchmark.federated.processes import CPU
from benchmark.federated.trees import tree_bytes
from benchmark.methods.calls import first_state, play_round, voters_of
from benchmark.methods.protocol import Batch, Job, Local, Method, Outcome, Tree
from benchmark.models.build import Model
from benchmark.optimizer import Constant
from sweeps.blank_data import SureReader, blank_environment
from sweeps.meta import META, WithoutNumbers, network_on_meta

MILD = 1e-3  # a learning rate without divergence

# Seconds on one core of the reference processor, an AMD EPYC: per torch operation, per FLOP, per pixel of each view,
# and per round, for the Trainer, the run record and the observers. `python -m tests.performance.estimates` compares
# them with recorded runs.
OPERATION_SECONDS, FLOP_SECONDS = 1.6e-5, 2.6e-11
PIXEL_SECONDS = {"plain": 5e-10, "weak": 2.5e-9, "weak2": 2.5e-9, "strong": 1.2e-8}
ROUND_SECONDS = 0.003

COUNTS = ("local_steps", "flops", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class Note:
    """A sentence that explains why counts are not exact, and the names of these counts."""

    text: str
    at_most: frozenset[str] = frozenset()  # upper bounds: smaller with fewer confident pseudo-labels or changes
    about: frozenset[str] = frozenset()  # estimates
    factor: float = 1.75  # largest allowed ratio between the sum over a run and its estimate


ALL_CONFIDENT = Note(
    "all pseudo-labels count as confident, so steps, bytes and time that depend on them are upper bounds",
    at_most=frozenset({"local_steps", "bytes_up"}),
)
WHOLE_CHANGES = Note(
    "some methods send only changed weights, but their bytes are counted for whole weights, as an upper bound",
    at_most=frozenset({"bytes_up", "bytes_down"}),
)
BY_REPORTS = Note(
    "the server's messages depend on the clients' reports, so bytes down are an estimate",
    about=frozenset({"bytes_down"}),
    factor=2.5,
)
BY_PARTITION = Note(
    "the number of steps per pass depends on the partition, so the totals assume equally large clients",
    about=frozenset({"local_steps", "bytes_up", "bytes_down"}),
)

BY_COHORTS = Note(
    "each client that is ever drawn downloads the untrained weights once, and their number depends on the seed",
    about=frozenset({"bytes_down"}),
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The total cost of jobs, rounds or runs. `seconds` are an estimate; `notes` name other counts that are inexact."""

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
        """Return whole numbers, FLOPs, hours and notes as JSON values, for `side_by_side` runs at a time."""
        whole_numbers = {name: round(getattr(self, name)) for name in COUNTS if name != "flops"}
        hours = self.seconds / 3600 / side_by_side
        texts = list(dict.fromkeys(note.text for note in self.notes))
        return {**whole_numbers, "flops": self.flops, "hours": hours, "notes": texts}


def step_seconds(flops: float, operations: float) -> float:
    """Return the seconds for FLOPs and their operations on a core of the reference processor."""
    return flops * FLOP_SECONDS + operations * OPERATION_SECONDS


class MetaEnvironment(Environment):
    """An environment with networks on the meta device."""

    def network(self, model: Model | None = None, device: str | torch.device = CPU) -> nn.Module:
        return network_on_meta(model or self.experiment.model, self.data.image_shape, self.data.num_classes)

    def pass_cost(self, images: Mapping[str, int], model: Model | None = None) -> Cost:
        """Return the cost of a pass of images through a network in evaluation mode. `images` are numbers by view."""
        model = model or self.experiment.model
        N = sum(images.values())
        flops, operations = pass_of(model, self.data.image_shape, self.data.num_classes)
        chunks = -(-N // CHUNK)
        seconds = step_seconds(N * flops, chunks * operations) + self.view_seconds(images)
        return Cost(flops=N * flops, seconds=seconds)

    def view_seconds(self, images: Mapping[str, int]) -> float:
        """Return the seconds for computing the views of these images."""
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
    """Runs jobs on the meta device with one local step per phase, and adds up the costs of whole jobs."""

    def __init__(self, environment: MetaEnvironment, counter: WithoutNumbers) -> None:
        super().__init__(environment)
        self._environment: MetaEnvironment = environment
        self._device = META  # device of jobs; labels stay on the CPU, since readers read their values
        self._counter = counter
        self._cost = Cost()

    def play(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, Cost]:
        """Return the job's outcome, and its cost without the bytes that it receives."""
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
        """Return the module that trains the job, and one empty batch per phase instead of the job's batches."""
        module, batches = super()._training(job, local, round_number, *arguments, **named)
        module.fused = False  # torch has no fused kernel for the meta device
        sources = sources_of(job, self._environment, round_number, local.selected)
        return module, self._first_steps(job, sources, batches)

    def _first_steps(self, job: Job, sources: Mapping[str, Part], batches: JobBatches) -> Iterator[LocalBatch]:
        """Yield one batch per phase. After the steps on them, add the cost of all steps of the job."""
        sizes = {name: min(job.data[name].batch_size, len(source)) for name, source in sources.items()}
        streams = {}
        views = Counter[str]()
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
    """Return a batch on the meta device, with labels if the source has labels."""
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
        """Return the bytes of the clients in these rounds: K (1 - (1 - clients / K)^rounds)."""
        if not self.bytes_each:
            return Cost()
        has_part = self.K * (1 - (1 - self.clients / self.K) ** rounds)
        notes = (BY_COHORTS,) if self.clients < self.K else ()
        return Cost(bytes_down=self.bytes_each * has_part, notes=notes)


class RoundCounter:
    """Counts the rounds of a new run, independently of its seed and partition. Client state lasts between rounds."""

    def __init__(self, run: Experiment) -> None:
        """Prepare the run's environment without images. Raise ConfigError if the run itself would."""
        known = blank_environment(run)
        self._environment = MetaEnvironment(
            experiment=known.experiment, data=known.data, split=known.split, assignment=known.assignment
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
        """Return the bytes that clients download with their first job, by the last round that was played."""
        return FirstDownloads(bytes_each=self._once, K=self._environment.K, clients=len(self._clients))

    def play(self, number: int) -> Cost:
        """Count the cost of a round, with its share of the evaluations."""
        environment = self._environment
        method = environment.experiment.method
        self._cost = Cost()
        self._clients = set()
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
            private = self._kept.get(job.state_key)
            bytes_down = tree_bytes(job.receives, self._environment.tied)
            if job.key.client >= 0:
                self._clients.add(job.key.client)
                self._once = max(self._once, self._environment.fixed_bytes(job.network))
            kind = (self._kind(job, number), bytes_down, tree_bytes(private or {}))
            if kind not in self._kinds:
                self._kinds[kind] = self._runner.play(job, number, private)
            outcome, cost = self._kinds[kind]
            if job.key.client >= 0:
                self._cost += replace(cost, bytes_down=bytes_down)
            else:  # jobs of the server send nothing over the network
                self._cost += replace(cost, bytes_up=0, bytes_down=0)
            if outcome.private is not None:
                self._kept[job.state_key] = outcome.private
            yield replace(outcome, key=job.key)

    def _kind(self, job: Job, number: int) -> Hashable:
        """Return the properties that jobs with equal costs share, besides their received trees and client state."""
        client = job.key.client
        images = [len(self._environment.part(client, part, number)) for part in ("labelled", "unlabelled")]
        work = (repr(job.update), job.network, job.limit, *job.data.items())
        return (min(client, 0), *images, *work, *job.receives)


def of_any_seed(run: Experiment) -> Experiment:
    """Return one run in place of all runs that differ only in seed, partition and learning rate."""
    optimizer = replace(run.optimizer, lr=MILD, server_lr=None, schedule=Constant())
    method = getattr(type(run.method), "planned", Method.planned)(run.method)  # a custom method need not inherit it
    return replace(run, seed=0, partition=Iid(), profile="custom", optimizer=optimizer, method=method)
