"""One local step of a group as a fixed list of operations on fixed memory: a CUDA graph.

A GPU is told of a whole step at once, in place of some hundred operations. What changes from step to step is copied
into the memory that the operations read: batches, drawn numbers, rates and dropout masks. The state is in memory that
stays (`Group`). Only steps of all of a group's jobs are recorded.

A recording repeats what the step was when it was recorded. So a kind whose steps read `step.number` is never recorded,
and every recording is compared with the step itself once, at another step than the one it was made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from benchmark.federated.stacked.layers import Masks
from benchmark.federated.stacked.tick import Inputs, Results, State, Tick
from benchmark.federated.stacked.trees import copy_into

TOLERANCE = 1e-4  # relative: kernels of a GPU add in an order that changes


class Graph(Protocol):
    """A recorded list of operations."""

    def replay(self) -> None: ...


# Records the operations of a function on fixed memory. Whether they are also carried out does not matter.
Recorder = Callable[[Callable[[], None]], Graph]


def cuda_graph(function: Callable[[], None]) -> Graph:
    """Record a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


class CannotRepeat(Exception):
    """A recording that differs from the step itself. The message says by how much."""


class Recording:
    """A step of a group, recorded. `shapes`: of the dropout masks that the step draws, in their order."""

    def __init__(
        self, recorder: Recorder, tick: Tick, state: State, inputs: Inputs, shapes: Sequence["MaskShape"]
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
        finally:  # a step that cannot be recorded may end in its middle
            state.private, state.notes = private, notes
            copy_into(state.trees(), before)

    def replay(self, inputs: Inputs, masks: Masks) -> Results:
        """Take the step with these inputs, changing the state."""
        given = tensors_of(with_tensor_rates(inputs))
        for mine, theirs in zip(tensors_of(self._inputs), given, strict=True):
            if mine.shape != theirs.shape and theirs.dim():  # one rate fits all jobs; else it is no copy of its place
                raise RuntimeError(f"what a step is given changes its shape to {list(theirs.shape)[1:]}")
        copy_into(tensors_of(self._inputs), given)
        drawn = [masks.draw(shape.of_one, shape.like, shape.p) for shape in self._shapes]
        copy_into(self._masks, drawn)
        self._graph.replay()
        return copied(self._results)

    def check(self, inputs: Inputs, masks: Masks, again: Masks) -> Results:
        """Take the step both ways. Return the results; the state is that of the step itself if the two differ.

        `masks` and `again` draw the same. Raises CannotRepeat if the two differ.
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
    """Masks that note what is drawn."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__(generators)
        self.shapes: list[MaskShape] = []

    def draw(self, shape: Sequence[int], like: Tensor, p: float) -> Tensor:
        masks = super().draw(shape, like, p)
        self.shapes.append(MaskShape(shape, like, p, len(masks)))
        return masks


class HeldMasks(Masks):
    """Masks that were drawn before, in their order."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        super().__init__([])
        self._held = iter(held)

    def draw(self, shape: Sequence[int], like: Tensor, p: float) -> Tensor:
        return next(self._held)


def copied(tree: Any) -> Any:
    """Return a copy of a tree's tensors. `Inputs` count as a tree."""
    if isinstance(tree, Inputs):
        return with_tensors(tree, [tensor.clone() for tensor in tensors_of(tree)])
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """Return all tensors of the inputs, in a fixed order."""
    leaves, _ = tree_flatten([inputs.batch, list(inputs.drawn), list(inputs.rates)])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def with_tensors(inputs: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """Return the inputs with other tensors, in the order of `tensors_of`."""
    leaves, layout = tree_flatten([inputs.batch, list(inputs.drawn), list(inputs.rates)])
    rest = iter(tensors)
    batch, drawn, rates = tree_unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], layout)
    return replace(inputs, batch=batch, drawn=drawn, rates=rates)


def with_tensor_rates(inputs: Inputs) -> Inputs:
    """Return the inputs with a tensor in place of a rate that is a number."""
    images = next(tensor for tensor in tensors_of(inputs) if tensor.is_floating_point())
    rates = [rate if isinstance(rate, Tensor) else images.new_full((), rate) for rate in inputs.rates]
    return replace(inputs, rates=rates)


def largest_difference(left: Any, right: Any) -> float:
    """Return the largest difference of two trees, relative to the largest entry of its tensor."""
    worst = 0.0
    for mine, theirs in zip(tree_flatten(left)[0], tree_flatten(right)[0], strict=True):
        if isinstance(mine, Tensor) and mine.numel():
            size = float(theirs.double().abs().max())
            off = float((mine.double() - theirs.double()).abs().max())
            both_are_nan = size != size and off != off
            worst = max(worst, 0.0 if both_are_nan or off == 0.0 else off / max(size, 1e-30))
    return worst
