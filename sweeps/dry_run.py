"""A method's rounds with nothing trained: its own `round`, over an engine that only counts.

The method, its updates and the round's draws are the real ones; left out are networks and images. Weights are stand-ins
of one number a tensor, whose bytes count as those of the tensor of that name; a method that cannot work on such
stand-ins is run on weights of full size. Pseudo-labels are all confident, so that where steps or bytes depend on them
the count is the most that there can be.

Legend: N images, D classes.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.errors import FsslError
from benchmark.federated.batches import JobBatches, key_names
from benchmark.federated.engines import keeper_of
from benchmark.federated.environment import Environment, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.methods.averaging import is_statistic
from benchmark.methods.protocol import SERVER, Job, Local, Outcome, PartName, Stream, Training, Tree, Weights
from benchmark.models.build import Model, forward_flops
from benchmark.streams import torch_stream
from sweeps.rounds import over_rounds
from sweeps.work import JobKind, Shape, Work

FORWARD_AND_BACKWARD = 3  # in forward passes: the backward pass computes two products where the forward has one
SURE = 50.0  # a logit beside zeros: probability 1 in float32
ONCE_WITH_GRADIENT = (0, 1)


def dry_run(environment: Environment) -> tuple[Work, bool]:
    """All rounds of a run, and whether they were counted exactly, not estimated from some of the rounds.

    Raises ConfigError where the run itself would, for a job that has no images.
    """
    try:
        return _all_rounds(environment, small=True)
    except FsslError:
        raise
    except Exception:  # the method looks into its weights: shapes that fit are slower, and right for any method
        return _all_rounds(environment, small=False)


def _all_rounds(environment: Environment, small: bool) -> tuple[Work, bool]:
    engine = CountingEngine(environment, small)
    setup = replace(environment.setup(), initial_weights=lambda: dict(engine.weights()))
    module = DryModule(environment, engine, state=environment.experiment.method.init(setup))

    def count(round_number: int) -> tuple[Work, Shape]:
        engine.begin()
        module.training_step(round_number, 0)
        return engine.counted()

    return over_rounds(count, environment.experiment.federation.rounds)


class DryModule(FederatedModule):
    """The orchestrator of real runs, never tested on images."""

    def evaluation_due(self, round_number: int) -> bool:
        return False


class CountingEngine:
    """An engine that trains nothing: every job's weights come back as they went in, plus a number."""

    name = "dry"
    settings: Mapping[str, Any] = {"name": name}

    def __init__(self, environment: Environment, small: bool) -> None:
        self._environment, self._small = environment, small
        self._networks: dict[Model | None, nn.Module] = {}
        self._bytes: dict[Model | None, dict[str, int]] = {}
        self._flops: dict[Model | None, int] = {}
        self.begin()

    def begin(self) -> None:
        """Forget the counts of the round before."""
        self._totals: Counter[str] = Counter()
        self._jobs: Counter[JobKind] = Counter()
        self._steps: Counter[JobKind] = Counter()
        self._examples: dict[JobKind, Job] = {}
        self._seen: set[tuple[object, ...]] = set()

    def counted(self) -> tuple[Work, Shape]:
        work = Work(
            totals=dict(self._totals), jobs=dict(self._jobs), steps=dict(self._steps), examples=dict(self._examples)
        )
        return work, frozenset(self._seen)

    def weights(self, model: Model | None = None) -> Weights:
        return weights_of(self._network(model))

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            outcome = self._run(job, round_number, kept.get(keeper_of(job)))
            if outcome.private is not None:
                kept[keeper_of(job)] = outcome.private
            self._count_exchange(job, outcome)
            yield outcome

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """None: nothing is differentiated."""
        yield from ({} for _ in jobs)

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, job: Job, round_number: int, private: Tree | None) -> Outcome:
        reader = SureReader(self._environment, job, round_number)
        local = job.update.start(job.receives, private, reader)
        flops = self._forward_flops(job.network)
        self._totals.update(reader.passes)
        self._totals["flops"] += flops * reader.passes["images_read"]
        if local is None:
            return Outcome(key=job.key, sends={})
        if local.trainable:
            self._count_training(job, local, round_number, flops)
            self._after_training(job, local)
        return Outcome(key=job.key, sends=job.update.finish(local), private=local.private, steps=local.steps)

    def _count_training(self, job: Job, local: Local, round_number: int, flops: int) -> None:
        local.steps = JobBatches(self._environment, job, round_number, selected=local.selected).steps
        drawn = local.steps // len(job.update.phases)
        for name, stream in job.data.items():
            chosen = local.selected.get(name)
            part = self._environment.part(job.key.client, stream.part, round_number)
            images = images_in(drawn, stream, len(part if chosen is None else chosen.positions_N))
            for view in stream.views:
                without, with_gradient = passes_of(job, name, view)
                self._totals["images_forward"] += images * without
                self._totals["images_trained"] += images * with_gradient
                self._totals["images_augmented"] += images * (view != "plain")
                self._totals["flops"] += flops * images * (without + FORWARD_AND_BACKWARD * with_gradient)
        kind = JobKind(
            update=type(job.update),
            network=job.network,
            at_server=job.key.client == SERVER,
            streams=tuple(sorted(job.data.items())),
        )
        self._totals["local_steps"] += local.steps
        self._jobs[kind] += 1
        self._steps[kind] += local.steps
        self._examples.setdefault(kind, job)

    def _after_training(self, job: Job, local: Local) -> None:
        """What the engine and the update's `after_step` would leave behind, as names."""
        network = self._network(job.network)
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
        local.momentum = {
            name: {tensor: value for tensor, value in weights.items() if not is_statistic(tensor)}
            for name, weights in local.trainable.items()
        }
        # Every entry has changed, and to another value at each holder, so that what is averaged differs from all of
        # them: where only changes are sent, the count is the most that there can be.
        moved = 1.0 + 0.01 * (job.key.client + 3) ** 0.5
        self._totals["changes_sent"] += getattr(job.update, "sends_changes", False)
        local.trainable = {
            name: {tensor: (value + moved).to(value.dtype) for tensor, value in weights.items()}
            for name, weights in local.trainable.items()
        }
        local.totals = Zeros(self._totals)

    def _count_exchange(self, job: Job, outcome: Outcome) -> None:
        holder = min(job.key.client, 0)
        self._seen.add((holder, type(job.update), tuple(sorted(job.data)), tuple(sorted(job.receives))))
        if job.key.client >= 0:
            self._totals["client_jobs"] += 1
            self._totals["bytes_down"] += self._tree_bytes(job.receives, job.network)
            self._totals["bytes_up"] += self._tree_bytes(outcome.sends, job.network)

    def _tree_bytes(self, tree: Tree, model: Model | None) -> int:
        """As `ledger.tree_bytes`, with a stand-in counted as large as the network's tensor of its name."""
        self._network(model)
        total = 0
        for name, value in tree.items():
            if isinstance(value, Tensor):
                full = self._bytes[model].get(name, 0) if value.numel() <= 1 else 0
                total += value.element_size() * (full or value.numel())
            elif isinstance(value, Mapping):
                total += self._tree_bytes(dict(value), model)
            elif value is not None:
                total += 8
        return total

    def _network(self, model: Model | None) -> nn.Module:
        if model not in self._networks:
            network = self._environment.network(model)
            self._bytes[model] = {name: value.numel() for name, value in network.state_dict().items()}
            self._flops[model] = forward_flops(network, self._environment.data.image_shape)
            self._networks[model] = shrunk(network) if self._small else network
        return self._networks[model]

    def _forward_flops(self, model: Model | None) -> int:
        self._network(model)
        return self._flops[model]


class Zeros(dict[str, float]):
    """What local training reports, of any name, as zero; that it was read is counted."""

    def __init__(self, totals: Counter[str]) -> None:
        super().__init__()
        self._totals = totals

    def __missing__(self, name: str) -> float:
        self._totals["reports_read"] += 1
        return 0.0

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]

    def __contains__(self, name: object) -> bool:
        return True


class SureReader:
    """A `Reader` without images: every prediction is certain, the classes in turn, every pass is counted."""

    def __init__(self, environment: Environment, job: Job, round_number: int) -> None:
        names = ("dry", "round", round_number, *key_names(job.key), "start")
        self.draw = torch_stream(environment.experiment.seed, *names)
        self.passes: Counter[str] = Counter()
        self._environment, self._holder, self._round = environment, job.key.client, round_number

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        N = len(self._environment.part(self._holder, part, self._round))
        self.passes["images_read"] += N
        self.passes["images_augmented"] += N * (view != "plain")
        self.passes["predictions"] += 1
        logits_ND = torch.zeros(N, self._environment.data.num_classes)
        logits_ND[torch.arange(N), torch.arange(N) % logits_ND.shape[1]] = SURE
        return logits_ND

    def statistics(self, weights: Weights, part: PartName, batch_size: int) -> tuple[Weights, int]:
        N = len(self._environment.part(self._holder, part, self._round))
        self.passes["images_read"] += N
        of_norms = ("running_mean", "running_var")
        found = {name: value.double() for name, value in weights.items() if name.endswith(of_norms)}
        return (found, -(-N // batch_size)) if N else ({}, 0)

    def on_noise(self, weights: Weights) -> Tensor:
        self.passes["images_read"] += 1
        return torch.zeros(self._environment.data.num_classes)


def passes_of(job: Job, stream: str, view: str) -> tuple[int, int]:
    """How often a view goes through the network: (without, with gradient), (0, 1) unless the update declares other.

    An update may declare `passes`, by view or by "stream/view": {"weak": (1, 0)} where the weak view only gives labels.
    """
    declared: Mapping[str, tuple[int, int]] = getattr(job.update, "passes", {})
    return declared.get(f"{stream}/{view}", declared.get(view, ONCE_WITH_GRADIENT))


def images_in(batches: int, stream: Stream, size: int) -> int:
    """Images in so many batches of a stream over `size` images: the last batch of a pass may be smaller."""
    batch = min(stream.batch_size, size)
    if stream.drop_last or not size:
        return batches * batch
    whole, rest = divmod(batches, -(-size // batch))
    return whole * size + rest * batch


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
