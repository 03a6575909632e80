"""Counts what a round costs: the method's own `round` is played with one number in place of each weight.

Each job is started, and `steps_of` counts its local steps. One local step of each kind of job is taken with whole
weights on torch's meta device, which have no numbers; its FLOPs and its outcome stand for all jobs of the kind. A
stand-in replaces the data set.

Legend: N images of a batch, C channels, H W pixels.
"""

import copy
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from random import Random
from typing import Any

import torch
from torch import nn

from benchmark.data.partition import Iid
from benchmark.experiment import Experiment
from benchmark.federated.batches import LocalBatch, sources_of, steps_of
from benchmark.federated.environment import Environment, Part, weights_of
from benchmark.federated.evaluate import CHUNK
from benchmark.federated.jobs import keeper_of
from benchmark.federated.local import module_class, outcome_of, train
from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.trees import moved, tree_bytes
from benchmark.methods.calls import finished, first_state, play_round, started, voters_of
from benchmark.methods.protocol import SERVER, Batch, Job, Local, Outcome, Tree, Weights
from benchmark.models.build import Model
from benchmark.models.classifier import ImageShape
from benchmark.optimizer import Constant
from benchmark.streams import numpy_stream
from sweeps.meta import META, WithoutNumbers, network_on_meta, thin, whole
from sweeps.speed import Work, speed_for
from sweeps.stand_in import SureReader, stand_in

MILD = 1e-3  # a learning rate with which nothing diverges
ROUND_SECONDS = 0.003  # of a round: the Trainer, the record and the observers, as measured

AT_MOST = "all pseudo-labels are taken as confident: where steps, bytes or time depend on them, this is the most"
BY_REPORTS = "what the server sends depends on what clients report: bytes down are those of the first round"
WHOLE_CHANGES = "some methods send only what has changed: their bytes are those of whole weights, the most"
ESTIMATED = "the rounds differ: counted on a sample of them, so the totals are estimates"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Sums over jobs, rounds or runs. `seconds`, of a core or CUDA device, is an estimate; notes say what else is."""

    local_steps: float = 0
    flops: float = 0
    bytes_up: float = 0
    bytes_down: float = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        sums = {name: getattr(self, name) + getattr(other, name) for name in NUMBERS}
        return Cost(**sums, notes=tuple(dict.fromkeys(self.notes + other.notes)))

    def __mul__(self, times: float) -> "Cost":
        products = {name: getattr(self, name) * times for name in NUMBERS}
        return Cost(**products, notes=self.notes if times else ())

    def to_json(self, side_by_side: int) -> dict[str, Any]:
        """`side_by_side`: runs at a time, each on a core or device of its own."""
        whole_numbers = {name: round(getattr(self, name)) for name in ("local_steps", "bytes_up", "bytes_down")}
        hours = self.seconds / 3600 / side_by_side
        return {**whole_numbers, "flops": self.flops, "hours": hours, "notes": list(self.notes)}


NUMBERS = [f.name for f in fields(Cost) if f.name != "notes"]


class RoundCounter:
    """Counts the rounds of a new run, whatever its seed and partition. Private state is kept from round to round."""

    def __init__(self, run: Experiment, device: str | None = None) -> None:
        """Count in a `stand_in` of the run's environment; seconds are those of a device, if it is named.

        Raise ConfigError if the run itself would.
        """
        self._environment = environment = stand_in(run)
        self._seconds_of = speed_for(environment, device).seconds_of if device else lambda work: 0.0
        self._kinds: dict[Hashable, tuple[Outcome, Cost]] = {}  # of jobs: what one leaves, and what its step costs
        self._of_networks: dict[Hashable, Weights] = {}
        self._numbers, self._draw = WithoutNumbers(), Random(0)
        setup = replace(environment.setup(), initial_weights=self._initial_weights)
        self._state = first_state(run.method, setup)
        self._kept: dict[str, Tree] = dict(self._state.clients)
        self._cost = Cost()

    def play(self, number: int) -> Cost:
        """Count what this round costs, with its share of the measurements; rounds are played in ascending order."""
        environment, method = self._environment, self._environment.experiment.method
        self._cost = Cost()
        world = replace(
            environment.world(number, lambda jobs: self._fit(jobs, number)),
            initial_weights=self._initial_weights,
            generator=partial(numpy_stream, 0, "round", number),  # the same for every seed
        )
        self._state, _ = play_round(method, replace(self._state, clients=dict(self._kept)), world)
        networks = max(1, len(voters_of(method, self._state)))
        evaluation = environment.experiment.evaluation
        tested = environment.split.validation_N if evaluation.validation else environment.data.test_labels_N
        passes = self._passes({"plain": networks * len(tested)})
        notes = (BY_REPORTS,) if getattr(method, "sends_by_reports", False) else ()
        return self._cost + Cost(seconds=passes.seconds / evaluation.every + ROUND_SECONDS, notes=notes)

    def _initial_weights(self, model: Model | None = None) -> Weights:
        weights = self._weights(model)
        return thin(weights, weights, 1.0)

    def _weights(self, model: Model | None) -> Weights:
        """Return the weights of the run's network, or of a sub-network, on the meta device."""
        described = self._described(model)
        if described not in self._of_networks:
            self._of_networks[described] = weights_of(network_on_meta(*described))
        return self._of_networks[described]

    def _described(self, model: Model | None) -> tuple[Model, ImageShape, int]:
        """Return what the network is made of; without a model that of the run."""
        data = self._environment.data
        return model or self._environment.experiment.model, data.image_shape, data.num_classes

    def _fit(self, jobs: Sequence[Job], round_number: int) -> Iterator[Outcome]:
        for job in jobs:
            weights = self._weights(job.network)
            job = replace(job, receives=whole(job.receives, weights))
            with self._numbers:
                outcome, cost = self._counted(job, round_number, weights)
            if job.key.client >= 0:
                self._cost += replace(cost, bytes_down=self._bytes(job.receives))
            else:  # what stays at the server crosses no network
                self._cost += replace(cost, bytes_up=0)
            number = self._draw.random()  # no two holders end with the same weights
            if outcome.private is not None:
                self._kept[keeper_of(job)] = thin(outcome.private, weights, number)
            yield replace(outcome, sends=thin(outcome.sends, weights, number))

    def _bytes(self, tree: Tree) -> int:
        return tree_bytes(tree, self._environment.tied)

    def _counted(self, job: Job, number: int, weights: Weights) -> tuple[Outcome, Cost]:
        """Return what the job leaves, and its cost without the bytes that it receives."""
        environment = self._environment
        reader = SureReader(environment, job, number)
        private = self._kept.get(keeper_of(job))
        local = started(job.update, job.receives, private and whole(private, weights), reader)
        cost = self._passes(reader.images_read, job.network) + Cost(notes=(AT_MOST,) if reader.predicted else ())
        if local is None:  # this client sits out
            return Outcome(key=job.key, sends={}), cost
        if not local.trainable:  # the job only reads
            sends = whole(finished(job.update, local), weights)
            outcome = Outcome(key=job.key, sends=sends, private=local.private)
            return outcome, cost + Cost(bytes_up=self._bytes(sends))
        sources = sources_of(job, environment, number, local.selected)
        batches = {name: min(stream.batch_size, len(sources[name])) for name, stream in job.data.items()}
        weight_sets = (tuple(local.trainable), tuple(local.frozen))
        kind = (repr(job.update), job.network, job.key.client == SERVER, *batches.items(), *weight_sets)
        if kind not in self._kinds:
            self._kinds[kind] = self._step(job, local, sources, batches)
        outcome, step = self._kinds[kind]
        cost += replace(step * steps_of(job, sources), bytes_up=step.bytes_up)
        if every := environment.experiment.evaluation.gradient_diversity_every:
            passes = environment.sizes.get(job.key.client, 0) / max(batches.values())
            cost += Cost(seconds=step.seconds * passes / every)
        return replace(outcome, key=job.key), cost

    def _step(
        self, job: Job, local: Local, sources: Mapping[str, Part], batches: Mapping[str, int]
    ) -> tuple[Outcome, Cost]:
        """Return what the job leaves after a step of each phase, and the cost of one of these steps.

        `batches`: images of each stream in a step.
        """
        network, run = network_on_meta(*self._described(job.network)), self._environment.experiment
        streams, views = {}, Counter[str]()
        for name, size in batches.items():
            streams[name] = empty_batch(self._environment, job.data[name].views, sources[name], size)
            views.update(dict.fromkeys(job.data[name].views, size))
        flops, operations = self._numbers.flops, self._numbers.operations
        outcome = outcome_of_step(job, local, network, run, streams)
        work = Work(flops=self._numbers.flops - flops, operations=self._numbers.operations - operations, views=views)
        phases = len(job.update.phases)
        cost = Cost(
            local_steps=1,
            flops=work.flops / phases,
            bytes_up=self._bytes(outcome.sends),
            seconds=self._seconds_of(work) / phases,
            notes=(WHOLE_CHANGES,) if getattr(job.update, "sends_changes", False) else (),
        )
        return outcome, cost

    def _passes(self, images: Mapping[str, int], model: Model | None = None) -> Cost:
        """Count passes of images, by their view, through a network in evaluation mode."""
        if not images:
            return Cost()
        one = pass_of(*self._described(model))
        N = sum(images.values())
        work = Work(flops=N * one.flops, operations=-(-N // CHUNK) * one.operations, views=images)
        return Cost(flops=work.flops, seconds=self._seconds_of(work))


def of_any_seed(run: Experiment) -> Experiment:
    """Return the run whose counts are those of all runs that differ in seed, partition and learning rate."""
    optimizer = replace(run.optimizer, lr=MILD, server_lr=None, schedule=Constant())
    return replace(run, seed=0, partition=Iid(), profile="custom", optimizer=optimizer)


def empty_batch(environment: Environment, views: Sequence[str], source: Part, size: int) -> Batch:
    """Return a batch on the meta device, with labels where the source has some."""
    images_NCHW = torch.empty(size, *environment.data.image_shape, device=META)
    numbers_N = torch.empty(size, dtype=torch.int64, device=META)
    return Batch(
        views=dict.fromkeys(views, images_NCHW),
        labels_N=None if source.labels_N is None else numbers_N,
        pseudo_labels_N=None if source.pseudo_labels_N is None else numbers_N,
        positions_N=numbers_N,
    )


def outcome_of_step(
    job: Job, local: Local, network: nn.Module, run: Experiment, streams: Mapping[str, Batch]
) -> Outcome:
    """Return what the job leaves after one local step of each of its phases, all on the meta device."""
    local = replace(local, **{name: moved(getattr(local, name), META) for name in ("trainable", "frozen", "momentum")})
    module = module_class(job)(job, local, network, run.optimizer, lambda step: 1.0)
    module.fused = False  # torch has no such kernel for the meta device
    phases = range(len(job.update.phases))
    momentum = train(module, [LocalBatch(streams=streams, truth_N=None, phase=phase) for phase in phases])
    module.pseudo = PseudoLabelQuality()  # that of no pseudo-labels: these have no numbers
    return outcome_of(job, module, momentum)


@cache
def pass_of(model: Model, image_shape: ImageShape, num_classes: int) -> Work:
    """Count the forward pass of one image in evaluation mode."""
    network = copy.deepcopy(network_on_meta(model, image_shape, num_classes)).eval()
    with WithoutNumbers() as counter, torch.no_grad():
        network(torch.empty(1, *image_shape, device=META))
    return Work(flops=counter.flops, operations=counter.operations, views={"plain": 1})
