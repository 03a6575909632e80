"""Runs code on tensors of torch's meta device, which have shapes and no numbers, and counts its FLOPs and operations.

So local steps and averages of any network are counted in milliseconds, and without data.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as unknown_shapes
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

META = torch.device("meta")
aten = torch.ops.aten


@dataclass(frozen=True)
class Shape:
    """What a meta tensor is made of."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


# The results of operations and their FLOPs, by the operation and the shapes that it is given: torch takes .4 ms to
# derive a result, and a round has the same operation on the same shapes for each client.
_results: dict[Hashable, tuple[Any, int]] = {}


class WithoutNumbers(TorchDispatchMode):
    """Let code that reads numbers run on meta tensors: every number is 1, and every condition is true.

    A meta tensor that is copied to the CPU becomes ones. A CPU tensor that meets a meta tensor loses its numbers.
    `flops` are those of convolutions and matrix products by torch's own formulas; a multiplication and its addition
    count as two. `operations` are all that a device is given one after another.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # a fifth of a second to import, which few need

        super().__init__()
        self._formulas = flop_registry
        self.flops = self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would load its compiler, and ask it at every operation."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(tensor.is_meta for tensor in _tensors(args)):
            return function(*args, **kwargs)
        match function:
            case aten._local_scalar_dense.default:  # float(tensor), and whatever a condition asks
                return 1.0 if args[0].is_floating_point() else 1
            case aten.equal.default:
                return True
            case aten.sum.default if args[0].dtype == torch.bool:
                return torch.tensor(args[0].numel())
            case aten._to_copy.default if kwargs.get("device") not in (None, META):
                return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        self.operations += 1
        if function._schema.is_mutable:  # there are no numbers that could change
            return args[0] if function._schema.returns else None
        key = (function, _shapes(args), _shapes(tuple(kwargs.items())))
        if key not in _results:
            _results[key] = self._result(function, args, kwargs)
        result, flops = _results[key]
        self.flops += flops
        return _tensors_of(result)

    def _result(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        args, kwargs = tree_map_only(Tensor, _without_numbers, (args, kwargs))
        with unknown_shapes.patch(meta_nonzero_assume_all_nonzero=True):
            result = function(*args, **kwargs)
        formula = self._formulas.get(function._overloadpacket)
        return _shapes(result, exact=True), formula(*args, **kwargs, out_val=result) if formula else 0


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operation's arguments, which may be in lists."""
    for value in arguments:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _shapes(value: Any, *, exact: bool = False) -> Any:
    """Return the value with shapes in place of tensors. Unless `exact`, one number stands for all of its type."""
    if isinstance(value, Tensor):
        return Shape(value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(_shapes(part, exact=exact) for part in value)
    return float if isinstance(value, float) and not exact else value


def _tensors_of(shapes: Any) -> Any:
    """Return meta tensors of these shapes."""
    if isinstance(shapes, Shape):
        return torch.empty_strided(shapes.size, shapes.stride, dtype=shapes.dtype, device=META)
    return tuple(map(_tensors_of, shapes)) if isinstance(shapes, tuple) else shapes


def _without_numbers(tensor: Tensor) -> Tensor:
    """Return a meta tensor for any but a scalar, which meets tensors of all devices."""
    return tensor if tensor.is_meta or not tensor.dim() else tensor.to(META)


def numbered(tree: Any, weights: Collection[str]) -> Any:
    """Return the tree with ones for each meta tensor that is not one of the network's weights.

    They are small, and methods compute with them on the CPU (class counts, histograms).
    """
    if isinstance(tree, Mapping):
        return {
            name: value if name in weights and isinstance(value, Tensor) else numbered(value, weights)
            for name, value in tree.items()
        }
    return torch.ones(tree.shape, dtype=tree.dtype) if isinstance(tree, Tensor) and tree.is_meta else tree
