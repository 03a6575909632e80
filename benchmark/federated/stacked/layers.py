"""Layers with rules for `torch.func.vmap` that keep the M jobs in the channels: one operation on (N, M C, H, W).

PyTorch's own rules are also correct, but they copy the images before and after every norm and pool. A step of WRN-28-2
has 711 operations with them and 315 with these rules. A layer that is not listed in `RULES` keeps PyTorch's rule.

PyTorch's own Python code uses the same functions of `torch._C._functorch` to open and close a stacked tensor. The
public way to define a rule, `torch.autograd.Function.vmap`, has the same result and costs .2 ms more per call.

Legend: M jobs, N images, C channels, H W pixels, O outputs, I inputs.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from benchmark.data.image_ops import to_device
from benchmark.models.norms import ChannelsLastGroupNorm, StaticBatchNorm2d, channels_last_group_norm


def is_stacking() -> bool:
    """Return whether the innermost transform around this code is `vmap`, so that a rule of this file applies."""
    top = _functorch.peek_interpreter_stack()
    return top is not None and top.key() == _functorch.TransformType.Vmap


Rule = Callable[..., tuple[Tensor, int]]  # (M, dims, *arguments) -> the result, and its dimension of jobs


def stacked_call(rule: Rule, *arguments: Any) -> Tensor:
    """Call the rule on the physical tensors.

    `dims` contains each argument's dimension of jobs, or None if the argument has no such dimension.
    """
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    opened: list[Any] = []
    dims: list[int | None] = []
    for argument in arguments:
        is_open = isinstance(argument, Tensor) and _functorch.is_batchedtensor(argument)
        if is_open and _functorch.maybe_get_level(argument) == level:
            opened.append(_functorch.get_unwrapped(argument))
            dims.append(_functorch.maybe_get_bdim(argument))
        else:
            opened.append(argument)
            dims.append(None)
    with interpreter.lower():
        result, dim = rule(interpreter.batch_size(), dims, *opened)  # type: ignore[attr-defined]  # of vmap's
    stacked: Tensor = _functorch._add_batch_dim(result, dim, level)
    return stacked


_ORDER: ContextVar[torch.memory_format | None] = ContextVar("order", default=None)


@contextlib.contextmanager
def in_memory_order(order: torch.memory_format) -> Iterator[None]:
    """Set the memory format of images in stacked layers inside the context.

    Without this context the order is channels last on a CPU and contiguous on other devices.
    """
    token = _ORDER.set(order)
    try:
        yield
    finally:
        _ORDER.reset(token)


def order_of(images: Tensor) -> torch.memory_format:
    """Return the memory format of images in stacked layers."""
    return _ORDER.get() or (torch.channels_last if images.is_cpu else torch.contiguous_format)


def in_channels(images: Tensor, dim: int | None, M: int) -> Tensor:
    """Return the images of M jobs as (N, M C, H, W). Copy them unless they have this layout in memory."""
    images = with_rows(images, dim, M).transpose(0, 1)
    images = images.flatten(1, 2)
    if len(images) == 1:
        # A single image counts as contiguous, whatever its first stride is. But CPU kernels read the memory format from
        # the strides, and some return wrong values or gradients if the first stride does not fit.
        return images.clone(memory_format=torch.contiguous_format)
    return images.contiguous(memory_format=order_of(images))


def out_of_channels(images: Tensor, M: int) -> tuple[Tensor, int]:
    """Return a view of shape (N, M, C, H, W), and 1, its dimension of jobs."""
    return images.unflatten(1, (M, -1)), 1


def with_rows(tensor: Tensor, dim: int | None, M: int) -> Tensor:
    """Return the tensor with M rows, one for each job."""
    return tensor.unsqueeze(0).expand(M, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def one_after_another(tensor: Tensor | None, dim: int | None, M: int) -> Tensor | None:
    """Concatenate the tensors of M jobs in their first dimension. Return None for None."""
    return None if tensor is None else with_rows(tensor, dim, M).flatten(0, 1)


def _convolution(
    M: int, dims: Sequence[int | None], images: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
) -> tuple[Tensor, int]:
    images = in_channels(images, dims[0], M)
    weights = one_after_another(weight, dims[1], M)
    assert weights is not None
    weights = weights.contiguous(memory_format=order_of(images))
    biases = one_after_another(bias, dims[2], M)
    return out_of_channels(F.conv2d(images, weights, biases, stride, padding, groups=M), M)


def norm_copies(images: Tensor) -> bool:
    """Return whether PyTorch's group norm would copy the images into a different memory format."""
    return not images.is_cpu and order_of(images) is torch.channels_last


def _group_norm(
    M: int, dims: Sequence[int | None], images: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, int]:
    weights, biases = one_after_another(weight, dims[1], M), one_after_another(bias, dims[2], M)
    images = in_channels(images, dims[0], M)
    if norm_copies(images) and images.dtype != torch.bfloat16 and weights is not None and biases is not None:
        return out_of_channels(channels_last_group_norm(images, groups * M, weights, biases, eps), M)
    return out_of_channels(F.group_norm(images, groups * M, weights, biases, eps), M)


def _batch_norm(
    M: int,
    dims: Sequence[int | None],
    images: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, int]:
    """Apply F.batch_norm to the channels of all jobs.

    Raise RuntimeError if the running statistics of the jobs are not contiguous, since PyTorch would then update a
    copy of them.
    """
    means, variances = one_after_another(mean, dims[1], M), one_after_another(variance, dims[2], M)
    for given, used in ((mean, means), (variance, variances)):
        if training and given is not None and used is not None and used.data_ptr() != given.data_ptr():
            raise RuntimeError("running statistics of a stacked batch norm are not contiguous")
    weights, biases = one_after_another(weight, dims[3], M), one_after_another(bias, dims[4], M)
    images = in_channels(images, dims[0], M)
    return out_of_channels(F.batch_norm(images, means, variances, weights, biases, training, momentum, eps), M)


def _max_pool(
    M: int, dims: Sequence[int | None], images: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[Tensor, int]:
    images = in_channels(images, dims[0], M)
    return out_of_channels(F.max_pool2d(images, kernel, stride, padding, ceil_mode=ceil_mode), M)


def _adaptive_max_pool(M: int, dims: Sequence[int | None], images: Tensor, size: Any) -> tuple[Tensor, int]:
    pooled = F.adaptive_max_pool2d(in_channels(images, dims[0], M), size)
    assert isinstance(pooled, Tensor)
    return out_of_channels(pooled, M)


def _linear(
    M: int, dims: Sequence[int | None], inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    """Compute the transposed product, so that the gradient with respect to the weights is contiguous."""
    inputs_MNI, weight_MOI = with_rows(inputs, dims[0], M), with_rows(weight, dims[1], M)
    if bias is None:
        return torch.bmm(weight_MOI, inputs_MNI.mT).mT, 0
    return torch.baddbmm(with_rows(bias, dims[2], M)[:, :, None], weight_MOI, inputs_MNI.mT).mT, 0


class Conv2d(nn.Conv2d):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not is_stacking():
            return super().forward(images_NCHW)
        return stacked_call(_convolution, images_NCHW, self.weight, self.bias, self.stride, self.padding)


class GroupNorm(nn.GroupNorm):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not is_stacking() or images_NCHW.dim() != 4 or self.weight is None:
            return super().forward(images_NCHW)
        return stacked_call(_group_norm, images_NCHW, self.weight, self.bias, self.num_groups, self.eps)


class BatchNorm2d(nn.BatchNorm2d):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not is_stacking():
            return super().forward(images_NCHW)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        statistics = (self.running_mean, self.running_var)
        learned, rest = (self.weight, self.bias), (self.training, self.momentum, self.eps)
        return stacked_call(_batch_norm, images_NCHW, *statistics, *learned, *rest)


class StaticNorm(StaticBatchNorm2d):
    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        if not is_stacking() or self.seen is not None:
            return super().forward(hidden_NCHW)
        statistics = (None, None) if self.training else (self.running_mean, self.running_var)
        learned, rest = (self.weight, self.bias), (self.training, 0.0, self.eps)
        return stacked_call(_batch_norm, hidden_NCHW, *statistics, *learned, *rest)


class MaxPool2d(nn.MaxPool2d):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not is_stacking():
            return super().forward(images_NCHW)
        options = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        return stacked_call(_max_pool, images_NCHW, *options)


class AdaptiveMaxPool2d(nn.AdaptiveMaxPool2d):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not is_stacking():
            return super().forward(images_NCHW)
        return stacked_call(_adaptive_max_pool, images_NCHW, self.output_size)


class Linear(nn.Linear):
    def forward(self, inputs_NI: Tensor) -> Tensor:
        if not is_stacking() or inputs_NI.dim() != 2:
            return super().forward(inputs_NI)
        return stacked_call(_linear, inputs_NI, self.weight, self.bias)


class Masks:
    """Draws each job's dropout masks from the job's own stream, in the order of the jobs.

    A mask equals the mask that `F.dropout` draws on a CPU from a global generator that is seeded for the job.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = generators

    def draw(self, shape: Sequence[int], like: Tensor, p: float) -> Tensor:
        """Return the masks of all jobs, (M, *shape), with the values 0 and 1 / (1 - p)."""
        masks = [
            torch.empty(shape, dtype=like.dtype).bernoulli_(1 - p, generator=generator).div_(1 - p)
            for generator in self._generators
        ]
        return to_device(torch.stack(masks), like.device)


_MASKS: ContextVar[Masks | None] = ContextVar("masks", default=None)


@contextlib.contextmanager
def drawing(masks: Masks) -> Iterator[None]:
    """Make the dropout layers of this file draw from `masks` inside the context."""
    token = _MASKS.set(masks)
    try:
        yield
    finally:
        _MASKS.reset(token)


def _dropped(images: Tensor, p: float, whole_channels: bool) -> Tensor:
    """Apply dropout with the masks of `drawing`, for all stacked jobs or for a job that trains separately."""
    masks = _MASKS.get()
    assert masks is not None

    def rule(M: int, dims: Sequence[int | None], stacked: Tensor) -> tuple[Tensor, int]:
        stacked = with_rows(stacked, dims[0], M)
        return stacked * masks.draw(mask_shape(stacked.shape[1:]), stacked, p), 0

    def mask_shape(shape: Sequence[int]) -> list[int]:
        return [*shape[:2], *(1 for _ in shape[2:])] if whole_channels else list(shape)

    if is_stacking():
        return stacked_call(rule, images)
    if any(one.key() == _functorch.TransformType.Vmap for one in _functorch.get_interpreter_stack() or ()):
        raise RuntimeError("dropout inside a transform of a loss has no rule for several jobs")
    return images * masks.draw(mask_shape(images.shape), images, p)[0]


class Dropout(nn.Dropout):
    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or not self.p or _MASKS.get() is None:
            return super().forward(inputs)
        return _dropped(inputs, self.p, whole_channels=False)


class Dropout2d(nn.Dropout2d):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not self.training or not self.p or _MASKS.get() is None:
            return super().forward(images_NCHW)
        return _dropped(images_NCHW, self.p, whole_channels=True)


RULES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: Conv2d,
    nn.GroupNorm: GroupNorm,
    ChannelsLastGroupNorm: GroupNorm,
    nn.BatchNorm2d: BatchNorm2d,
    StaticBatchNorm2d: StaticNorm,
    nn.MaxPool2d: MaxPool2d,
    nn.AdaptiveMaxPool2d: AdaptiveMaxPool2d,
    nn.Linear: Linear,
    nn.Dropout: Dropout,
    nn.Dropout2d: Dropout2d,
}


DROPOUT: dict[type[nn.Module], type[nn.Module]] = {nn.Dropout: Dropout, nn.Dropout2d: Dropout2d}


def with_rules(network: nn.Module, rules: Mapping[type[nn.Module], type[nn.Module]] = RULES) -> nn.Module:
    """Return a copy of the network with the layers of `rules` in place of the layers that they are written for."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if type(layer) in rules and _fits(layer):
            layer.__class__ = rules[type(layer)]
    return network


def _fits(layer: nn.Module) -> bool:
    """Return whether the rule supports the options of this layer."""
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if isinstance(layer, nn.MaxPool2d):
        return layer.dilation == 1 and not layer.return_indices
    if isinstance(layer, nn.AdaptiveMaxPool2d):
        return not layer.return_indices
    if isinstance(layer, nn.BatchNorm2d):
        return layer.track_running_stats and layer.affine and layer.momentum is not None
    if isinstance(layer, nn.Dropout | nn.Dropout2d):
        return not layer.inplace
    return True
