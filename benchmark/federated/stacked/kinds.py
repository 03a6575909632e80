"""Kinds of jobs that can take their steps together.

Jobs of one kind have the same update, network, shapes of weights and streams. `guard` watches one step of a kind to
find which received entries, client state and notes its steps use.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.federated.batches import JobBatches, LocalBatch
from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.stacked.trees import Shape, shape_of
from benchmark.federated.trees import leaves
from benchmark.methods.protocol import Job, Local, Tree
from benchmark.optimizer import Optimizer


@dataclass(kw_only=True)
class Member:
    """A job that has been started and trains in a group."""

    index: int  # among the jobs of the round, or of the rounds of several runs
    run: int  # names the job's run
    prototype: Callable[[], nn.Module]  # returns a network of the job's run; its weights do not matter
    has_own_network: bool  # whether it is a custom network, which may keep more than its weights
    job: Job  # with its received values on the engine's device
    local: Local
    batches: JobBatches
    rate_at: Callable[[int], float]  # share of the base rate at a step
    base_rate: float
    draw: torch.Generator  # the job's own random stream, for `LocalUpdate.draws`
    dropout: torch.Generator
    states: tuple[Any, ...]  # states of the global generators after `start`, for `finish`
    pseudo: PseudoLabelQuality  # quality of the pseudo-labels that `start` assigned


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The properties that must be equal in jobs that train together."""

    update: type
    settings: object  # the update's fields without the fields with `repr=False`, which steps do not use
    network: Hashable
    trainable: Shape
    frozen: Shape
    layers: tuple[str, ...]
    streams: tuple[tuple[str, tuple[str, ...]], ...]
    momentum: Shape | None
    optimizer: Optimizer
    run: int | None  # only for a custom network, because its state besides weights may depend on the seed

    @property
    def name(self) -> str:
        return self.update.__name__


def settings_of(value: Any) -> object:
    """Return a description of an update that must be equal in jobs that train together.

    Tensors and arrays are described by a digest, because their text is rounded; other values by their text.
    """
    if isinstance(value, Tensor | np.ndarray):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
    if isinstance(value, Mapping):
        return type(value), tuple((repr(name), settings_of(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(settings_of(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        shown = [part.name for part in fields(value) if part.repr]
        return type(value), tuple((name, settings_of(getattr(value, name))) for name in shown)
    return repr(value)


def kind_of(member: Member, optimizer: Optimizer) -> Kind:
    job, local = member.job, member.local
    return Kind(
        update=type(job.update),
        settings=settings_of(job.update),
        network=job.network,
        trainable=shape_of(local.trainable),
        frozen=shape_of(local.frozen),
        layers=local.layers,
        streams=tuple((name, stream.views) for name, stream in job.data.items()),
        momentum=None if local.momentum is None else shape_of(local.momentum),
        optimizer=optimizer,
        run=member.run if member.has_own_network else None,
    )


@dataclass(frozen=True, kw_only=True)
class Uses:
    """The entries that a kind's local steps read or write."""

    received: frozenset[str]
    private: frozenset[str]
    notes: frozenset[str]
    number: bool = False  # whether they read `step.number`

    def of(self, member: Member) -> tuple[Tree, Tree, Tree]:
        """Return these entries of the received tree, the client state and the notes of the job."""
        local = member.local
        return (
            only(member.job.receives, self.received),
            only(local.private or {}, self.private),
            only(local.notes, self.notes),
        )

    def joined(self, other: "Uses") -> "Uses":
        return Uses(
            received=self.received | other.received,
            private=self.private | other.private,
            notes=self.notes | other.notes,
            number=self.number or other.number,
        )

    def in_two_places(self, member: Member) -> str | None:
        """Return the name of an entry that shares memory with a different entry, if steps use one of the two.

        Steps may change tensors in place, so shared memory would change both entries. Return None if there is none.
        """
        memory: dict[int, tuple[str, bool]] = {}  # address of a tensor -> its entry, and whether steps use it
        for tree, used in ((member.local.private or {}, self.private), (member.local.notes, self.notes)):
            for entry, value in tree.items():
                for place in places_of(value):
                    if place in memory and (entry in used or memory[place][1]):
                        return entry
                    memory[place] = (entry, entry in used)
        return None

    def shape(self, member: Member) -> tuple[Shape, ...]:
        """Return the shapes of these entries, which must be equal in jobs that train together."""
        return tuple(shape_of(tree) for tree in self.of(member))


def places_of(value: Any) -> list[int]:
    """Return the memory addresses of an entry's tensors, or the tensors' ids on a device without addresses."""
    tensors = [leaf for _, leaf in leaves({"entry": value}) if isinstance(leaf, Tensor) and leaf.numel()]
    return [tensor.untyped_storage().data_ptr() or id(tensor) for tensor in tensors]


def only(tree: Tree, names: Collection[str]) -> Tree:
    """Return the entries with these names."""
    return {name: value for name, value in tree.items() if name in names}


Signature = tuple[object, ...]


def signature_of(batch: LocalBatch) -> Signature:
    """Return the properties that must be equal in the batches of a step of several jobs: sizes and kinds of labels."""
    described = []
    for name, images in batch.streams.items():
        size = len(next(iter(images.views.values())))
        described.append((name, size, images.labels_N is None, images.pseudo_labels_N is None))
    return (*described, batch.truth_N is None)


def same_tensors(trees: list[Tree]) -> bool:
    """Return whether all trees contain the same tensor objects, such as weights that all jobs received."""
    first = trees[0]
    return all(_same(first, tree) for tree in trees[1:])


def _same(left: object, right: object) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    return left is right if isinstance(left, Tensor) else type(left) is type(right) and left == right
