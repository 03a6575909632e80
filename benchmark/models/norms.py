"""Norms between a convolution and its ReLU: group, batch, static batch, none.

A norm is passed into a network as a function from a channel count to a module, so that a network does not know which it
has. Sources: SSFL, section 3.2 (design choice 2: GN instead of BN). Static batch norm (sBN) takes the batch's own
statistics in training, and in evaluation those of a separate pass: HeteroFL (Diao et al. 2021), section 3; SemiFL,
section 3.4; released models/utils.py:20-32 (training without tracking) and data.py:242-254 (the pass: cumulative
average over batches, momentum=None).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import choose
from benchmark.data.image_ops import to_device
from benchmark.errors import ConfigError

# N images, C channels, H rows, W columns

Norm = Callable[[int], nn.Module]


class StaticBatchNorm2d(nn.Module):
    """Batch norm whose running statistics change only from outside. Scale and shift are learned. The tensors are
    those of nn.BatchNorm2d, without `num_batches_tracked`, which would count nothing here. In training a batch with
    a single value a channel raises ValueError, as nn.BatchNorm2d does."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        # (mean_C, unbiased variance_C, values a channel) of the last batch, where `statistics_over` asks for them.
        self.seen: list[tuple[Tensor, Tensor, int]] | None = None

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """hidden_NCHW, normalised by channel."""
        mean_C, var_C, momentum = None, None, 0.0
        if not self.training:
            mean_C, var_C = self.running_mean, self.running_var
        elif self.seen is not None:
            # At momentum 1 torch leaves exactly this batch's mean and unbiased variance in the running statistics.
            mean_C, var_C, momentum = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var), 1.0
            self.seen.append((mean_C, var_C, hidden_NCHW.numel() // len(mean_C)))
        return F.batch_norm(hidden_NCHW, mean_C, var_C, self.weight, self.bias, self.training, momentum, self.eps)


@torch.no_grad()
def statistics_over(
    network: nn.Module, batches: Iterable[Tensor], *, pooled: bool = True
) -> tuple[dict[str, Tensor], int]:
    """The statistics of each sBN layer over batches of images, and their weight.

    They are those of training mode, as `running_mean` and `running_var` by their state_dict names (float64); empty
    without batches. The network is left as it was. pooled: E[x] and Var[x] over all values, and the number of images.
    Else the means over batches of their means and unbiased variances, as in nn.BatchNorm2d(momentum=None), and the
    number of batches. In either case `mean_statistics` of several holders gives those of all their batches.
    """
    layers = {name: part for name, part in network.named_modules() if isinstance(part, StaticBatchNorm2d)}
    was_training = network.training
    shares: list[tuple[dict[str, Tensor], int]] = []
    network.train()
    for layer in layers.values():
        layer.seen = []
    try:
        for images_NCHW in batches:
            network(images_NCHW)
            statistics: dict[str, Tensor] = {}
            for name, layer in layers.items():
                mean_C, var_C, values = (layer.seen or []).pop()
                biased = (values - 1) / values if pooled else 1.0
                statistics[f"{name}.running_mean".lstrip(".")] = mean_C.double()
                statistics[f"{name}.running_var".lstrip(".")] = var_C.double() * biased
            shares.append((statistics, len(images_NCHW) if pooled else 1))
    finally:
        network.train(was_training)
        for layer in layers.values():
            layer.seen = None
    return mean_statistics(shares, pooled=pooled), sum(weight for _, weight in shares)


def mean_statistics(shares: Iterable[tuple[Mapping[str, Tensor], float]], *, pooled: bool = True) -> dict[str, Tensor]:
    """Compute the weighted mean of the statistics of several parts, all of the same layers; empty without layers.

    pooled: those of the values of all parts together, whose variance is E[x^2] - E[x]^2, so that parts of different
    means spread further than any of them.
    """
    parts = list(shares)
    names = [_mean_of(name) for name in parts[0][0] if name.endswith("running_var")] if parts else []
    if not names:
        return {}
    # The tensors of all layers lie one behind the other, so that a network of many layers takes few operations.
    both = [*names, *map(_var_of, names)]
    sizes = [len(parts[0][0][name]) for name in names]
    moments_S2P = torch.stack([torch.cat([statistics[name] for name in both]) for statistics, _ in parts])
    P, total = sum(sizes), sum((weight for _, weight in parts), start=0.0)
    if pooled:
        moments_S2P[:, P:] += moments_S2P[:, :P] ** 2
    weights_S1 = torch.tensor([[weight] for _, weight in parts], dtype=moments_S2P.dtype)
    weights_S1 = to_device(weights_S1, moments_S2P.device)
    sums_2P = torch.zeros_like(moments_S2P[0])
    for moments_2P in moments_S2P * weights_S1:  # in the order of the parts, so that the sums are reproducible
        sums_2P += moments_2P
    mean_P, var_P = (sums_2P / total).split([P, P])
    if pooled:
        var_P = (var_P - mean_P**2).clamp(min=0.0)
    means: dict[str, Tensor] = {}
    for name, mean_C, var_C in zip(names, mean_P.split(sizes), var_P.split(sizes), strict=True):
        means[name], means[_var_of(name)] = mean_C.clone(), var_C.clone()
    return means


def _mean_of(running_var: str) -> str:
    return running_var.removesuffix("var") + "mean"


def _var_of(running_mean: str) -> str:
    return running_mean.removesuffix("mean") + "var"


def group_norm(num_groups: int, channels: int) -> nn.Module:
    """Group norm with learned scale and shift (SSFL: 32 groups). Released: resnet_gn.py:72-103."""
    require_groups_divide(num_groups, channels)
    return nn.GroupNorm(num_groups, channels)


def channels_last_group_norm(images_NCHW: Tensor, groups: int, weight_C: Tensor, bias_C: Tensor, eps: float) -> Tensor:
    """Compute a group norm of images that lie channels last, without a copy into another order.

    On CUDA PyTorch's group norm copies such images to NCHW and leaves its result so, which the next convolution copies
    back. Legend: S places of an image, G groups, I channels of a group.
    """
    N, C, H, W = images_NCHW.shape
    images_NSGI = images_NCHW.permute(0, 2, 3, 1).reshape(N, H * W, groups, C // groups)  # a view
    variance_NG, mean_NG = torch.var_mean(images_NSGI, dim=(1, 3), correction=0, keepdim=True)
    weight_GI, bias_GI = weight_C.view(groups, -1), bias_C.view(groups, -1)
    scale_NGI = (variance_NG + eps).rsqrt() * weight_GI
    shift_NGI = torch.addcmul(bias_GI, mean_NG, scale_NGI, value=-1)
    normed_NSGI = torch.addcmul(shift_NGI, images_NSGI, scale_NGI)
    return normed_NSGI.reshape(N, H, W, C).permute(0, 3, 1, 2)


class ChannelsLastGroupNorm(nn.GroupNorm):
    """A group norm for images that lie channels last. In bfloat16 it is PyTorch's, which sums in float32."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        if images_NCHW.dim() != 4 or images_NCHW.dtype == torch.bfloat16:
            return super().forward(images_NCHW)
        return channels_last_group_norm(images_NCHW, self.num_groups, self.weight, self.bias, self.eps)


def keep_channels_last(network: nn.Module) -> None:
    """Let the network's group norms leave images in the order in which they lie."""
    for layer in network.modules():
        if type(layer) is nn.GroupNorm and layer.affine:
            layer.__class__ = ChannelsLastGroupNorm


def require_groups_divide(num_groups: int, channels: int) -> None:
    """Raise ConfigError unless `num_groups` divides `channels`. The message has the group counts that do."""
    if channels % num_groups:
        divisors = [str(groups) for groups in range(1, channels + 1) if channels % groups == 0]
        raise ConfigError(f"model.norm_groups: {num_groups} does not divide {channels} channels; {choose(divisors)}")


NORMS: Mapping[str, Callable[[int], Norm]] = {
    "gn": lambda num_groups: partial(group_norm, num_groups),
    "bn": lambda num_groups: nn.BatchNorm2d,
    "sbn": lambda num_groups: StaticBatchNorm2d,
    "none": lambda num_groups: nn.Identity,
}


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether an image's output depends on its batch in training. True with batch norm, static or not."""
    of_batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, StaticBatchNorm2d)
    return any(isinstance(part, of_batch) for part in module.modules())
