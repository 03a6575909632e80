"""Trees of named tensors: mappings of mappings, with tensors, numbers and None as leaves."""

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its dotted name, such as "student.conv1.weight"."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The tree with the function's tensors in place of its own."""
    if isinstance(tree, Mapping):
        return {name: mapped(value, function) for name, value in tree.items()}
    return function(tree) if isinstance(tree, Tensor) else tree


def copied(tree: Any) -> Any:
    """The tree with tensors of its own, in the layout they had."""
    return mapped(tree, Tensor.clone)


def with_own_leaves(tree: Any, known: dict[int, Any] | None = None) -> Any:
    """Copy a tree with all that can be changed in place. What is in it twice is so in the copy."""
    known = {} if known is None else known
    if isinstance(tree, Mapping):
        return {name: with_own_leaves(value, known) for name, value in tree.items()}
    if isinstance(tree, list | tuple) and type(tree) in (list, tuple):
        return type(tree)(with_own_leaves(value, known) for value in tree)
    if id(tree) not in known:
        if isinstance(tree, Tensor):
            known[id(tree)] = tree.detach().clone().requires_grad_(tree.requires_grad)
        else:
            known[id(tree)] = copy.deepcopy(tree)
    return known[id(tree)]


def moved(tree: Any, device: torch.device) -> Any:
    """The tree with its tensors on the device; those that are there already stay as they are."""
    return mapped(tree, lambda tensor: tensor.to(device))


def tree_bytes(tree: Mapping[str, Any], tied: Collection[str] = ()) -> int:
    """Bytes of all tensors in a tree; a plain number counts 8. `tied`: names of weights that are there once more."""
    total = 0
    for name, value in tree.items():
        if isinstance(value, Mapping):
            total += 0 if name in tied else tree_bytes(value, tied)
        elif value is not None and name not in tied:
            total += value.nbytes if isinstance(value, Tensor) else 8
    return total


def first_not_finite(tree: Mapping[str, Any]) -> str | None:
    """The dotted name of the first leaf with a NaN or an infinity, or None.

    Such as "student.conv1.weight". Whole numbers are always finite.
    """
    values = list(leaves(tree))
    tensors = [(name, value) for name, value in values if isinstance(value, Tensor) and value.is_floating_point()]
    numbers = [name for name, value in values if isinstance(value, float) and not math.isfinite(value)]
    # A sum is not finite where an entry is not; only where it is not is there a second look (sums may overflow).
    # 0.06 ms for 0.5 M weights and 1.7 ms for 11 M on one core; isfinite on every entry takes 1.1 and 24 ms.
    sums = torch.stack([value.sum().double().to(tensors[0][1].device) for _, value in tensors] or [torch.zeros(())])
    for index in (~sums.isfinite()).nonzero().flatten().tolist():
        name, value = tensors[index]
        if not bool(value.isfinite().all()):
            return name
    return numbers[0] if numbers else None
