"""List a network's own tensors, for operations on all of them at once."""

from typing import NamedTuple

from torch import Tensor, nn
from torch._C import _functorch


class Tensors(NamedTuple):
    """A network's own tensors, not copies, each once, in the order of `parameters()` and `buffers()`."""

    parameters: list[Tensor]
    floats: list[Tensor]  # parameters and running statistics
    counters: list[Tensor]  # counters of batches


def tensors_of(network: nn.Module) -> Tensors:
    """List the tensors that the network has at this moment.

    Nothing is cached between calls, because `torch.func.functional_call` swaps a network's tensors, so that an earlier
    list may contain tensors that the network no longer uses. PyTorch's traversal needs about three times the time.
    """
    parameters: dict[int, Tensor] = {}
    buffers: dict[int, Tensor] = {}
    modules: dict[int, nn.Module] = {}
    _collect(network, modules)
    for module in modules.values():
        for parameter in module._parameters.values():
            if parameter is not None:
                parameters[id(parameter)] = parameter
        for buffer in module._buffers.values():
            if buffer is not None:
                buffers[id(buffer)] = buffer
    everything = [*parameters.values(), *buffers.values()]
    floats = [tensor for tensor in everything if tensor.is_floating_point()]
    counters = [tensor for tensor in everything if not tensor.is_floating_point()]
    return Tensors(parameters=list(parameters.values()), floats=floats, counters=counters)


def is_stacked(tensor: Tensor) -> bool:
    """Return whether the tensor represents the tensors of several jobs (`benchmark.federated.stacked`)."""
    return bool(_functorch.is_batchedtensor(tensor))


def _collect(module: nn.Module, found: dict[int, nn.Module]) -> None:
    """Add the module and all modules inside it to `found`, each once, outer modules first."""
    if id(module) in found:
        return
    found[id(module)] = module
    for child in module._modules.values():
        if child is not None:
            _collect(child, found)
