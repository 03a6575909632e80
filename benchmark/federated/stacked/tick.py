"""Take one local step of M jobs: each loss of one batch in turn, with its optimizer step and `after_step`.

`vmap` calls the update's own functions with the tensors of one job, so a method is written for a single job.
Everything that a step changes is in `StackedState` and is changed in place.

Legend: M jobs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from benchmark.federated.stacked.layers import Masks, drawing
from benchmark.federated.stacked.optimizer import StackedOptimizer, StackedWeights
from benchmark.federated.stacked.trees import CannotStack, LeftOut, copy_into, put_rows, refuse_other_kind, rows
from benchmark.methods.calls import loss_of
from benchmark.methods.protocol import Batch, LocalUpdate, Step, Tree


@dataclass(kw_only=True)
class StackedState:
    """The tensors of M jobs, with one row per job."""

    trainable: StackedWeights  # parameters and buffers of each weight set
    frozen: StackedWeights
    slots: dict[str, StackedWeights]  # tensors of the optimizer
    # The following fields contain only entries that the steps use.
    private: Tree
    notes: Tree
    received: Tree
    shared: Tree = field(default_factory=dict)  # received tensors that all jobs share, without rows
    left_out: Mapping[str, Collection[str]] = field(default_factory=dict)  # entries that the steps do not use, by tree
    added: set[str] = field(default_factory=set)  # names of notes that steps add

    def trees(self) -> dict[str, Tree]:
        """Return the trees that have rows."""
        return {name: tree for name, tree in vars(self).items() if name not in ("shared", "left_out", "added")}

    def take_over(self, other: "StackedState") -> None:
        """Copy the values of a state with the same shapes into the tensors of this one."""
        assert not self.shared and not other.shared  # shared tensors belong to the jobs of one round
        copy_into(self.trees(), other.trees())
        self.left_out = other.left_out

    def of(self, at_S: Tensor) -> "StackedState":
        """Return the state of some of the jobs, as a copy."""
        some = {name: rows(tree, at_S) for name, tree in self.trees().items()}
        return replace(self, **some)

    def without(self, name: str, tree: Tree) -> Tree:
        """Return the tree as a mapping that raises an error if an entry is requested that was left out."""
        return LeftOut(tree, self.left_out[name]) if self.left_out.get(name) else tree

    def put(self, at_S: Tensor, some: "StackedState") -> None:
        """Copy the state of some of the jobs back to their rows."""
        for name, tree in self.trees().items():
            put_rows(tree, at_S, getattr(some, name))


def keep_in_place(state: StackedState, begun: StackedState) -> None:
    """Copy client state and notes into the tensors that a step began with.

    Notes that a step adds are dropped, since they last only from loss to loss of the same batch; `added` has their
    names.
    """
    for name in ("private", "notes"):
        before, after = getattr(begun, name), getattr(state, name)
        for entry, value in before.items():
            refuse_other_kind(entry, value, after.get(entry))
        if name == "private" and after.keys() != before.keys():
            raise CannotStack("its steps add to the client state")
        added = after.keys() - before.keys()
        late = added & set(state.left_out.get(name, ()))
        if late:
            raise CannotStack(f"a later step writes {min(late)!r}, which the first step does not")
        state.added |= added
        copy_into(before, {entry: after[entry] for entry in before})
        setattr(state, name, before)


class JobNetworks(nn.Module):
    """The networks of one job's weight sets. They have no weights of their own: each call receives the weights."""

    def __init__(self, trainable: nn.ModuleDict, frozen: nn.ModuleDict) -> None:
        super().__init__()
        self.trainable, self.frozen = trainable, frozen

    def forward(self, function: Callable[[nn.ModuleDict, nn.ModuleDict], Any]) -> Any:
        return function(self.trainable, self.frozen)


Results = list[tuple[Tensor, Mapping[str, Tensor]]]  # for each loss in turn: loss_M, and reported tensors (M, ...)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of M jobs for one local step."""

    batch: Mapping[str, Mapping[str, Any]]  # stream -> the fields of its `Batch`, (M, ...)
    drawn: Sequence[Tree]  # for each loss in turn
    rates: Sequence[Tensor | float]  # for each loss in turn: one rate, or one rate per job
    number: int  # optimizer steps that the jobs have taken before


class Tick:
    """Takes local steps of the jobs of one group."""

    def __init__(self, update: LocalUpdate, networks: JobNetworks, optimizer: StackedOptimizer) -> None:
        self._update, self._networks, self._optimizer = update, networks, optimizer
        self._changes = type(update).after_step is not LocalUpdate.after_step
        self._parameters: dict[str, list[str]] = {}
        for name, network in networks.trainable.items():
            trained = [tensor for tensor, parameter in network.named_parameters() if parameter.requires_grad]
            self._parameters[name] = trained

    def take(self, state: StackedState, inputs: Inputs, masks: Masks) -> Results:
        """Take one step, and change `state` in place."""
        results: Results = []
        begun = replace(state)
        weights = self._with_gradients(state)  # only once, since a later loss may use results of an earlier one
        last = len(self._update.phases) - 1
        for phase, rate in enumerate(inputs.rates):
            loss_M, aux = self._loss(state, weights, inputs, phase, inputs.number + phase, masks)
            gradients = self._gradients(loss_M, weights, keeps_graph=phase < last)
            self._optimizer.step(state.trainable, gradients, state.slots, rate)
            if self._changes:
                with torch.no_grad():
                    number = inputs.number + phase + 1
                    self._for_all_jobs(self._update.after_step, state, state.trainable, inputs, phase, number)
            results.append((loss_M.detach(), {name: value.detach() for name, value in aux.items()}))
        keep_in_place(state, begun)
        return results

    def gradients(self, state: StackedState, inputs: Inputs, masks: Masks) -> Iterator[StackedWeights]:
        """Yield the gradient of each loss in turn at the present weights, without taking a step."""
        begun = replace(state)
        weights = self._with_gradients(state)
        last = len(self._update.phases) - 1
        for phase in range(last + 1):
            loss_M, _ = self._loss(state, weights, inputs, phase, inputs.number, masks)
            yield self._gradients(loss_M, weights, keeps_graph=phase < last)
        keep_in_place(state, begun)

    def _with_gradients(self, state: StackedState) -> StackedWeights:
        """Return the parameters as leaves of a new graph. They share the memory of the state."""
        weights: StackedWeights = {}
        for name, tensors in self._parameters.items():
            here = state.trainable[name]
            weights[name] = {tensor: here[tensor].detach().requires_grad_() for tensor in tensors}
        return weights

    def _gradients(self, loss_M: Tensor, weights: StackedWeights, keeps_graph: bool) -> StackedWeights:
        """Return the gradient (M, ...) of each parameter that the loss depends on."""
        places = [(name, tensor) for name, some in weights.items() for tensor in some]
        leaves = [weights[name][tensor] for name, tensor in places]
        found = torch.autograd.grad(loss_M.sum(), leaves, allow_unused=True, retain_graph=keeps_graph)
        gradients: StackedWeights = {name: {} for name in weights}
        for (name, tensor), gradient in zip(places, found, strict=True):
            if gradient is not None:
                gradients[name][tensor] = gradient
        return gradients

    def _loss(
        self, state: StackedState, weights: StackedWeights, inputs: Inputs, phase: int, number: int, masks: Masks
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        trainable = {name: {**tensors, **weights[name]} for name, tensors in state.trainable.items()}

        def loss(step: Step) -> Any:
            loss, aux = loss_of(self._update, phase, step)
            return loss, dict(aux)

        with drawing(masks):
            loss_M, aux = self._for_all_jobs(loss, state, trainable, inputs, phase, number)
        return loss_M, aux

    def _for_all_jobs(
        self,
        function: Callable[[Step], Any],
        state: StackedState,
        trainable: StackedWeights,
        inputs: Inputs,
        phase: int,
        number: int,
    ) -> Any:
        """Call a function of one job's step for all jobs at once, and return its result.

        Changes of `private` and `notes` are written into `state`.
        """
        arguments = {
            "weights": {"trainable": trainable, "frozen": state.frozen},
            "received": state.received,
            "private": state.private,
            "notes": state.notes,
            "batch": inputs.batch,
            "drawn": inputs.drawn[phase],
        }
        leaves, layout = tree_flatten(arguments)
        outcome = _Flat()

        def one_job(*tensors: Tensor) -> list[Tensor]:
            job = tree_unflatten(_with_tensors(leaves, tensors), layout)
            weights = dict(_named(job["weights"]))
            before = dict(weights)
            call = partial(_call_with_step, function, state, job, number)
            result = functional_call(self._networks, weights, (call,))
            _refuse_replaced(before, weights)
            return outcome.flattened(result)

        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        with OperationsWithRules():
            result, state.private, state.notes = outcome.restored(vmap(one_job)(*tensors))
        return result


def _with_tensors(leaves: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Return the leaves with these tensors in place of the tensors among them."""
    values = iter(tensors)
    return [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _call_with_step(
    function: Callable[[Step], Any],
    state: StackedState,
    job: Mapping[str, Any],
    number: int,
    trainable: nn.ModuleDict,
    frozen: nn.ModuleDict,
) -> tuple[Any, Tree, Tree]:
    """Call the function with the step of one job. Return its result, and the client state and notes that it leaves."""
    step = Step(
        trainable=trainable,
        frozen=frozen,
        batch={stream: Batch(**fields) for stream, fields in job["batch"].items()},
        drawn=job["drawn"],
        received=state.without("received", {**state.shared, **job["received"]}),
        private=state.without("private", job["private"]),
        notes=state.without("notes", job["notes"]),
        number=number,
    )
    result = function(step)
    return result, _plain(step.private), _plain(step.notes)


def _plain(tree: Tree) -> Tree:
    return tree.plain() if isinstance(tree, LeftOut) else tree


def _refuse_replaced(before: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raise CannotStack if a network has replaced a tensor instead of changing it in place."""
    for name, tensor in weights.items():
        if tensor is not before[name]:
            raise CannotStack(f"its network replaces {name!r}; change it in place, by `copy_`")


class _Flat:
    """Converts a tree to a list of its tensors, since `vmap` can return only tensors, and back."""

    def flattened(self, tree: Any) -> list[Tensor]:
        self._leaves, self._layout = tree_flatten(tree)
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        self._leaves = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        return tensors

    def restored(self, tensors: Sequence[Tensor]) -> Any:
        values = iter(tensors)
        return tree_unflatten([next(values) if leaf is _TENSOR else leaf for leaf in self._leaves], self._layout)


_TENSOR = object()  # placeholder for a tensor


class OperationsWithRules(TorchFunctionMode):
    """Replaces operations that `vmap` would execute job by job, or refuse, by operations with the same result."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name.startswith("_foreach_"):
            return self._per_tensor(name, args, kwargs)
        if name in REPLACED:
            return REPLACED[name](*args, **kwargs)
        return function(*args, **kwargs)

    def _per_tensor(self, name: str, args: Any, kwargs: Any) -> Any:
        """Execute an operation on lists of tensors one tensor at a time."""
        operation = name.removeprefix("_foreach_")
        function = REPLACED.get(operation) or getattr(Tensor, operation)
        results = []
        for index in range(len(args[0])):
            own = [arg[index] if isinstance(arg, list | tuple) else arg for arg in args]
            results.append(function(*own, **kwargs))
        return None if name.endswith("_") else results


def _lerp(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    return start + (end - start) * weight


def _lerp_in_place(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    return start.add_((end - start) * weight)


def _kl_div(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Compute `F.kl_div`, which has the same argument names."""
    terms = target.exp() * (target - input) if log_target else torch.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return terms.sum() / len(terms)
    return _reduced(terms, reduction)


def _reduced(terms: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return terms
    return terms.sum() if reduction == "sum" else terms.mean()


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute `F.cross_entropy` for integer labels without a gather, because its gradient is summed in an undefined
    order.
    """
    if weight is not None or label_smoothing or target.is_floating_point() or input.dim() != 2:
        options: Any = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        with torch._C.DisableTorchFunction():
            return F.cross_entropy(input, target, reduction=reduction, **options)
    counts_N = target != ignore_index
    is_label_ND = (target[:, None] == torch.arange(input.shape[1], device=input.device)) & counts_N[:, None]
    losses_N = -torch.where(is_label_ND, torch.log_softmax(input, dim=-1), 0.0).sum(dim=-1)
    # F.cross_entropy raises an error for a label that is not a class, which a stacked operation cannot do.
    losses_N = torch.where(counts_N == is_label_ND.any(dim=-1), losses_N, torch.nan)
    return losses_N.sum() / counts_N.sum() if reduction == "mean" else _reduced(losses_N, reduction)


REPLACED: dict[str, Callable[..., Tensor]] = {
    "lerp": _lerp,
    "lerp_": _lerp_in_place,
    "kl_div": _kl_div,
    "cross_entropy": _cross_entropy,
}


def _named(weights: Mapping[str, StackedWeights]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors by their names in `JobNetworks`."""
    for kind, sets in weights.items():
        for name, tensors in sets.items():
            for tensor, value in tensors.items():
                yield f"{kind}.{name}.{tensor}", value
