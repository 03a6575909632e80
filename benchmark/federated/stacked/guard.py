"""Compare the first step of each kind of job, and of each batch size, with the same step of one job at a time.

Both steps are computed once in float64, where they only differ by rounding. In float32, two orders of summation can
have results on different sides of a ReLU. If a kind differs, or if `vmap` refuses its loss, its
jobs train one at a time.
"""

import contextlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.federated.batches import LocalBatch
from benchmark.federated.local import LocalModule, train
from benchmark.federated.stacked.kinds import Kind, Member, Uses, only
from benchmark.federated.stacked.layers import Masks, drawing
from benchmark.federated.stacked.trees import CannotStack, Watched
from benchmark.federated.trees import leaves, mapped
from benchmark.methods.calls import change_since, marks_of
from benchmark.methods.protocol import Local, Step, Tree, Weights

TOLERANCE = 1e-9  # relative to the largest entry of a part of the results


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The facts on a kind that its first step showed."""

    uses: Uses
    flops: int  # FLOPs of one local step of one job
    sizes: set[tuple[int, ...]] = field(default_factory=set)  # batch sizes that were compared, by stream


def doubled(tree: Any) -> Any:
    """Return a copy of the tree in float64."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()

    return mapped(tree, copied)


def in_double(member: Member) -> Member:
    """Return the job with copies of its weight sets and of its received values, in float64."""
    local = member.local
    copied = Local(
        trainable=doubled(local.trainable),
        frozen=doubled(local.frozen),
        layers=local.layers,
        momentum=doubled(local.momentum),
        private=doubled(local.private),
        notes=doubled(local.notes),
    )
    return replace(member, job=replace(member.job, receives=doubled(member.job.receives)), local=copied)


def batch_in_double(batch: LocalBatch) -> LocalBatch:
    streams = {name: replace(images, views=doubled(images.views)) for name, images in batch.streams.items()}
    return replace(batch, streams=streams)


def first_images(batch: LocalBatch, sizes: Sequence[int]) -> LocalBatch:
    """Return a batch of the first images of each stream; `sizes` has their number, in the order of the streams."""
    streams = {}
    for (name, images), size in zip(batch.streams.items(), sizes, strict=True):
        streams[name] = replace(images, **mapped({**vars(images), "views": dict(images.views)}, partial(_first, size)))
    size = dict(zip(batch.streams, sizes, strict=True)).get("unlabelled", 0)
    truth_N = None if batch.truth_N is None else batch.truth_N[:size]
    return replace(batch, streams=streams, truth_N=truth_N)


def _first(size: int, tensor_N: Tensor) -> Tensor:
    return tensor_N[:size]


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One job after one batch with the steps of the reference engine."""

    results: Tree  # losses, weights, momentum and notes
    uses: Uses
    flops: int


class WatchedStep(Step):
    """A step that remembers whether its number was read."""

    reads_number = False

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            object.__setattr__(self, "reads_number", True)
        return super().__getattribute__(name)


def alone(module: LocalModule, batches: Sequence[LocalBatch], dropout: torch.Generator) -> Alone:
    """Train the module on one batch, with all its losses in turn, and record which entries its steps use."""
    received, private = Watched(module.step.received), Watched(module.step.private)
    notes = Watched(module.step.notes)
    step = module.step = WatchedStep(
        trainable=module.trainable, frozen=module.frozen, received=received, private=private, notes=notes
    )
    kept, noted = private.plain().keys(), notes.plain().keys()
    numbers = {**numbers_of(private), **numbers_of(notes)}
    given, layers = marks_of(received.plain()), marks_of(kept_by_layers(module))
    with FlopCounterMode(display=False) as counter, masks_of(module, dropout), fields_watched(module) as read:
        momentum = train(module, batches)
    changed_entry = change_since(given, received.plain())
    if changed_entry is not None:
        raise CannotStack(f"its steps change {changed_entry!r} of what it received")
    changed_layer = change_since(layers, kept_by_layers(module))
    if changed_layer is not None:
        raise CannotStack(f"its network changes {changed_layer} when it is called; keep it in a buffer")
    if read:
        raise CannotStack(f"its steps read {min(read)!r}, a field with repr=False, which may differ between jobs")
    if notes.missed:
        raise CannotStack(f"it asks for {min(notes.missed)!r} in its notes, which `start` does not leave")
    if private.plain().keys() != kept:
        raise CannotStack("its steps add to the client state")
    now = {**numbers_of(private), **numbers_of(notes)}
    changed = [name for name, value in numbers.items() if now.get(name, value) != value]
    if changed:
        raise CannotStack(f"its steps change the number {changed[0]!r}; make it a tensor")
    uses = Uses(
        received=frozenset(received.touched),
        private=frozenset(kept & private.touched),
        notes=frozenset(noted & notes.touched),
        number=step.reads_number,
    )
    results = {
        "loss": dict(zip(map(str, range(len(module.losses))), module.losses, strict=True)),
        "trainable": tensors_of_each(module.trainable, module.local.trainable),
        "frozen": tensors_of_each(module.frozen, module.local.frozen),
        "momentum": momentum,
        "private": only(private.plain(), uses.private),
        "notes": only(notes.plain(), uses.notes),
    }
    return Alone(results=results, uses=uses, flops=counter.get_total_flops())


def tensors_of_each(networks: nn.ModuleDict, weight_sets: Mapping[str, Weights]) -> Tree:
    """Return the networks' weights, with the entries of the job's initial weight sets."""
    return {name: only(network.state_dict(), weight_sets[name].keys()) for name, network in networks.items()}


@contextlib.contextmanager
def masks_of(module: LocalModule, dropout: torch.Generator) -> Iterator[None]:
    """Make dropout draw from this stream inside the context.

    On a CPU it draws with `F.dropout`, so that the rule of this package is compared with PyTorch's own code.
    """
    if next(module.parameters()).device.type != "cpu":
        with drawing(Masks([dropout])):
            yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(dropout.get_state())
        yield


OF_LAYERS = set(vars(nn.Module())) - {"training"}


def kept_by_layers(module: LocalModule) -> dict[str, Any]:
    """Return the values besides weights that the layers of the module's networks keep.

    Jobs that train together would share these values.
    """
    kept: dict[str, Any] = {}
    for kind, networks in (("trainable", module.trainable), ("frozen", module.frozen)):
        for name, layer in networks.named_modules():
            own = {key: value for key, value in vars(layer).items() if key not in OF_LAYERS}
            unsaved = {key: layer._buffers[key] for key in layer._non_persistent_buffers_set}
            kept[f"{kind}.{name}"] = {**own, **unsaved}
    return kept


@contextlib.contextmanager
def fields_watched(module: LocalModule) -> Iterator[set[str]]:
    """Collect the fields with `repr=False` that the steps read. Jobs of one kind may differ in these fields."""
    update = module.update
    read = set[str]()
    hidden: set[str] = {part.name for part in fields(update) if not part.repr} if is_dataclass(update) else set()
    if not hidden or not hasattr(update, "__dict__"):
        yield read
        return

    def reading(self: Any, name: str) -> Any:
        read.update({name} & hidden)
        return object.__getattribute__(self, name)

    watched: Any = object.__new__(type(type(update).__name__, (type(update),), {"__getattribute__": reading}))
    vars(watched).update(vars(update))
    module.update = watched
    yield read
    module.update = update


def numbers_of(tree: Watched) -> dict[str, Any]:
    """Return the leaves that are not tensors, by name."""
    return {name: value for name, value in leaves(tree.plain()) if not isinstance(value, Tensor)}


def compare(alone: Tree, together: Tree) -> None:
    """Raise CannotStack if the results differ by more than rounding errors.

    Differences are relative to the largest entry of a part of the results, such as all weights.
    """
    for part, expected in alone.items():
        wanted, given = dict(leaves(expected)), dict(leaves(together[part]))
        floats = {name: value for name, value in wanted.items() if isinstance(value, Tensor)}
        if wanted.keys() != given.keys():
            raise CannotStack(f"its {part} has entries that differ from the same job trained separately")
        sizes = [float(value.double().abs().max()) for value in floats.values() if value.numel()]
        scale = max([*sizes, torch.finfo(torch.float64).tiny])
        for name, value in floats.items():
            off = float((given[name].double() - value.double()).abs().max()) if value.numel() else 0.0
            if not off <= TOLERANCE * scale:
                where = f"{part} {name}" if part != "loss" else "loss"
                raise CannotStack(f"its {where} differs by {off / scale:.1e} from the same job trained separately")


def reason_of(error: Exception, kind: Kind) -> str:
    """Return the reason why a kind cannot train together, with the file and line of the method."""
    if isinstance(error, CannotStack):
        return str(error)
    own = {_file_of(base) for base in kind.update.__mro__} - {None}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    message = " ".join(str(error).split()) or type(error).__name__
    return f"{where}{message[:160]}"


def _file_of(base: type) -> str | None:
    """Return the file of a method's class, or None for a base class of the suite."""
    if base.__module__ in ("builtins", "benchmark.methods.protocol"):
        return None
    return getattr(sys.modules.get(base.__module__), "__file__", None)
