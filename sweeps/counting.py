"""Counts what a round costs, by playing it without data.

The method's own `round` gives out its jobs. Each job is started, and `steps_of` counts its local steps. The first job
of a kind is trained for one real step of at most 32 images; its outcome stands for all jobs of the kind. Between jobs
weights are thin: one number in place of each tensor. Averages then cost nothing, and methods that compute with weights
still find numbers. A stand-in replaces the data set: of its size, with equally large classes and clients, and the same
picture for all images.

Legend: N images, D classes.
"""

import sys
import time
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmark.data.datasets import DATASETS, DataSet, load
from benchmark.data.partition import Iid
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.batches import sources_of, steps_of
from benchmark.federated.devices import prepare_torch
from benchmark.federated.environment import Environment, Part, prepare, weights_of
from benchmark.federated.evaluate import chunk_of, logits_of
from benchmark.federated.jobs import JobRunner, keeper_of
from benchmark.federated.start import CPU
from benchmark.federated.trees import moved, tree_bytes
from benchmark.losses.confident import pass_all_images
from benchmark.methods.calls import finished, first_state, play_round, started
from benchmark.methods.protocol import SERVER, Job, Limit, Local, LocalUpdate, Outcome, PartName, Tree, Weights
from benchmark.models.build import Model, build, flop_counter, forward_flops, network_class
from benchmark.models.classifier import Classifier
from benchmark.optim.sgd import Constant
from benchmark.streams import numpy_stream, torch_stream

IMAGES = 32  # of each stream in a trained step, at most
HEAVY = 2e10  # FLOPs of a step of so many images: above it, fewer are trained, and the step is not timed
TRAINED_FLOP = 1.25  # CPU seconds in terms of those of an evaluated one, measured with ResNet-18 and WRN-28-2
PASS_FLOPS = 1e10  # of the evaluation that is timed
TIMED_SECONDS, TIMED_STEPS = 0.06, 16  # a light step is timed for about so long, and so many times at most
ROUND_SECONDS = 0.003  # of a round: the Trainer, the record and the observers, as measured
MILD = 1e-3  # a learning rate with which nothing diverges
SURE = 50.0  # a logit among zeros: probability 1 in float32

AT_MOST = "all pseudo-labels are taken as confident: where steps, bytes or time depend on them, this is the most"
BY_REPORTS = "what the server sends depends on what clients report: bytes down are those of the first round"
AT_LEAST = "some methods send only what has changed: their bytes are those of small changes, the least"
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


def stand_in(experiment: Experiment, data_root: Path | None = None) -> Environment:
    """The run's environment over a set of the data set's size: equally large classes and clients, one image for all.

    A user's own folder of images is loaded for its size. Raises ConfigError where method and setting do not fit.
    """
    settings = experiment.data
    split = replace(experiment, partition=Iid(), data=replace(settings, pooled_test=0))
    return prepare(split, data=_stand_in_set(settings.name, settings.pooled_test, data_root))


@cache
def _stand_in_set(name: str, pooled_test: int, data_root: Path | None) -> DataSet:
    if name in DATASETS:
        known = DATASETS[name]
        shape, num_classes = known.image_shape, known.num_classes
        N_train, N_test, N_extra = known.train, known.test, known.extra
    else:
        own = load(name, data_root)
        shape, num_classes = own.image_shape, own.num_classes
        N_train, N_test, N_extra = len(own.train_labels_N), len(own.test_labels_N), 0
    if pooled_test:  # no image is moved for it
        if pooled_test >= N_train + N_test:
            raise ConfigError(f"pooled_test: {pooled_test} of the {N_train + N_test:,} images of {name}; choose fewer")
        N_train, N_test = N_train + N_test - pooled_test, pooled_test
    image_CHW = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return DataSet(
        name=name,
        train_images_NCHW=image_CHW.expand(N_train, *shape),
        train_labels_N=torch.arange(N_train) % num_classes,
        test_images_NCHW=image_CHW.expand(N_test, *shape),
        test_labels_N=torch.arange(N_test) % num_classes,
        unlabelled_images_NCHW=image_CHW.expand(N_extra, *shape) if N_extra else None,
        classes=tuple(map(str, range(num_classes))),
        mean=(0.5,) * shape[0],
        std=(0.5,) * shape[0],
        content_hash="stand-in",
    )


# --- the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Step:
    """One local step of a kind of job, and what a job of this kind leaves."""

    outcome: Outcome
    bytes_up: int
    flops: float
    seconds: float  # of one core or CUDA device


_steps: dict[Hashable, Step] = {}  # by kind of job, network, shape of the data and device: many cells share them


class CountingEngine:
    """Counts the rounds of a new run. Private state is kept from round to round."""

    def __init__(self, experiment: Experiment, data_root: Path | None = None, device: str = CPU) -> None:
        """Raises ConfigError where the run itself would."""
        self._device = torch.device(device)
        prepare_torch(self._device, experiment.precision)
        optimizer = replace(experiment.optimizer, lr=MILD, server_lr=None, schedule=Constant())
        self._environment = stand_in(replace(experiment, optimizer=optimizer), data_root)
        setup = replace(self._environment.setup(), initial_weights=self._initial_weights)
        self._state = first_state(experiment.method, setup)
        self._kept: dict[str, Tree] = dict(self._state.clients)
        self._plain = _Runner(self._environment, device=device)
        self._fast = _Runner(self._environment, device=device, fast=True)  # as launchers train
        self._cost = Cost()

    def _initial_weights(self, model: Model | None = None) -> Weights:
        initial = network_of(self._environment, model)[0]
        return thin(initial, initial)

    def play(self, number: int) -> Cost:
        """What this round costs, with its share of the measurements; rounds are played in ascending order."""
        method, evaluation = self._environment.experiment.method, self._environment.experiment.evaluation
        self._cost = Cost()
        world = replace(
            self._environment.world(number, lambda jobs: self.fit(jobs, number, self._kept)),
            generator=lambda *names: numpy_stream(0, "round", number, *names),  # the same for every seed
        )
        self._state, _ = play_round(method, replace(self._state, clients=self._kept), world)
        voters = method.voters(self._state) if hasattr(method, "voters") else []
        tested = self._environment.split.validation_N if evaluation.validation else self._environment.data.test_labels_N
        seconds = max(1, len(voters)) * len(tested) * pass_seconds(self._environment, self._device) / evaluation.every
        notes = (BY_REPORTS,) if getattr(method, "sends_by_reports", False) else ()
        return self._cost + Cost(seconds=seconds + ROUND_SECONDS, notes=notes)

    def fit(self, jobs: Sequence[Job], number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            initial = network_of(self._environment, job.network)[0]
            private = kept.get(keeper_of(job))
            job = replace(job, receives=whole(job.receives, initial))
            outcome, cost = self._counted(job, number, private and whole(private, initial))
            if job.key.client >= 0:
                cost += Cost(bytes_down=tree_bytes(job.receives))
            else:
                cost = replace(cost, bytes_up=0)
            self._cost += cost
            if outcome.private is not None:
                kept[keeper_of(job)] = outcome.private
            yield outcome

    def _counted(self, job: Job, number: int, private: Tree | None) -> tuple[Outcome, Cost]:
        """What the job leaves, and its cost without the bytes that it receives."""
        reader = SureReader(self._environment, job, number)
        local = started(job.update, job.receives, private, reader)
        cost = Cost(notes=(AT_MOST,) if reader.predicted else ())
        if reader.images_read:
            forward = reader.images_read * network_of(self._environment, job.network)[1]
            seconds = reader.images_read * pass_seconds(self._environment, self._device, job.network)
            cost += Cost(flops=forward, seconds=seconds)
        if local is None:  # this client sits out
            return Outcome(key=job.key, sends={}), cost
        if not local.trainable:  # the job only reads
            sends = finished(job.update, local)
            return Outcome(key=job.key, sends=sends, private=local.private), cost + Cost(bytes_up=tree_bytes(sends))
        step = self._step(job, local, number, private)
        steps = steps_of(job, sources_of(job, self._environment, number, local.selected))
        trained = steps * step.seconds
        if exact := self._environment.experiment.evaluation.gradient_diversity_every:
            batch = max(stream.batch_size for stream in job.data.values())
            trained += step.seconds * self._environment.sizes.get(job.key.client, 0) / batch / exact
        cost += Cost(
            local_steps=steps,
            flops=steps * step.flops,
            bytes_up=step.bytes_up,
            seconds=trained,
            notes=(AT_LEAST,) if getattr(job.update, "sends_changes", False) else (),
        )
        return replace(step.outcome, key=job.key), cost

    def _step(self, job: Job, local: Local, number: int, private: Tree | None) -> Step:
        run, data = self._environment.experiment, self._environment.data
        of_run = (run.model, data.image_shape, data.num_classes, run.data.augmentation, run.precision, self._device)
        key = (kind_of(job, local), alike(run.optimizer), *of_run)
        if key not in _steps:
            initial, step = network_of(self._environment, job.network)[0], self._trained_step(job, private, number)
            sends, private = (moved(tree, torch.device(CPU)) for tree in (step.outcome.sends, step.outcome.private))
            left = replace(step.outcome, sends=thin(sends, initial), private=private and thin(private, initial))
            _steps[key] = replace(step, outcome=left)
        return _steps[key]

    def _trained_step(self, job: Job, private: Tree | None, number: int, fewest: int = 1) -> Step:
        """The job after one real local step with confident pseudo-labels; FLOPs and seconds are those of a whole step.

        A light step is timed by itself, and on CUDA any step, with all its images. A heavy one is trained with `fewest`
        images of each stream; its seconds are its FLOPs at the speed of its network in evaluations.
        """
        environment, on_cpu = self._environment, self._device.type == CPU
        forward = network_of(environment, job.network)[1]
        few = with_images(job, environment, IMAGES if on_cpu else sys.maxsize)
        heavy = on_cpu and 3 * forward * images_a_step(few) > HEAVY  # the backward pass has two products for each one
        if heavy:
            few = with_images(job, environment, fewest)
        share = images_a_step(job) / images_a_step(few) / len(job.update.phases)
        # Not every kernel of the fast local step is one whose FLOPs are counted.
        try:
            with flop_counter() as counter:
                outcome = self._plain.run(replace(few, limit=Limit(steps=1)), number, private)
        except ValueError:  # a batch norm that has a single value of a channel
            if not heavy or fewest > 1:
                raise
            return self._trained_step(job, private, number, fewest=2)
        flops = counter.get_total_flops() * share
        sent = tree_bytes(outcome.sends)
        if heavy:
            seconds = flops * TRAINED_FLOP * pass_seconds(environment, self._device, job.network) / forward
            return Step(outcome=outcome, bytes_up=sent, flops=flops, seconds=seconds)
        first = timed(self._fast, few, private, number)  # makes its network and takes its memory
        steps = max(1, min(TIMED_STEPS, round(TIMED_SECONDS / first))) if on_cpu else TIMED_STEPS
        seconds = timed(self._fast, few, private, number, steps)
        return Step(outcome=outcome, bytes_up=sent, flops=flops, seconds=seconds * share)


def kind_of(job: Job, local: Local) -> Hashable:
    """Equal for jobs of which a local step is equal work, and which leave equal trees."""
    streams = tuple(sorted(job.data.items()))
    weight_sets = (tuple(local.trainable), tuple(local.frozen))
    return alike(job.update), job.network, job.key.client == SERVER, streams, *weight_sets


def alike(value: Any) -> Hashable:
    """What of a setting decides a step's work: whether a rate or threshold is 0, and how many of something."""
    if is_dataclass(value):
        at_server = getattr(value, "server_settings", ())
        return type(value), *(alike(getattr(value, f.name)) for f in fields(value) if f.name not in at_server)
    if isinstance(value, float):
        return value == 0.0
    return len(value) if isinstance(value, tuple) else repr(value)


def thin(tree: Mapping[str, Any], initial: Weights) -> Tree:
    """The tree with one number in place of each weight of the network; what has another shape stays as it is."""
    result = dict(tree)
    for name, value in tree.items():
        if name in initial:  # whole, or a mapping of its changes (FedMatch)
            known = initial[name]
            whole_one = isinstance(value, Mapping) or value.shape == known.shape
            result[name] = known.reshape(-1)[:1].reshape((1,) * known.dim()) if whole_one else value
        elif isinstance(value, Mapping):
            result[name] = thin(value, initial)
    return result


def whole(tree: Mapping[str, Any], initial: Weights) -> Tree:
    """The tree with the network's initial weights in place of thin ones."""
    result = dict(tree)
    for name, value in tree.items():
        if isinstance(value, Mapping):
            result[name] = whole(value, initial)
        elif name in initial and value.numel() == 1:
            result[name] = initial[name].to(value.dtype)
    return result


# --- one local step -----------------------------------------------------------------------------------------------


_networks: dict[Hashable, nn.Module] = {}  # a job trains copies of them


class _Runner(JobRunner):
    """Passes every image through the network, whatever its pseudo-label: an untrained network is sure of none.

    A network is built once for all cells; its weights are loaded for each job.
    """

    def _network(self, model: Model | None) -> nn.Module:
        run, data = self._environment.experiment, self._environment.data
        key = (model or run.model, data.image_shape, data.num_classes, self._device, self._fast)
        if key not in _networks:
            _networks[key] = super()._network(model)
            pass_all_images(_networks[key])
        return _networks[key]


def with_images(job: Job, environment: Environment, most: int) -> Job:
    """The job with confident pseudo-labels and no more than so many images of each stream in a step."""
    data = {name: replace(stream, batch_size=min(stream.batch_size, most)) for name, stream in job.data.items()}
    return replace(job, data=data, update=cast(LocalUpdate, _Confident(job.update, environment, job)))


def images_a_step(job: Job) -> int:
    return sum(stream.batch_size * len(stream.views) for stream in job.data.values())


def clock(device: torch.device) -> float:
    """CPU seconds of this process; of a CUDA device the time, once it has done all that it was given."""
    if device.type == CPU:
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(runner: _Runner, job: Job, private: Tree | None, number: int, steps: int = 1) -> float:
    """Seconds of one of so many steps, each in every phase."""
    began = clock(runner._device)
    runner.run(replace(job, limit=Limit(steps=steps)), number, private)
    return (clock(runner._device) - began) / steps


class _Confident:
    """An update that finds all its pseudo-labels confident: what takes longest, whatever the stand-in images say."""

    def __init__(self, update: LocalUpdate, environment: Environment, job: Job) -> None:
        self._update, self._environment, self._job = update, environment, job

    def start(self, received: Tree, private: Tree | None, reader: Any) -> Local | None:
        return self._update.start(received, private, SureReader(self._environment, self._job, 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


class SureReader:
    """A `Reader` without images: every prediction is certain, the classes in turn; images are only counted."""

    def __init__(self, environment: Environment, job: Job, number: int) -> None:
        self.draw = torch_stream(0, "cost", number, job.key.client, job.key.draw)
        self.images_read, self.predicted = 0, False
        self._environment, self._holder, self._number = environment, job.key.client, number

    def _count(self, part: PartName) -> int:
        return len(self._environment.part(self._holder, part, self._number))

    def _read(self, part: PartName) -> int:
        N = self._count(part)
        self.images_read += N
        return N

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        self.predicted = True
        N, D = self._read(part), self._environment.data.num_classes
        logits_ND = torch.zeros(N, D)
        logits_ND[torch.arange(N), torch.arange(N) % D] = SURE
        return logits_ND

    def features(self, weights: Weights, part: PartName, view: str) -> Tensor:
        head = cast(type[Classifier], network_class(self._environment.experiment.model.network)).head
        return torch.zeros(self._read(part), weights[f"{head}.weight"].shape[1])

    def labels(self, part: PartName) -> Tensor:
        """No image is read for them."""
        return torch.arange(self._count(part)) % self._environment.data.num_classes

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        N = self._read(part)
        of_norms = ("running_mean", "running_var")
        statistics = {name: value.double() for name, value in weights.items() if name.endswith(of_norms)}
        return (statistics, N if pooled else -(-N // batch_size)) if N else ({}, 0)

    def on_noise(self, weights: Weights) -> Tensor:
        self.images_read += 1
        return torch.zeros(self._environment.data.num_classes)


# --- the network --------------------------------------------------------------------------------------------------


def network_of(environment: Environment, model: Model | None = None) -> tuple[Weights, int]:
    """The initial weights of the experiment's network, or a sub-network, and the FLOPs of one image's forward pass."""
    data = environment.data
    return _network_of(model or environment.experiment.model, data.image_shape, data.num_classes)


@cache
def _network_of(model: Model, image_shape: tuple[int, int, int], num_classes: int) -> tuple[Weights, int]:
    network = build(model, image_shape, num_classes, seed=0)
    return weights_of(network), forward_flops(network, image_shape)


_pass_seconds: dict[Hashable, float] = {}


def pass_seconds(environment: Environment, device: torch.device, model: Model | None = None) -> float:
    """Seconds of one image's pass in evaluation mode, with its view, in chunks as they are evaluated."""
    data = environment.data
    key = (model or environment.experiment.model, data.image_shape, data.num_classes, device)
    if key not in _pass_seconds:
        chunk = min(chunk_of(data.image_shape, device), len(data.test_labels_N))
        affordable = round(PASS_FLOPS / network_of(environment, model)[1]) if device.type == CPU else chunk
        N = max(1, min(chunk, affordable))
        images_NCHW, positions_N = data.test_images_NCHW[:N].to(device), torch.arange(N, device=device)
        part = Part(images_NCHW=images_NCHW, positions_N=positions_N, labels_N=None, truth_N=None)
        network = environment.network(model, device)
        if chunk == N:
            logits_of(network, environment, part)  # takes its memory: of a heavy network a small share of a pass
        began = clock(device)
        logits_of(network, environment, part)
        _pass_seconds[key] = (clock(device) - began) / N
    return _pass_seconds[key]
