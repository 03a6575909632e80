"""Run code on tensors of torch's meta device, which have shapes but no numbers, and count its FLOPs and operations.

A round of any network is counted in milliseconds and without data.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as unknown_shapes
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmark.models.build import Model, build
from benchmark.models.classifier import ImageShape

META = torch.device("meta")
aten = torch.ops.aten


# Results and FLOPs by the operation and the shapes of its arguments. torch needs up to .4 ms to derive a result, and
# many layers of a network have the same operation on the same shapes.
_results: dict[Hashable, tuple[Any, int]] = {}


class WithoutNumbers(TorchDispatchMode):
    """A mode for running code that reads numbers on meta tensors: every number is 1, every condition is true.

    A meta tensor that is copied to the CPU becomes ones. A CPU tensor that is combined with a meta tensor loses its
    numbers. `flops` counts convolutions and matrix products by torch's own formulas; a multiplication and its addition
    count as two. `operations` counts all operations that a device executes in sequence.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # imported only on use, which costs a fifth of a second

        super().__init__()
        self._formulas = flop_registry
        self.flops = self.operations = 0
        self._reads_by_python = _ReadsByPython()

    def __enter__(self) -> "WithoutNumbers":
        self._reads_by_python.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads_by_python.__exit__(*error)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because torch would load its compiler and call it at every operation."""
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
        """Return the result of the operation, and its FLOPs."""
        args, kwargs = tree_map_only(Tensor, _without_numbers, (args, kwargs))
        with unknown_shapes.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
            result = function(*args, **kwargs)
        formula = self._formulas.get(function._overloadpacket)
        flops = formula(*args, **kwargs, out_val=result) if formula else 0
        return result, flops


_TO_PYTHON = (Tensor.numpy, Tensor.tolist, Tensor.__array__)


class _ReadsByPython(TorchFunctionMode):
    """A mode that replaces meta tensors by ones if they are converted to NumPy arrays or lists.

    torch refuses these conversions before it dispatches them, so that `WithoutNumbers` alone does not see them.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _TO_PYTHON and args[0].is_meta:
            tensor, *others = args
            args = (torch.ones(tensor.shape, dtype=tensor.dtype), *others)
        return function(*args, **(kwargs or {}))


def _fresh(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape without a gradient history."""
    return tensor.data


def _number(tensor: Tensor) -> float | int:
    """Return the number of `float(tensor)`, `tensor.item()` or a condition on the tensor."""
    return 1.0 if tensor.is_floating_point() else 1


def _true(*tensors: Tensor) -> bool:
    return True


def _how_many(tensor: Tensor, **kwargs: Any) -> Tensor | None:
    """Return the number of a tensor's conditions, since all are true. Return None for other sums."""
    return torch.tensor(tensor.numel()) if tensor.dtype == torch.bool else None


def _ones(tensor: Tensor, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor | None:
    """Return ones for a copy to a different device. Return None if only the type changes."""
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
    """Return whether one of an operation's arguments, which may be in lists, is a meta tensor."""
    for value in arguments:
        if value.is_meta if isinstance(value, Tensor) else isinstance(value, list | tuple) and _on_meta(value):
            return True
    return False


def _shapes(values: Any) -> tuple[Hashable, ...]:
    """Return the values with shapes instead of tensors, and `float` instead of floats, which do not affect shapes."""
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
    """Return a meta tensor. Return a scalar unchanged, since it can be combined with tensors of all devices."""
    return tensor if tensor.is_meta or not tensor.dim() else tensor.to(META)


@cache
def network_on_meta(model: Model, image_shape: ImageShape, num_classes: int) -> nn.Module:
    """Return the network without numbers. All callers share it, so train or evaluate a copy."""
    return build(model, image_shape, num_classes, seed=0).to(META)
