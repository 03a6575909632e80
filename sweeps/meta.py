"""Runs code on tensors of torch's meta device, which have shapes and no numbers, and counts its FLOPs and operations.

So a round of any network is counted in milliseconds, and without data.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as unknown_shapes
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmark.models.build import Model, build
from benchmark.models.classifier import ImageShape

META = torch.device("meta")
aten = torch.ops.aten


# Results and FLOPs by the operation and the shapes that it is given: torch takes up to .4 ms to derive a result, and a
# network has the same operation on the same shapes in many layers.
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
        if not _on_meta(args):
            return function(*args, **kwargs)
        if function in _READS:
            answer = _READS[function](*args, **kwargs)
            if answer is not None:
                return answer
        self.operations += 1
        if _changes_in_place(function):
            return args[0] if function._schema.returns else None
        key = (function, _shapes(args), _shapes(kwargs.items()))
        if key not in _results:
            _results[key] = self._result(function, args, kwargs)
        result, flops = _results[key]
        self.flops += flops
        return result.data if isinstance(result, Tensor) else tree_map_only(Tensor, _fresh, result)

    def _result(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Return what the operation gives, and its FLOPs."""
        args, kwargs = tree_map_only(Tensor, _without_numbers, (args, kwargs))
        with unknown_shapes.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
            result = function(*args, **kwargs)
        formula = self._formulas.get(function._overloadpacket)
        flops = formula(*args, **kwargs, out_val=result) if formula else 0
        return result, flops


def _fresh(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape that autograd does not know."""
    return tensor.data


def _number(tensor: Tensor) -> float | int:
    """Answer `float(tensor)`, and whatever a condition asks."""
    return 1.0 if tensor.is_floating_point() else 1


def _true(*tensors: Tensor) -> bool:
    return True


def _how_many(tensor: Tensor, **kwargs: Any) -> Tensor | None:
    """Count the conditions of a tensor, since all are true; None for other sums."""
    return torch.tensor(tensor.numel()) if tensor.dtype == torch.bool else None


def _ones(tensor: Tensor, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor | None:
    """Copy to another device; None for a change of the type alone."""
    return None if device in (None, META) else torch.ones(tensor.shape, dtype=dtype or tensor.dtype)


_READS: Mapping[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: _number,
    aten.equal.default: _true,
    aten.sum.default: _how_many,
    aten._to_copy.default: _ones,
}


@cache
def _changes_in_place(function: Any) -> bool:
    return bool(function._schema.is_mutable)


def _on_meta(arguments: Any) -> bool:
    """Say whether one of an operation's arguments, which may be in lists, is a meta tensor."""
    for value in arguments:
        if value.is_meta if isinstance(value, Tensor) else isinstance(value, list | tuple) and _on_meta(value):
            return True
    return False


def _shapes(values: Any) -> tuple[Hashable, ...]:
    """Return the values with shapes in place of tensors, and with one number in place of all, which change none."""
    found: list[Hashable] = []
    for value in values:
        if isinstance(value, Tensor):
            found += (value.size(), value.stride(), value.dtype)
        elif isinstance(value, list | tuple):
            found.append(_shapes(value))
        else:
            found.append(float if isinstance(value, float) else value)
    return tuple(found)


def _without_numbers(tensor: Tensor) -> Tensor:
    """Return a meta tensor for any but a scalar, which meets tensors of all devices."""
    return tensor if tensor.is_meta or not tensor.dim() else tensor.to(META)


@cache
def network_on_meta(model: Model, image_shape: ImageShape, num_classes: int) -> nn.Module:
    """Return the network without numbers; all who ask share it, so train or evaluate a copy."""
    return build(model, image_shape, num_classes, seed=0).to(META)
