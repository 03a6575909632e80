"""What a run costs: local steps, FLOPs and bytes counted from its jobs, and CPU seconds on this machine.

Counted: the method's own `round` over an engine that trains nothing, on a few rounds that stand for all. Weights are
stand-ins of one number a tensor, counted as large as the tensor they stand for. Images are those of a stand-in for the
data set: its size, equally large classes and clients, one picture for all. So no data set is needed.

Timed: one job of each kind (update, network, streams) of a few local steps with the reference engine. What has been
found of a cell is kept in `results/costs.json`; a finished run of the cell on this machine knows better than both.

Legend: N images, D classes.
"""

import contextlib
import copy
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmark.data.datasets import DATASETS, DataSet, load
from benchmark.data.partition import Iid
from benchmark.errors import CannotWrite, FsslError
from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.jobs import keeper_of
from benchmark.methods.protocol import (
    SERVER,
    Job,
    Limit,
    Local,
    LocalUpdate,
    Outcome,
    PartName,
    Reader,
    State,
    Stream,
    Training,
    Tree,
    Weights,
    World,
)
from benchmark.models.build import Model, forward_flops
from benchmark.records.files import read_json, write_json
from benchmark.records.provenance import hardware
from benchmark.records.record import read_rounds, run_folder
from benchmark.streams import numpy_stream, torch_stream

FILE = "costs.json"  # under the results
MOST_ROUNDS = 16  # rounds of a run that are counted
SECONDS_TO_TIME = 10.0  # of a command; kinds of jobs beyond it are estimated by arithmetic
LONG_STEP = 1.0  # seconds
STEPS_TIMED = 4  # more than the first one, which a job's start is told apart by
ROUND_SECONDS = 0.003  # the Trainer's own, the record's line and the observers' share of a round, as measured
RUN_SECONDS = 0.5  # of a run: data, partition, Trainer, checkpoints, weights on disk, as measured
FLOPS_A_SECOND = 1e10  # of a core, where nothing was timed
FLOAT = 4  # bytes
FORWARD_AND_BACKWARD = 3  # in forward passes: the backward pass computes two products where the forward has one
SURE = 50.0  # a logit beside zeros: probability 1 in float32
ENGINE = "reference"  # what launchers train with

AT_MOST = "all pseudo-labels are taken as confident: where steps, bytes or time depend on them, this is the most"
ESTIMATED = "the rounds differ: counted on a sample of them, so the totals are estimates"
BY_ARITHMETIC = "some times are estimated by arithmetic, from FLOPs: timing them would have taken too long"
UNCOUNTED = "some methods could not be counted without training: T steps for C clients and the server a round"


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
        cores = os.cpu_count() or 1
        plain = asdict(self)
        hours = plain.pop("core_seconds") / 3600 / cores
        return {**plain, "hours": hours, "cores": cores, "notes": list(self.notes)}


class Costs:
    """Costs of runs, each cell counted and timed once; `save` keeps them for the next command."""

    def __init__(self, results: Path, data_root: Path | None = None) -> None:
        self._results, self._data_root = results, data_root
        self._machine = {**hardware(), "torch": torch.__version__}
        kept = self._kept()
        self._known = {key: Cost(**{**cost, "notes": tuple(cost["notes"])}) for key, cost in kept.items()}
        self._stopwatch = Stopwatch()
        self._changed = False

    def _kept(self) -> dict[str, Any]:
        with contextlib.suppress(FsslError, TypeError, AttributeError):
            kept = read_json(self._results / FILE)
            if kept.get("machine") == self._machine:
                return dict(kept["costs"])
        return {}

    def of(self, run: Experiment) -> Cost:
        """What the whole run costs, from its first round to its last, without the start of its process."""
        key = f"{run.cell_key}-{run.evaluation.every}-{run.evaluation.gradient_diversity_every}"
        if key not in self._known:
            self._known[key] = self._cost(run)
            self._changed = True
        known = self._known[key]
        seconds = self._seconds_of_finished(run)
        return known if seconds is None else replace(known, core_seconds=seconds)

    def _cost(self, run: Experiment) -> Cost:
        counted = count(run, self._data_root)
        seconds, by_arithmetic = self._stopwatch.seconds(counted)
        totals = counted.totals
        return Cost(
            local_steps=round(totals["local_steps"]),
            flops=float(totals["flops"]),
            bytes_up=round(totals["bytes_up"]),
            bytes_down=round(totals["bytes_down"]),
            core_seconds=seconds,
            notes=(*counted.notes, *([BY_ARITHMETIC] if by_arithmetic else [])),
        )

    def save(self) -> None:
        """A folder that takes no file is passed over: the next command counts again."""
        if self._changed:
            costs = {key: asdict(cost) for key, cost in sorted(self._known.items())}
            with contextlib.suppress(CannotWrite):
                write_json(self._results / FILE, {"machine": self._machine, "costs": costs})
            self._changed = False

    def _seconds_of_finished(self, run: Experiment) -> float | None:
        folders = run_folder(self._results, run).parent.glob("seed=*")
        known = [found["cpu_seconds"] for folder in folders if (found := measured(folder)) is not None]
        return fmean(known) if known else None

    def share_left(self, run: Experiment) -> float:
        """What its rounds on disk leave of a run, by their local steps."""
        lines = read_rounds(run_folder(self._results, run) / "rounds.jsonl")
        total = self.of(run).local_steps if lines else 0
        taken = sum(line.get("local_steps", 0) for line in lines)
        return max(0.0, 1 - taken / total) if total else 1.0


def measured(folder: Path) -> Mapping[str, Any] | None:
    """`result.json` of a finished run with its "cpu_seconds" and "wall_seconds"; None where the run is not done, is
    older than these fields, or is another machine's or engine's."""
    result: dict[str, Any] = read_json(folder / "result.json") or {}
    if result.get("status") != "done" or "cpu_seconds" not in result:
        return None
    manifest = read_json(folder / "manifest.json") or {}
    if manifest.get("hardware") != _hardware() or manifest.get("engine", {}).get("name") != ENGINE:
        return None
    return result


@cache
def _hardware() -> dict[str, Any]:
    return hardware()


def local_steps(experiment: Experiment, data_root: Path | None = None) -> int:
    """All local steps of a run, at the server and at clients; at most so many where pseudo-labels decide."""
    return round(count(experiment, data_root).totals["local_steps"])


# --- counting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """Jobs that take the same time a local step."""

    update: type[LocalUpdate]
    network: Model | None
    at_server: bool
    streams: tuple[tuple[str, Stream], ...]


Counts = Counter[Any]  # "local_steps", "flops", ...; (JobKind, "jobs") and (JobKind, "steps")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One run, whatever its seed and partition."""

    totals: Counts
    examples: Mapping[JobKind, Job]
    environment: Environment
    notes: tuple[str, ...]


def count(experiment: Experiment, data_root: Path | None = None) -> Counted:
    """What all rounds of the run do. Evaluation is not in it. Raises ConfigError where the run itself would."""
    kind = replace(experiment, seed=0, partition=Iid(), profile="custom")
    return _count(kind, data_root)


@cache
def _count(experiment: Experiment, data_root: Path | None) -> Counted:
    environment = stand_in(experiment, data_root)
    rounds = experiment.federation.rounds
    engine = CountingEngine(environment)
    try:
        totals, exact = over_rounds(engine.rounds(), rounds)
    except FsslError:
        raise
    except Exception:  # a method that reads its weights, or another one's arithmetic, does not go with stand-ins
        return _by_arithmetic(environment)
    notes = {ESTIMATED: not exact, AT_MOST: totals["unsure"] > 0}
    return Counted(
        totals=totals,
        examples=engine.examples,
        environment=environment,
        notes=tuple(note for note, holds in notes.items() if holds),
    )


def _by_arithmetic(environment: Environment) -> Counted:
    federation, network = environment.experiment.federation, network_of(environment)
    jobs = federation.rounds * federation.C
    steps = (federation.rounds + jobs) * federation.T
    batch = getattr(environment.experiment.method, "batch_size", 32)
    sent = jobs * sum(network.sizes.values()) * FLOAT
    flops = steps * batch * FORWARD_AND_BACKWARD * network.flops
    totals = Counter({"local_steps": steps, "flops": flops, "bytes_up": sent, "bytes_down": sent})
    return Counted(totals=totals, examples={}, environment=environment, notes=(UNCOUNTED,))


def stand_in(experiment: Experiment, data_root: Path | None = None) -> Environment:
    """The run's environment over a set of the data set's size: equally large classes and clients, one image for all.

    A user's own folder of images is loaded for its size. Raises ConfigError where method and setting do not fit.
    """
    even = replace(experiment, partition=Iid())
    return prepare(even, data=_stand_in_set(experiment.data.name, data_root))


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


class CountingEngine:
    """An engine that trains nothing: every job's weights come back as they went in, plus a number."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.examples: dict[JobKind, Job] = {}
        self._counts: Counts = Counter()

    def rounds(self) -> Callable[[int], Counts]:
        """What counts a round of a new run; its state is that of the round counted before."""
        method, federation = self.environment.experiment.method, self.environment.experiment.federation
        setup = replace(
            self.environment.setup(), initial_weights=lambda: weights_of(network_of(self.environment).module)
        )
        state: State = method.init(setup)
        kept: dict[str, Tree] = dict(state.clients)

        def count_round(number: int) -> Counts:
            nonlocal state
            self._counts = Counter()
            world = World(
                round=number,
                rounds=federation.rounds,
                model=self.environment.experiment.model,
                K=self.environment.K,
                C=federation.C,
                T=federation.T,
                limit=Limit(steps=federation.T) if federation.epochs is None else Limit(epochs=federation.epochs),
                sizes=self.environment.sizes,
                labelled=self.environment.labelled,
                generator=lambda *names: numpy_stream(0, "round", number, *names),
                fit=lambda jobs: self.fit(jobs, number, kept),
            )
            state, _ = method.round(replace(state, clients=kept), world)
            return self._counts

        return count_round

    def fit(self, jobs: Sequence[Job], number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            outcome = self._run(job, number, kept.get(keeper_of(job)))
            if outcome.private is not None:
                kept[keeper_of(job)] = outcome.private
            if job.key.client >= 0:
                self._counts["bytes_down"] += self._bytes(job.receives, job.network)
                self._counts["bytes_up"] += self._bytes(outcome.sends, job.network)
            yield outcome

    def _run(self, job: Job, number: int, private: Tree | None) -> Outcome:
        reader = SureReader(self.environment, job, number, self._counts)
        read_before = self._counts["images_read"]
        local = job.update.start(job.receives, private, reader)
        flops = network_of(self.environment, job.network).flops
        self._counts["flops"] += flops * (self._counts["images_read"] - read_before)
        if local is None:
            return Outcome(key=job.key, sends={})
        if local.trainable:
            self._count_training(job, local, number, flops)
            self._after_training(job, local)
        return Outcome(key=job.key, sends=job.update.finish(local), private=local.private, steps=local.steps)

    def _count_training(self, job: Job, local: Local, number: int, flops: int) -> None:
        sizes = {
            name: len(local.selected[name].positions_N)
            if name in local.selected
            else len(self.environment.part(job.key.client, stream.part, number))
            for name, stream in job.data.items()
        }
        batches = batches_of(job, sizes)
        declared: Mapping[str, tuple[int, int]] = getattr(job.update, "passes", {})
        for name, stream in job.data.items():
            images = batches * min(stream.batch_size, sizes[name])
            for view in stream.views:
                without, trained = declared.get(f"{name}/{view}", declared.get(view, (0, 1)))
                self._counts["flops"] += flops * images * (without + FORWARD_AND_BACKWARD * trained)
        local.steps = batches * len(job.update.phases)
        kind = JobKind(
            update=type(job.update),
            network=job.network,
            at_server=job.key.client == SERVER,
            streams=tuple(sorted(job.data.items())),
        )
        self._counts["local_steps"] += local.steps
        self._counts[kind, "jobs"] += 1
        self._counts[kind, "steps"] += local.steps
        self.examples.setdefault(kind, job)

    def _after_training(self, job: Job, local: Local) -> None:
        """What the engine and the update's `after_step` would leave behind, as names."""
        network = network_of(self.environment, job.network).module
        training = Training(
            trainable=nn.ModuleDict({name: network for name in local.trainable}),
            frozen=nn.ModuleDict({name: network for name in local.frozen}),
            private=dict(local.private or {}),
            step=local.steps,
        )
        with torch.no_grad():
            job.update.after_step(training)
        if local.private is not None or training.private:
            local.private = training.private
        parameters = {name for name, _ in network.named_parameters()}
        local.momentum = {
            name: {tensor: value for tensor, value in weights.items() if tensor in parameters}
            for name, weights in local.trainable.items()
        }
        # Every entry has changed, and to another value at each holder: where only changes are sent, it is the most.
        moved = 1.0 + 0.01 * (job.key.client + 3) ** 0.5
        local.trainable = {
            name: {tensor: (value + moved).to(value.dtype) for tensor, value in weights.items()}
            for name, weights in local.trainable.items()
        }
        local.totals = defaultdict(float)

    def _bytes(self, tree: Tree, model: Model | None) -> int:
        """As the ledger counts them, with a stand-in as large as the network's tensor of its name."""
        sizes, total = network_of(self.environment, model).sizes, 0
        for name, value in tree.items():
            if isinstance(value, Tensor):
                total += value.element_size() * (sizes.get(name, 1) if value.numel() <= 1 else value.numel())
            elif isinstance(value, Mapping):
                total += self._bytes(dict(value), model)
            elif value is not None:
                total += 8
        return total


class SureReader:
    """A `Reader` without images: every prediction is certain, the classes in turn, every pass is counted."""

    def __init__(self, environment: Environment, job: Job, number: int, counts: Counts) -> None:
        self.draw = torch_stream(0, "cost", number, job.key.client, job.key.draw)
        self._environment, self._holder, self._number, self._counts = environment, job.key.client, number, counts

    def _read(self, part: PartName) -> int:
        N = len(self._environment.part(self._holder, part, self._number))
        self._counts["images_read"] += N
        return N

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        self._counts["unsure"] += 1
        N, D = self._read(part), self._environment.data.num_classes
        logits_ND = torch.zeros(N, D)
        logits_ND[torch.arange(N), torch.arange(N) % D] = SURE
        return logits_ND

    def statistics(self, weights: Weights, part: PartName, batch_size: int) -> tuple[Weights, int]:
        N = self._read(part)
        of_norms = ("running_mean", "running_var")
        found = {name: value.double() for name, value in weights.items() if name.endswith(of_norms)}
        return (found, -(-N // batch_size)) if N else ({}, 0)

    def on_noise(self, weights: Weights) -> Tensor:
        self._counts["images_read"] += 1
        return torch.zeros(self._environment.data.num_classes)


def batches_of(job: Job, sizes: Mapping[str, int]) -> int:
    """Batches of a job over streams of these sizes: its steps, or passes over its longest stream."""
    if job.limit.steps is not None:
        return job.limit.steps

    def in_a_pass(stream: Stream, size: int) -> int:
        batch = max(1, min(stream.batch_size, size))
        return size // batch if stream.drop_last else -(-size // batch)

    longest = max((in_a_pass(stream, sizes[name]) for name, stream in job.data.items()), default=0)
    return (job.limit.epochs or 0) * longest


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """A network with one number a tensor, the numbers that each tensor really has, and the FLOPs of a forward pass."""

    module: nn.Module
    sizes: Mapping[str, int]
    flops: int


_networks: dict[tuple[Model, str], Network] = {}


def network_of(environment: Environment, model: Model | None = None) -> Network:
    """The experiment's network, or that of a sub-network; built once."""
    key = (model or environment.experiment.model, environment.data.name)
    if key not in _networks:
        module = environment.network(model)
        sizes = {name: value.numel() for name, value in module.state_dict().items()}
        flops = forward_flops(module, environment.data.image_shape)
        _networks[key] = Network(module=shrunk(module), sizes=sizes, flops=flops)
    return _networks[key]


def shrunk(network: nn.Module) -> nn.Module:
    """A copy in which every tensor has one number and its dimensions' number."""
    small = copy.deepcopy(network)
    for part in small.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(torch.zeros((1,) * parameter.ndim, dtype=parameter.dtype))
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.zeros((1,) * buffer.ndim, dtype=buffer.dtype)
    return small


# --- timing -------------------------------------------------------------------------------------------------------


class Stopwatch:
    """CPU seconds on one core, since a run of the reference engine keeps one busy; each kind of job is timed once."""

    def __init__(self, seconds_to_time: float = SECONDS_TO_TIME) -> None:
        self._until = seconds_to_time  # that may still go into timing
        self._known: dict[object, tuple[float, float]] = {}  # seconds of a job's start, and of a local step
        self._rates: list[float] = []  # FLOPs a second, of what was timed

    @property
    def timed(self) -> int:
        """Kinds of jobs."""
        return len(self._known)

    def seconds(self, counted: Counted) -> tuple[float, bool]:
        """All of a run but the start of its process, and whether some of it is told by arithmetic alone."""
        environment, totals = counted.environment, counted.totals
        experiment, flops = environment.experiment, network_of(environment).flops
        rounds, every = experiment.federation.rounds, experiment.evaluation.every
        tested = len(
            environment.split.validation_N if experiment.evaluation.validation else environment.data.test_labels_N
        )
        found = RUN_SECONDS + rounds * ROUND_SECONDS
        by_arithmetic = not counted.examples
        for kind, example in counted.examples.items():
            timed = self.timing(environment, kind, example)
            by_arithmetic = by_arithmetic or timed is None
            start, step = timed or (0.0, self._guessed(environment, kind))
            jobs, steps = totals[kind, "jobs"], totals[kind, "steps"]
            found += jobs * start + steps * step
            if exact := experiment.evaluation.gradient_diversity_every:  # a gradient on all images of each job's holder
                size = environment.sizes.get(example.key.client, 0)
                batch = max(stream.batch_size for _, stream in kind.streams)
                found += jobs * step * size / batch / exact
        if not counted.examples:
            found += totals["flops"] / self._rate()
        forward_only = totals["images_read"] + (-(-rounds // every)) * tested
        return found + forward_only * flops / self._rate(), by_arithmetic

    def _rate(self) -> float:
        return fmean(self._rates) if self._rates else FLOPS_A_SECOND

    def _guessed(self, environment: Environment, kind: JobKind) -> float:
        images = sum(stream.batch_size * len(stream.views) for _, stream in kind.streams)
        return images * FORWARD_AND_BACKWARD * network_of(environment, kind.network).flops / self._rate()

    def timing(self, environment: Environment, kind: JobKind, example: Job) -> tuple[float, float] | None:
        """Seconds of a job's start, and of a local step; None where no time is left to measure them."""
        experiment = environment.experiment
        data = experiment.data
        key = (kind, data.name, data.augmentation, experiment.model, experiment.precision)
        if key not in self._known:
            if self._until <= 0:
                return None
            begun, threads = time.monotonic(), torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                self._known[key] = self._time(environment, kind, example)
            finally:
                torch.set_num_threads(threads)
                self._until -= time.monotonic() - begun
        return self._known[key]

    def _time(self, environment: Environment, kind: JobKind, example: Job) -> tuple[float, float]:
        engine = ReferenceEngine(environment)

        def seconds(batches: int, repeats: int) -> float:
            job = _real_job(example, environment, batches)
            times = []
            for _ in range(repeats):
                started = time.process_time()
                list(engine.fit([job], 1, {}))
                times.append(time.process_time() - started)
            return min(times)  # other work on the machine only adds

        first = one = more = seconds(1, 1)
        if first < LONG_STEP:  # a longer one is told well enough by itself
            repeats = 5 if first < 0.1 else 1
            one, more = seconds(1, repeats), seconds(1 + STEPS_TIMED, repeats)
        step = ((more - one) / STEPS_TIMED if more > one else first) / len(example.update.phases)
        images = sum(stream.batch_size * len(stream.views) for _, stream in kind.streams)
        self._rates.append(images * FORWARD_AND_BACKWARD * network_of(environment, kind.network).flops / step)
        return max(0.0, one - step), step


class _Confident:
    """An update that finds all its pseudo-labels confident: what takes longest, whatever the stand-in images say."""

    def __init__(self, update: LocalUpdate, reader: Reader) -> None:
        self._update, self._reader = update, reader

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        return self._update.start(received, private, self._reader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


def _real_job(example: Job, environment: Environment, batches: int) -> Job:
    """The example with weights of full size, confident pseudo-labels and so many batches."""
    full = weights_of(environment.network(example.network))
    update = cast(LocalUpdate, _Confident(example.update, SureReader(environment, example, 1, Counter())))
    return replace(example, update=update, receives=_full_size(example.receives, full), limit=Limit(steps=batches))


def _full_size(tree: Mapping[str, Any], full: Weights) -> Tree:
    """The tree with the network's tensors in the place of stand-ins of their name."""
    return {
        name: _full_size(value, full) if isinstance(value, Mapping) else full.get(name, value)
        for name, value in tree.items()
    }


def stretch(jobs: int) -> float:
    """Wall seconds for a CPU second, with so many runs side by side on an otherwise idle machine."""
    return max(1.0, jobs / (os.cpu_count() or 1))
