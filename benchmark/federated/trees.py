"""Work with trees of named tensors: nested mappings with tensors, numbers and None as leaves."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmark.data.image_ops import to_device


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its dotted name, such as "student.conv1.weight"."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the tree with the function applied to each tensor."""
    if isinstance(tree, Mapping):
        return {name: mapped(value, function) for name, value in tree.items()}
    return function(tree) if isinstance(tree, Tensor) else tree


def copied(tree: Any) -> Any:
    """Return the tree with copies of its tensors, in the same memory layout."""
    return mapped(tree, Tensor.clone)


def with_own_leaves(tree: Any, known: dict[int, Any] | None = None) -> Any:
    """Copy a tree and everything in it that can change in place; an object that it contains twice is copied once."""
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
    """Return the tree with its tensors on the device; tensors that are already on it are not copied.

    Copies from the host to a device do not synchronise.
    """
    if device.type == "cpu":
        return mapped(tree, lambda tensor: tensor.to(device))
    return mapped(tree, lambda tensor: to_device(tensor, device))


def tree_bytes(tree: Mapping[str, Any], tied: Collection[str] = ()) -> int:
    """Count the bytes of all tensors in a tree, and 8 per plain number; weights named in `tied` are not counted."""
    total = 0
    for name, value in tree.items():
        if isinstance(value, Mapping):
            total += 0 if name in tied else tree_bytes(value, tied)
        elif value is not None and name not in tied:
            total += value.nbytes if isinstance(value, Tensor) else 8
    return total


def read_at_once(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host with one copy, and one synchronisation, per device.

    Integers up to 2^53 and floating-point numbers of up to 64 bits are exact.
    """
    found = list(tensors)
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for index, tensor in enumerate(found):
        if tensor.device.type != "cpu":
            by_device[tensor.device].append(index)
    for indices in by_device.values():
        sizes = [found[index].numel() for index in indices]
        together = torch.cat([found[index].detach().double().flatten() for index in indices]).cpu()
        for index, values in zip(indices, together.split(sizes), strict=True):
            found[index] = values.view(found[index].shape).to(found[index].dtype)
    return found


def sums_of(tree: Mapping[str, Any]) -> Tensor:
    """Return the sum of each floating-point tensor of the tree, on the device of the first tensor.

    A sum is finite unless an entry is not, or the sum overflows. On one core, this costs 0.06 ms for 0.5 M weights and
    1.7 ms for 11 M, while isfinite for every entry costs 1.1 and 24 ms. On a GPU, absolute values are summed, because
    one operation does this for many tensors.
    """
    tensors = [value for _, value in floating(tree)]
    if not tensors:
        return torch.zeros(0)
    device = tensors[0].device
    if device.type != "cuda":
        sums = [tensor.sum().double() for tensor in tensors]
        return torch.stack([total.to(device) for total in sums])
    norms = torch._foreach_norm([tensor.to(device).detach() for tensor in tensors], 1)
    return torch.stack([norm.double() for norm in norms])


def first_not_finite(tree: Mapping[str, Any], sums: Tensor | None = None) -> str | None:
    """Return the dotted name of the first leaf with a NaN or an infinity, such as "student.conv1.weight", or None.

    Integers are always finite. `sums` contains the result of `sums_of` if it is already known.
    """
    numbers = [name for name, value in leaves(tree) if isinstance(value, float) and not math.isfinite(value)]
    (sums,) = read_at_once([sums_of(tree) if sums is None else sums])
    suspects = (~sums.isfinite()).nonzero().flatten().tolist()
    tensors = floating(tree) if suspects else []
    for index in suspects:  # only tensors without a finite sum are examined again
        name, value = tensors[index]
        if not bool(value.isfinite().all()):
            return name
    return numbers[0] if numbers else None


def floating(tree: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in leaves(tree) if isinstance(value, Tensor) and value.is_floating_point()]
