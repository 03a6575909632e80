"""What a run costs: local steps, FLOPs and bytes, and CPU seconds on this machine, told before it is run.

The method's own `round` is played for a few rounds that stand for all, over an engine that trains one job of each kind,
for one local step, and takes all others of the kind as equal to it. Images are those of a stand-in for the data set:
its size, equally large classes and clients, one picture for all; so no data set is needed. Between jobs weights are
shapes without numbers, which cost nothing to average; of a method that looks into its weights, the network's initial
ones. Seconds come from timing a few local steps of each kind of job; a finished run of the cell on
this machine knows them better.

Legend: N images, D classes.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmark.data.datasets import DATASETS, DataSet, load
from benchmark.data.partition import Iid
from benchmark.experiment import Experiment
from benchmark.federated.batches import sources_of, steps_of
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.jobs import JobRunner, keeper_of
from benchmark.federated.start import usable_cores
from benchmark.federated.trees import tree_bytes
from benchmark.methods.protocol import (
    SERVER,
    Job,
    Limit,
    LocalUpdate,
    Outcome,
    PartName,
    Reader,
    State,
    Tree,
    Weights,
)
from benchmark.models.build import ImageShape, Model, build, forward_flops
from benchmark.optim.sgd import Constant
from benchmark.records.files import read_json
from benchmark.records.provenance import hardware
from benchmark.records.record import result_if_whole
from benchmark.streams import numpy_stream, torch_stream

MOST_ROUNDS = 16  # rounds of a run that are played
STEPS_TIMED = 5  # at most, and for no longer than a long step
STEP_FLOPS = 2e9  # of a step that is trained for its cost: a longer one is trained with fewer images
LONG_STEP = 0.2  # seconds; a longer one is told well enough by itself
ROUND_SECONDS = 0.003  # the Trainer's own, the record's line and the observers' share of a round, as measured
RUN_SECONDS = 0.5  # of a run: data, partition, Trainer, saves, weights on disk, as measured
MILD = 1e-3  # a learning rate
SURE = 50.0  # a logit beside zeros: probability 1 in float32
ENGINE = "pool"  # what launchers train with, in one process

AT_MOST = "all pseudo-labels are taken as confident: where steps, bytes or time depend on them, this is the most"
ESTIMATED = "the rounds differ: counted on a sample of them, so the totals are estimates"
AT_LEAST = "some methods send only what has changed: their bytes are those of small changes, the least"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Sums over runs. `core_seconds` is an estimate, the rest is counted, except as the notes say."""

    local_steps: int = 0
    flops: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    core_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        numbers = [f.name for f in fields(Cost) if f.name != "notes"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in numbers}
        return Cost(**sums, notes=tuple(dict.fromkeys(self.notes + other.notes)))

    def to_json(self) -> dict[str, Any]:
        cores = usable_cores()
        plain = asdict(self)
        hours = plain.pop("core_seconds") / 3600 / cores
        return {**plain, "hours": hours, "cores": cores, "notes": list(self.notes)}


def cost_of(run: Experiment, results: Path, data_root: Path | None = None) -> Cost:
    """What the whole run costs, from its first round to its last, without the start of its process."""
    folders = (results / "runs" / run.cell_key).glob("seed=*")
    finished = [found["cpu_seconds"] for folder in folders if (found := measured(folder)) is not None]
    counted = count(run, data_root)
    return Cost(
        local_steps=round(counted.totals["local_steps"]),
        flops=float(counted.totals["flops"]),
        bytes_up=round(counted.totals["bytes_up"]),
        bytes_down=round(counted.totals["bytes_down"]),
        core_seconds=fmean(finished) if finished else counted.seconds(),
        notes=counted.notes,
    )


def measured(folder: Path) -> Mapping[str, Any] | None:
    """`result.json` of a finished run with its "cpu_seconds"; None where the run is not done, is
    older than these fields, or is another machine's or engine's."""
    result = result_if_whole(folder)
    if result.get("status") != "done" or "cpu_seconds" not in result:
        return None
    manifest = read_json(folder / "manifest.json") or {}
    if manifest.get("hardware") != _hardware() or manifest.get("engine", {}).get("name") != ENGINE:
        return None
    return result


@cache
def _hardware() -> dict[str, Any]:
    return hardware()


# --- counting -----------------------------------------------------------------------------------------------------

Counts = Counter[Any]  # "local_steps", "flops", "bytes_up", "bytes_down", "images_read"; and jobs, by their kind


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One job of a kind, after a local step of it: what all of the kind do, and leave."""

    job: Job
    outcome: Outcome
    images_read: int = 0  # before the first step
    predicted: bool = False  # whether pseudo-labels decide what it trains on
    steps: int = 0  # of the whole job
    flops_a_step: float = 0.0
    seconds_a_step: float = 0.0  # of CPU time on one core


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One run, whatever its seed and partition."""

    totals: Counts
    samples: Mapping[Hashable, Sample]
    environment: Environment
    notes: tuple[str, ...]

    def seconds(self) -> float:
        """CPU seconds of all of the run but the start of its process."""
        experiment, split = self.environment.experiment, self.environment.split
        rounds, every = experiment.federation.rounds, experiment.evaluation.every
        tested = split.validation_N if experiment.evaluation.validation else self.environment.data.test_labels_N
        found = RUN_SECONDS + rounds * ROUND_SECONDS
        for kind, sample in self.samples.items():
            found += self.totals[kind] * sample.steps * sample.seconds_a_step
            if sample.steps and (exact := experiment.evaluation.gradient_diversity_every):
                size = self.environment.sizes.get(sample.job.key.client, 0)  # a gradient on all images of the holder
                batch = max(stream.batch_size for stream in sample.job.data.values())
                found += self.totals[kind] * sample.seconds_a_step * size / batch / exact
        flops = sum(sample.flops_a_step for sample in self.samples.values())
        seconds = sum(sample.seconds_a_step for sample in self.samples.values())
        forward_only = self.totals["images_read"] + (-(-rounds // every)) * len(tested)
        return found + forward_only * network_of(self.environment)[1] * seconds / max(flops, 1.0)


def count(experiment: Experiment, data_root: Path | None = None) -> Counted:
    """What all rounds of the run do. Evaluation is not in it. Raises ConfigError where the run itself would."""
    return _count(replace(experiment, seed=0, partition=Iid(), profile="custom"), data_root)


@cache
def _count(experiment: Experiment, data_root: Path | None) -> Counted:
    environment = stand_in(experiment, data_root)
    try:
        engine = SamplingEngine(environment, shapes)
        totals, exact = over_rounds(engine.rounds(), environment.experiment.federation.rounds)
    except RuntimeError:  # what PyTorch raises where a number is asked of a tensor of the meta device
        engine = SamplingEngine(environment, dict)
        totals, exact = over_rounds(engine.rounds(), environment.experiment.federation.rounds)
    predicted = any(sample.predicted for sample in engine.samples.values())
    changes = any(getattr(sample.job.update, "sends_changes", False) for sample in engine.samples.values())
    notes = {ESTIMATED: not exact, AT_MOST: predicted, AT_LEAST: changes}
    return Counted(
        totals=totals,
        samples=engine.samples,
        environment=engine.environment,
        notes=tuple(note for note, holds in notes.items() if holds),
    )


def stand_in(experiment: Experiment, data_root: Path | None = None) -> Environment:
    """The run's environment over a set of the data set's size: equally large classes and clients, one image for all,
    and a learning rate with which nothing diverges.

    A user's own folder of images is loaded for its size. Raises ConfigError where method and setting do not fit.
    """
    optimizer = replace(experiment.optimizer, lr=MILD, server_lr=None, schedule=Constant())
    mild = replace(experiment, partition=Iid(), optimizer=optimizer)
    return prepare(mild, data=_stand_in_set(experiment.data.name, data_root))


@cache
def _stand_in_set(name: str, data_root: Path | None) -> DataSet:
    if name in DATASETS:
        known = DATASETS[name]
        shape, num_classes = known.image_shape, known.num_classes
        N_train, N_test, N_extra = known.train, known.test, known.extra
    else:
        own = load(name, data_root)
        shape, num_classes = own.image_shape, own.num_classes
        N_train, N_test, N_extra = len(own.train_labels_N), len(own.test_labels_N), 0
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


def over_rounds(count_round: Callable[[int], Counts], rounds: int) -> tuple[Counts, bool]:
    """The sum over all rounds from at most `MOST_ROUNDS` of them, and whether it is exact.

    Rounds between two equal ones are taken as these; where two differ (a warm start's end, random cohorts), the widest
    gap is halved first, and what stays unseen takes the mean of its neighbours.
    """
    known = {number: count_round(number) for number in sorted({1, min(2, rounds), (rounds + 1) // 2, rounds})}
    while len(known) < MOST_ROUNDS:
        gaps = [(after - before, before) for before, after in pairwise(sorted(known))]
        unlike = [(width, before) for width, before in gaps if width > 1 and known[before] != known[before + width]]
        if not unlike:
            break
        width, before = max(unlike)
        known[before + width // 2] = count_round(before + width // 2)
    total: Counts = Counter()
    exact = True
    for number in known:
        total.update(known[number])
    for before, after in pairwise(sorted(known)):
        exact = exact and (after - before == 1 or known[before] == known[after])
        for name in known[before] | known[after]:
            total[name] += (known[before][name] + known[after][name]) * (after - before - 1) // 2
    return total, exact


class SamplingEngine:
    """An engine that trains the first job of each kind, for one local step: the others end as it does. `between`: what
    stands for a network's initial weights between jobs."""

    def __init__(self, environment: Environment, between: Callable[[Weights], Weights]) -> None:
        self.environment, self._between = environment, between
        self.samples: dict[Hashable, Sample] = {}
        self._counts: Counts = Counter()

    def rounds(self) -> Callable[[int], Counts]:
        """What counts a round of a new run; its state is that of the round counted before."""
        method = self.environment.experiment.method

        def initial_weights(model: Model | None = None) -> Weights:
            return self._between(network_of(self.environment, model)[0])

        state: State = method.init(replace(self.environment.setup(), initial_weights=initial_weights))
        kept: dict[str, Tree] = dict(state.clients)

        def count_round(number: int) -> Counts:
            nonlocal state
            self._counts = Counter()
            world = replace(
                self.environment.world(number, lambda jobs: self.fit(jobs, number, kept)),
                generator=lambda *names: numpy_stream(0, "round", number, *names),  # the same for every seed
            )
            state, _ = method.round(replace(state, clients=kept), world)
            return self._counts

        return count_round

    def fit(self, jobs: Sequence[Job], number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            private = kept.get(keeper_of(job))
            kind = kind_of(job, private)
            if kind not in self.samples:
                self.samples[kind] = self._sample(job, number, private)
            sample = self.samples[kind]
            outcome = replace(sample.outcome, key=job.key)
            if outcome.private is not None:
                kept[keeper_of(job)] = outcome.private
            self._counts["local_steps"] += sample.steps
            self._counts["images_read"] += sample.images_read
            _, forward = network_of(self.environment, job.network)
            self._counts["flops"] += round(sample.steps * sample.flops_a_step) + sample.images_read * forward
            self._counts[kind] += 1
            if job.key.client >= 0:
                self._counts["bytes_down"] += tree_bytes(job.receives)
                self._counts["bytes_up"] += tree_bytes(outcome.sends)
            yield outcome

    def _sample(self, job: Job, number: int, private: Tree | None) -> Sample:
        environment, run = self.environment, self.environment.experiment
        reader, real = SureReader(environment, job, number), network_of(environment, job.network)[0]

        def left(sends: Tree, private: Tree | None, weights: Weights) -> Outcome:
            return Outcome(
                key=job.key, sends=untrained(sends, weights), private=private and untrained(private, weights)
            )

        between = self._between(real)

        local = job.update.start(job.receives, private, reader)
        found = Sample(
            job=replace(job, receives={}),  # samples are kept, and weights are large
            outcome=Outcome(key=job.key, sends={}),
            images_read=reader.images_read,
            predicted=reader.predicted,
        )
        if local is None:  # this client sits out
            return found
        if not local.trainable:  # the job only reads
            return replace(found, outcome=left(job.update.finish(local), local.private, between))
        kind, data = kind_of(replace(job, limit=Limit()), None), environment.data  # a step's work, kept state or not
        of_run = (data.image_shape, data.num_classes, run.data.augmentation, alike(run.optimizer), run.precision)
        key = (kind, run.model, of_run)
        if key not in _trained:
            begun = replace(job, receives=untrained(job.receives, real))
            outcome, flops, seconds = trained(begun, private and untrained(private, real), environment)
            _trained[key] = left(outcome.sends, outcome.private, real), flops, seconds
        outcome, flops, seconds = _trained[key]
        steps = steps_of(job, sources_of(job, environment, number, local.selected))
        outcome = left(outcome.sends, outcome.private, between)
        return replace(found, outcome=outcome, steps=steps, flops_a_step=flops, seconds_a_step=seconds)


_trained: dict[Hashable, tuple[Outcome, float, float]] = {}  # what a local step left, its FLOPs and CPU seconds


def trained(job: Job, private: Tree | None, environment: Environment) -> tuple[Outcome, float, float]:
    """The job's outcome after one local step with real weights and confident pseudo-labels; a step's FLOPs, and its CPU
    seconds on one core. A long step is trained with fewer images."""
    _, forward = network_of(environment, job.network)
    images, least = images_a_step(job), min(stream.batch_size for stream in job.data.values())
    share = max(min(1.0, STEP_FLOPS / (3 * images * forward)), 2 / least)  # two products in the backward pass
    sizes = {name: max(1, round(stream.batch_size * share)) for name, stream in job.data.items()}
    data = {name: replace(stream, batch_size=sizes[name]) for name, stream in job.data.items()}
    sure = _Confident(job.update, SureReader(environment, job, 1))
    short = replace(job, update=cast(LocalUpdate, sure), data=data)

    def timed(runner: JobRunner, steps: int) -> tuple[Outcome, float]:
        started = time.process_time()
        outcome = runner.run(replace(short, limit=Limit(steps=steps)), 1, private)
        return outcome, (time.process_time() - started) / steps

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Each runner first makes its network and takes its memory. Not every kernel of the fast local step is one
        # whose FLOPs are counted.
        runner = JobRunner(environment)
        with FlopCounterMode(display=False) as counter:
            outcome, seconds = timed(runner, 1)
        if seconds > LONG_STEP:
            _, seconds = timed(runner, 1)
        else:
            runner = JobRunner(environment, fast=True)
            timed(runner, 1)
            _, seconds = timed(runner, max(1, min(STEPS_TIMED, round(LONG_STEP / seconds))))
    finally:
        torch.set_num_threads(threads)
    of_a_step = images / images_a_step(short) / len(job.update.phases)
    return outcome, counter.get_total_flops() * of_a_step, seconds * of_a_step


def images_a_step(job: Job) -> int:
    return sum(stream.batch_size * len(stream.views) for stream in job.data.values())


def kind_of(job: Job, private: Tree | None) -> Hashable:
    """Equal for jobs of a run that are taken as equal."""
    trees = (
        tuple((name, isinstance(value, dict) and len(value)) for name, value in tree.items())
        for tree in (job.receives, private or {})
    )
    streams = tuple(sorted(job.data.items()))
    return alike(job.update), job.network, job.limit, job.key.client == SERVER, streams, *trees


def alike(value: Any) -> Hashable:
    """What of a setting decides how much work it is: whether a rate or threshold is 0, and how many of something."""
    if is_dataclass(value):
        return type(value), *(alike(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, float):
        return value == 0.0
    return len(value) if isinstance(value, tuple) else repr(value)


def untrained(tree: Mapping[str, Any], initial: Weights) -> Tree:
    """The tree with the network's initial weights, which all jobs share, in place of trained ones."""
    found = dict(tree)
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found[name] = untrained(value, initial)
        elif name in initial and value.shape == initial[name].shape:
            found[name] = initial[name].to(value.dtype)
    return found


def shapes(weights: Weights) -> Weights:
    return {name: value.to("meta") for name, value in weights.items()}


class SureReader:
    """A `Reader` without images: every prediction is certain, the classes in turn; images are only counted."""

    def __init__(self, environment: Environment, job: Job, number: int) -> None:
        self.draw = torch_stream(0, "cost", number, job.key.client, job.key.draw)
        self.images_read, self.predicted = 0, False
        self._environment, self._holder, self._number = environment, job.key.client, number

    def _read(self, part: PartName) -> int:
        N = len(self._environment.part(self._holder, part, self._number))
        self.images_read += N
        return N

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        self.predicted = True
        N, D = self._read(part), self._environment.data.num_classes
        logits_ND = torch.zeros(N, D)
        logits_ND[torch.arange(N), torch.arange(N) % D] = SURE
        return logits_ND

    def labels(self, part: PartName) -> Tensor:
        """No image is read for them; classes in turn."""
        N = len(self._environment.part(self._holder, part, self._number))
        return torch.arange(N) % self._environment.data.num_classes

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        N = self._read(part)
        of_norms = ("running_mean", "running_var")
        found = {name: value.double() for name, value in weights.items() if name.endswith(of_norms)}
        return (found, N if pooled else -(-N // batch_size)) if N else ({}, 0)

    def on_noise(self, weights: Weights) -> Tensor:
        self.images_read += 1
        return torch.zeros(self._environment.data.num_classes)


class _Confident:
    """An update that finds all its pseudo-labels confident: what takes longest, whatever the stand-in images say."""

    def __init__(self, update: LocalUpdate, reader: Reader) -> None:
        self._update, self._reader = update, reader

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Any:
        return self._update.start(received, private, self._reader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


def network_of(environment: Environment, model: Model | None = None) -> tuple[Weights, int]:
    """The initial weights of the experiment's network, or a sub-network, and the FLOPs of one image's forward pass."""
    data = environment.data
    return _network_of(model or environment.experiment.model, data.image_shape, data.num_classes)


@cache
def _network_of(model: Model, image_shape: ImageShape, num_classes: int) -> tuple[Weights, int]:
    network = build(model, image_shape, num_classes, seed=0)
    return weights_of(network), forward_flops(network, image_shape)
