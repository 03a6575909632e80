"""Record one local step of a group as a CUDA graph: a fixed list of operations on fixed memory.

A whole step is then launched at once, instead of some hundred operations one by one. All values that change from step
to step, such as batches, drawn numbers, rates and dropout masks, are copied into the memory that the operations read.
The state is in memory that does not move (`Group`). Only steps of all jobs of a group are recorded.

A recording repeats the recorded step exactly. So a kind with steps that read `step.number` is never recorded,
and every recording is compared once with the step itself, at a different step from the recorded one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from benchmark.federated.stacked.layers import Masks
from benchmark.federated.stacked.tick import Inputs, Results, StackedState, Tick
from benchmark.federated.stacked.trees import copy_into

TOLERANCE = 1e-4  # relative; kernels of a GPU add in an order that varies


class Graph(Protocol):
    """A recorded list of operations."""

    def replay(self) -> None: ...


# A recorder records the operations of a function on fixed memory. It may execute them or not.
Recorder = Callable[[Callable[[], None]], Graph]


def cuda_graph(function: Callable[[], None]) -> Graph:
    """Record a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


class CannotRepeat(Exception):
    """Raised if a recording differs from the step itself. The message contains the difference."""


class Recording:
    """A recorded step of a group. `shapes` are the shapes of the dropout masks that it draws, in their order."""

    def __init__(
        self, recorder: Recorder, tick: Tick, state: StackedState, inputs: Inputs, shapes: Sequence["MaskShape"]
    ) -> None:
        self._tick, self._state, self._shapes = tick, state, shapes
        self._inputs = with_tensor_rates(copied(inputs))
        self._results: Results = []
        self.is_checked = False
        before = copied(state.trees())
        self._masks = [torch.ones(shape.of_all, dtype=shape.like.dtype, device=shape.like.device) for shape in shapes]

        def step() -> None:
            self._results = tick.take(state, self._inputs, HeldMasks(self._masks))

        private, notes = state.private, state.notes
        try:
            self._graph = recorder(step)
        finally:  # a step that cannot be recorded may stop before its end
            state.private, state.notes = private, notes
            copy_into(state.trees(), before)

    def replay(self, inputs: Inputs, masks: Masks) -> Results:
        """Take the step with these inputs, which changes the state."""
        given = tensors_of(with_tensor_rates(inputs))
        for mine, theirs in zip(tensors_of(self._inputs), given, strict=True):
            if mine.shape != theirs.shape and theirs.dim():  # a single rate fits all jobs
                raise RuntimeError(f"an input of the step has changed its shape to {list(theirs.shape)[1:]}")
        copy_into(tensors_of(self._inputs), given)
        drawn = [masks.draw(shape.of_one, shape.like, shape.p) for shape in self._shapes]
        copy_into(self._masks, drawn)
        self._graph.replay()
        return copied(self._results)

    def check(self, inputs: Inputs, masks: Masks, again: Masks) -> Results:
        """Take the step twice from the same state, recorded and not recorded, and return its results.

        `masks` and `again` draw the same numbers. Raise CannotRepeat if the two steps differ. The state is then the
        state after the step that was not recorded.
        """
        before = copied(self._state.trees())
        repeated = self.replay(inputs, masks)
        after = copied(self._state.trees())
        copy_into(self._state.trees(), before)
        results = self._tick.take(self._state, inputs, again)
        off = largest_difference([repeated, after], [results, self._state.trees()])
        if not off <= TOLERANCE:
            raise CannotRepeat(f"a repeated step differs by {off:.1e}", results)
        self.is_checked = True
        return results


class MaskShape:
    """The shape of the masks that one dropout layer draws for all jobs."""

    def __init__(self, shape: Sequence[int], like: Tensor, p: float, M: int) -> None:
        self.of_one, self.of_all, self.p = tuple(shape), (M, *shape), p
        self.like = torch.empty(0, dtype=like.dtype, device=like.device)


class NotedMasks(Masks):
    """Masks that also note the shapes that are drawn."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__(generators)
        self.shapes: list[MaskShape] = []

    def draw(self, shape: Sequence[int], like: Tensor, p: float) -> Tensor:
        masks = super().draw(shape, like, p)
        self.shapes.append(MaskShape(shape, like, p, len(masks)))
        return masks


class HeldMasks(Masks):
    """Masks that were drawn before, returned in their order."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        super().__init__([])
        self._held = iter(held)

    def draw(self, shape: Sequence[int], like: Tensor, p: float) -> Tensor:
        return next(self._held)


def copied(tree: Any) -> Any:
    """Return a copy of a tree or of `Inputs`, with copied tensors."""
    if isinstance(tree, Inputs):
        return with_tensors(tree, [tensor.clone() for tensor in tensors_of(tree)])
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """Return all tensors of the inputs, in a fixed order."""
    leaves, _ = tree_flatten([inputs.batch, list(inputs.drawn), list(inputs.rates)])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def with_tensors(inputs: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """Return the inputs with these tensors instead, in the order of `tensors_of`."""
    leaves, layout = tree_flatten([inputs.batch, list(inputs.drawn), list(inputs.rates)])
    rest = iter(tensors)
    batch, drawn, rates = tree_unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], layout)
    return replace(inputs, batch=batch, drawn=drawn, rates=rates)


def with_tensor_rates(inputs: Inputs) -> Inputs:
    """Return the inputs with all rates as tensors."""
    images = next(tensor for tensor in tensors_of(inputs) if tensor.is_floating_point())
    rates = [rate if isinstance(rate, Tensor) else images.new_full((), rate) for rate in inputs.rates]
    return replace(inputs, rates=rates)


def largest_difference(left: Any, right: Any) -> float:
    """Return the largest difference between two trees, relative to the largest entry of the tensor."""
    worst = 0.0
    for mine, theirs in zip(tree_flatten(left)[0], tree_flatten(right)[0], strict=True):
        if isinstance(mine, Tensor) and mine.numel():
            size = float(theirs.double().abs().max())
            off = float((mine.double() - theirs.double()).abs().max())
            both_are_nan = size != size and off != off
            worst = max(worst, 0.0 if both_are_nan or off == 0.0 else off / max(size, 1e-30))
    return worst
