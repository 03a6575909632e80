"""A local step can be recorded once and repeated: it is a function of its tensors.

One step of every golden trace is traced into a fixed list of operations, as a CUDA graph would hold it. The list is
repeated on the values that other steps had, and its bits have to be those of the step itself. A loss that reads a
number, draws, counts or branches gives the first step's number again, and differs.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from benchmark.federated.local import LocalModule
from benchmark.methods import fedirm
from benchmark.methods.protocol import Batch, LocalUpdate, Step
from benchmark.methods.shared import StudentUpdate
from benchmark.methods.ssfl import ConsistencyUpdate
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of
from tests.methods.golden import TRACES

T, ROUNDS = 4, 2
# `kept_rows` selects rows on a CPU, whose number depends on values; elsewhere it multiplies, and that is recorded here.
AS_ON_A_GPU = {"fedirm-released", "fedirm-adjusted"}
# CBAFed's clients with labels change the network after whole passes over their data (`step.number`): the engine has to
# launch these steps one by one.
BY_PASSES = {"cbafed": ["LabelledUpdate"]}


@dataclass(kw_only=True)
class Snapshot:
    """Hold all tensors before one batch's steps, and where the job was."""

    update: LocalUpdate
    trainable: nn.ModuleDict  # to be filled with tensors; their own values are not used
    frozen: nn.ModuleDict
    number: int
    inputs: dict[str, Any]

    def key(self) -> str:
        leaves, layout = tree_flatten(self.inputs)
        shapes = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]
        return f"{self.update!r} {layout} {shapes}"


def snapshots_of(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    """Train two rounds of the trace and keep what every step began with."""
    seen: list[Snapshot] = []
    original = LocalModule.training_step

    def training_step(self: LocalModule, batch: Any, batch_idx: int) -> Tensor:
        if batch.phase == 0:
            by_stream = {stream: dict(vars(images)) for stream, images in batch.streams.items()}
            weights = {"trainable": dict(self.trainable.state_dict()), "frozen": dict(self.frozen.state_dict())}
            inputs = {
                "weights": weights,
                "batch": by_stream,
                "received": dict(self.step.received),
                "private": dict(self.step.private),
                "notes": dict(self.step.notes),
                "drawn": [],
            }
            networks = copy.deepcopy(self.trainable), copy.deepcopy(self.frozen)
            seen.append(
                Snapshot(
                    update=self.update,
                    trainable=networks[0],
                    frozen=networks[1],
                    number=self.step.number,
                    inputs=tree_map(copied, inputs),
                )
            )
        loss = original(self, batch, batch_idx)
        seen[-1].inputs["drawn"].append(tree_map(copied, dict(self.step.drawn)))
        return loss

    trace = TRACES[name]
    trace = replace(
        trace,
        federation=replace(trace.federation, T=T, rounds=ROUNDS),
        evaluation=replace(trace.evaluation, every=1000, gradient_diversity_every=0),
    )
    module = module_of(trace)
    with monkeypatch.context() as patch:
        patch.setattr(LocalModule, "training_step", training_step)
        for round_number in range(1, ROUNDS + 1):
            module.training_step(round_number, 0)
    return seen


def copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def put(networks: nn.ModuleDict, weights: dict[str, Tensor]) -> None:
    """Let the networks use these very tensors."""
    for name, tensor in weights.items():
        path, _, leaf = name.rpartition(".")
        owner = networks.get_submodule(path)
        table = owner._parameters if leaf in owner._parameters else owner._buffers
        table[leaf] = tensor  # type: ignore[assignment]


def steps_of_a_batch(snapshot: Snapshot, inputs: dict[str, Any]) -> dict[str, Any]:
    """Take all losses of one batch in turn, each with a plain gradient step, and return everything that is left."""
    update, trainable, frozen = snapshot.update, snapshot.trainable, snapshot.frozen
    parameters = {name for name, _ in trainable.named_parameters()}
    weights = {
        name: value.detach().requires_grad_() if name in parameters else value
        for name, value in inputs["weights"]["trainable"].items()
    }
    put(trainable, weights)
    put(frozen, inputs["weights"]["frozen"])
    step = Step(
        trainable=trainable,
        frozen=frozen,
        batch={stream: Batch(**images) for stream, images in inputs["batch"].items()},
        received=inputs["received"],
        private=dict(inputs["private"]),
        notes=dict(inputs["notes"]),
        number=snapshot.number,
    )
    losses = []
    for phase, drawn in zip(update.phases, inputs["drawn"], strict=True):
        step.drawn = drawn
        loss, aux = getattr(update, phase)(step)
        trained = [name for name in weights if name in parameters]
        gradients = torch.autograd.grad(loss, [weights[name] for name in trained], allow_unused=True, retain_graph=True)
        with torch.no_grad():
            for name, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    weights[name].sub_(gradient, alpha=0.05)
            step.number += 1
            update.after_step(step)
        losses.append((loss.detach(), dict(aux)))
    left = {"trainable": dict(trainable.state_dict()), "frozen": dict(frozen.state_dict())}
    return {"losses": losses, "weights": left, "private": step.private, "notes": step.notes}


class Operations(TorchDispatchMode):
    """Note every operation on tensors, with the numbers of the tensors that go in and come out.

    A tensor is known by its memory, since what autograd saves are other objects with the same memory; all are kept, so
    that no memory is used twice. A tensor that no operation made is a constant.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self._numbers: dict[object, int] = {}
        self._kept: list[Tensor] = []
        self._noted: list[tuple[Any, list[Any], TreeSpec, list[int | None]]] = []
        self._inputs = [self._number_of_new(tensor) for tensor in inputs]

    def _number_of_new(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        self._numbers[place_of(tensor)] = len(self._kept) - 1
        return len(self._kept) - 1

    def noted(self, value: Any) -> Any:
        """Return the number of a tensor, or the value itself."""
        if not isinstance(value, Tensor):
            return value
        number = self._numbers.get(place_of(value))
        return Slot(self._number_of_new(value) if number is None else number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number is read from a tensor")
        leaves, layout = tree_flatten((args, kwargs or {}))
        into = [self.noted(leaf) for leaf in leaves]
        result = func(*args, **(kwargs or {}))
        made = [self._number_of_new(leaf) if isinstance(leaf, Tensor) else None for leaf in tree_leaves(result)]
        self._noted.append((func, into, layout, made))
        return result

    def repeat(self, inputs: list[Tensor], wanted: list[Any]) -> list[Tensor]:
        """Repeat the operations on other inputs and return the wanted tensors."""
        tensors = list(self._kept)
        for number, tensor in zip(self._inputs, inputs, strict=True):
            tensors[number] = tensor
        with torch.no_grad():
            for func, into, layout, made in self._noted:
                leaves = [tensors[leaf.number] if isinstance(leaf, Slot) else leaf for leaf in into]
                args, kwargs = tree_unflatten(leaves, layout)
                for out, leaf in zip(made, tree_leaves(func(*args, **kwargs)), strict=True):
                    if out is not None:
                        tensors[out] = leaf
        return [tensors[slot.number] for slot in wanted]


@dataclass(frozen=True)
class Slot:
    number: int


def place_of(tensor: Tensor) -> object:
    """Tell where in memory a tensor is, and how it is laid out; one without elements is only itself."""
    if not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class Recorded:
    """One batch's steps as a fixed list of operations."""

    def __init__(self, snapshot: Snapshot) -> None:
        leaves, layout = tree_flatten(snapshot.inputs)
        self._at = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def function(*tensors: Tensor) -> list[Tensor]:
            values = list(leaves)
            for index, tensor in zip(self._at, tensors, strict=True):
                values[index] = tensor
            return tensors_in(steps_of_a_batch(snapshot, tree_unflatten(values, layout)))

        torch.manual_seed(1)
        self._repeat = self.record(function, self._tensors(snapshot))

    def record(self, function: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Callable[..., list[Tensor]]:
        with Operations(inputs) as operations:
            results = function(*inputs)
        wanted = [operations.noted(result) for result in results]
        return lambda *others: operations.repeat(list(others), wanted)

    def _tensors(self, snapshot: Snapshot) -> list[Tensor]:
        leaves, _ = tree_flatten(snapshot.inputs)
        return [leaves[index].clone() for index in self._at]

    def repeated(self, snapshot: Snapshot) -> list[Tensor]:
        torch.manual_seed(1)
        return self._repeat(*self._tensors(snapshot))


class Traced(Recorded):
    """The same by `make_fx`, with the operations that torch decomposes them into; this takes twenty times as long."""

    def record(self, function: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Callable[..., list[Tensor]]:
        return make_fx(function)(*inputs)


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def taken(snapshot: Snapshot) -> list[Tensor]:
    torch.manual_seed(1)
    return tensors_in(steps_of_a_batch(snapshot, tree_map(copied, snapshot.inputs)))


def repeats(snapshots: list[Snapshot], record: type[Recorded] = Recorded) -> tuple[int, list[str]]:
    """Record the first step of each kind, repeat it for the others; return their number and the kinds that differ."""
    kinds = defaultdict(list)
    for snapshot in snapshots:
        kinds[snapshot.key()].append(snapshot)
    repeated = 0
    wrong = []
    for same in kinds.values():
        try:
            recorded = record(same[0])
        except RuntimeError:  # a number was read
            wrong.append(type(same[0].update).__name__)
            continue
        for snapshot in same[1 : T + 1]:
            pairs = zip(recorded.repeated(snapshot), taken(snapshot), strict=True)
            repeated += 1
            if not all(torch.equal(there, here) for there, here in pairs):
                wrong.append(type(snapshot.update).__name__)
                break
    return repeated, sorted(set(wrong))


@pytest.mark.parametrize("record", [Recorded, pytest.param(Traced, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TRACES)
def test_a_recorded_step_repeats_with_other_values(name, record, monkeypatch):
    if name in AS_ON_A_GPU:
        monkeypatch.setattr(fedirm, "kept_rows", lambda values_ND, kept_N: values_ND * kept_N[:, None])
    repeated, wrong = repeats(snapshots_of(name, monkeypatch), record)
    assert repeated > 0 and wrong == BY_PASSES.get(name, [])


def drawing(self, step):
    loss = step.student(step.batch["unlabelled"].views["weak"]).square().mean()
    return loss * torch.rand((), generator=torch.Generator().manual_seed(step.number)), {}


def reading(self, step):
    loss = step.student(step.batch["unlabelled"].views["weak"]).square().mean()
    return loss * float(loss.detach()), {}


def branching(self, step):
    loss = step.student(step.batch["unlabelled"].views["weak"]).square().mean()
    return loss if step.number % 2 else 2 * loss, {}


@pytest.mark.parametrize("loss", [drawing, reading, branching])
def test_a_loss_that_is_no_function_of_its_tensors_is_found(loss, monkeypatch):
    monkeypatch.setattr(ConsistencyUpdate, "loss", loss)
    monkeypatch.setitem(TRACES, "mine", tiny_experiment())
    assert issubclass(ConsistencyUpdate, StudentUpdate)
    assert repeats(snapshots_of("mine", monkeypatch))[1] == ["ConsistencyUpdate"]
