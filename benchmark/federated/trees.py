"""Trees of named tensors: mappings of mappings, with tensors, numbers and None as leaves."""

from collections.abc import Callable, Iterator, Mapping
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


def moved(tree: Any, device: torch.device) -> Any:
    """The tree with its tensors on the device; those that are there already stay as they are."""
    return mapped(tree, lambda tensor: tensor.to(device))


def tree_bytes(tree: Mapping[str, Any]) -> int:
    """Bytes of all tensors in a tree; a plain number counts 8."""
    values = [value for _, value in leaves(tree)]
    return sum(value.nbytes if isinstance(value, Tensor) else 8 for value in values if value is not None)
