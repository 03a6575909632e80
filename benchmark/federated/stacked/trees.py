"""Convert the trees of M jobs to one tree with M rows per tensor, and back.

A tree consists of nested mappings, as in `benchmark.federated.trees`. Leaves that are not tensors must be equal in all
jobs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from benchmark.methods.protocol import Tree


def stacked(trees: Sequence[Any]) -> Any:
    """Stack the trees of M jobs, tensor by tensor. Take all other leaves from the first job."""
    flat = [tree_flatten(tree)[0] for tree in trees]
    layout = tree_flatten(trees[0])[1]
    leaves = [torch.stack(some) if isinstance(some[0], Tensor) else some[0] for some in zip(*flat, strict=True)]
    return tree_unflatten(leaves, layout)


def stacked_each(trees: Sequence[Mapping[str, Tree]]) -> dict[str, Tree]:
    """Stack the entries of M jobs, such as their weight sets."""
    entries: dict[str, Tree] = {}
    for name in trees[0]:
        entries[name] = stacked([tree[name] for tree in trees])
    return entries


def rows(tree: Any, at_M: Tensor) -> Any:
    """Return a copy of the rows of some jobs."""
    return tree_map(lambda leaf: leaf[at_M] if isinstance(leaf, Tensor) else leaf, tree)


@torch.no_grad()
def put_rows(tree: Any, at_M: Tensor, some: Any) -> None:
    """Copy the rows of some jobs back to their places."""
    for leaf, part in zip(tree_flatten(tree)[0], tree_flatten(some)[0], strict=True):
        if isinstance(leaf, Tensor):
            leaf[at_M] = part.detach()


@torch.no_grad()
def copy_into(tree: Any, other: Any) -> None:
    """Copy the tensors of `other` into the tensors of `tree`, which has the same layout, in one operation per type."""
    pairs = zip(tree_flatten(tree)[0], tree_flatten(other)[0], strict=True)
    places: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for mine, theirs in pairs:
        if isinstance(mine, Tensor) and mine is not theirs:
            here, there = places.setdefault(mine.dtype, ([], []))
            here.append(mine)
            there.append(theirs.detach())
    for here, there in places.values():
        torch._foreach_copy_(here, there)


def row(tree: Any, index: int) -> Any:
    """Return one job's tree, as views."""
    return tree_map(lambda leaf: leaf.detach()[index] if isinstance(leaf, Tensor) else leaf, tree)


@torch.no_grad()
def with_own_memory(trees: Sequence[Tree], state: Any) -> list[Tree]:
    """Return the trees with copies of all views of the tensors of `state`, because later jobs reuse their memory.

    A view would also keep the tensors of all M jobs in memory. All tensors are copied in one operation.
    """
    leaves, layout = tree_flatten(list(trees))
    memory = {_memory(leaf) for leaf in tree_flatten(state)[0] if isinstance(leaf, Tensor)}
    views = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and _memory(leaf) in memory]
    copies = [torch.empty_like(leaves[at]) for at in views]
    if views:
        torch._foreach_copy_(copies, [leaves[at] for at in views])
    for at, copied in zip(views, copies, strict=True):
        leaves[at] = copied
    owned: list[Tree] = tree_unflatten(leaves, layout)
    return owned


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The hashable properties that must be equal in two trees so that they can be stacked."""

    layout: TreeSpec
    leaves: tuple[object, ...]


def shape_of(tree: Tree) -> Shape:
    """Return the tree's layout, the shapes and types of its tensors, and the values of its other leaves."""
    leaves, layout = tree_flatten(tree)
    described = [
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else (type(leaf), repr(leaf)) for leaf in leaves
    ]
    return Shape(layout=layout, leaves=tuple(described))


class CannotStack(Exception):
    """Raised if jobs of one kind cannot take their steps together. The message is the reason."""


def refuse_other_kind(name: str, before: Any, after: Any) -> None:
    """Raise CannotStack if a step replaces a value by a different kind of value, which does not fit into the rows."""
    (old, layout), (new, layout_after) = tree_flatten(before), tree_flatten(after)
    if layout != layout_after:
        raise CannotStack(f"its steps change the entries of {name!r}")
    for mine, theirs in zip(old, new, strict=True):
        if isinstance(mine, Tensor) != isinstance(theirs, Tensor):
            raise CannotStack(f"its steps put a tensor in place of another value into {name!r}, or the reverse")
        if not isinstance(mine, Tensor):
            if mine is not theirs and mine != theirs:
                raise CannotStack(f"its steps change the number {name!r}; make it a tensor")
        elif mine.shape != theirs.shape or mine.is_floating_point() != theirs.is_floating_point():
            raise CannotStack(f"its steps change the shape or type of {name!r}")


class Observed(dict[str, Any]):
    """A mapping that reports which of its entries are requested."""

    def asked(self, name: object) -> None:
        """Record that an entry is read, or that its existence is checked."""
        raise NotImplementedError

    def asked_all(self) -> None:
        """Record that all entries are read or counted."""
        raise NotImplementedError

    def plain(self) -> dict[str, Any]:
        """Return the entries without reporting that they are read."""
        return {name: dict.__getitem__(self, name) for name in dict.keys(self)}

    def __getitem__(self, name: str) -> Any:
        self.asked(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.asked(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        self.asked(name)
        return super().setdefault(name, default)

    def __len__(self) -> int:
        self.asked_all()
        return super().__len__()

    def __iter__(self) -> Any:
        self.asked_all()
        return super().__iter__()

    def keys(self) -> Any:
        self.asked_all()
        return super().keys()

    def values(self) -> Any:
        self.asked_all()
        return super().values()

    def items(self) -> Any:
        self.asked_all()
        return super().items()

    def copy(self) -> Any:
        self.asked_all()
        return self.plain()

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()


class LeftOut(Observed):
    """A mapping without the entries that the first step did not read. Requesting one of these is an error."""

    def __init__(self, tree: Mapping[str, Any], left_out: Collection[str]) -> None:
        super().__init__(tree)
        self._left_out = left_out

    def asked(self, name: object) -> None:
        """Raise CannotStack for an entry that was left out."""
        if name in self._left_out and not dict.__contains__(self, name):
            raise CannotStack(f"a later step reads {name!r}, which the first step does not")

    def asked_all(self) -> None:
        """Raise CannotStack if an entry was left out."""
        for name in self._left_out:
            self.asked(name)


class Watched(Observed):
    """A mapping that records which of its entries are read or written."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        super().__init__(tree)
        self.touched: set[str] = set()
        self.missed: set[str] = set()  # requested entries that did not exist

    def asked(self, name: object) -> None:
        """Record the entry."""
        self.touched.add(str(name))
        if not dict.__contains__(self, name):
            self.missed.add(str(name))

    def asked_all(self) -> None:
        """Record all entries."""
        self.touched.update(dict.keys(self))

    def __setitem__(self, name: str, value: Any) -> None:
        self.touched.add(name)
        super().__setitem__(name, value)

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value
