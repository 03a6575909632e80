"""Define the norms between a convolution and its ReLU: group, instance, layer, batch and static batch norm, and none.

A norm is passed to a network as a function from a channel count to a module, so that networks do not depend on the kind
of norm. Source: SSFL, section 3.2, design choice 2: GN instead of BN. Static batch norm (sBN) uses the batch's
statistics in training, and the statistics of a separate pass in evaluation: HeteroFL (Diao et al. 2021), section 3;
SemiFL, section 3.4; released models/utils.py:20-32 (training without tracking) and data.py:242-254 (the pass:
cumulative average over batches, momentum=None).

HeteroFL compares instance norm and layer norm with static batch norm (released models/conv.py): group
norms with one channel per group and with a single group. Layer norm is over the channels, rows and columns of an image
(Ba et al. 2016, Eq. 3), with a scale and a shift per channel and not per value.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import choose
from benchmark.data.image_ops import to_device
from benchmark.errors import ConfigError

# Shapes: N images, C channels, H rows, W columns

Norm = Callable[[int], nn.Module]


class StaticBatchNorm2d(nn.Module):
    """Batch norm with running statistics that are only set from outside; scale and shift are trained.

    It has the tensors of nn.BatchNorm2d, without `num_batches_tracked`, which would not count anything. In training, a
    batch with a single value per channel raises ValueError, like nn.BatchNorm2d.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        # (mean_C, unbiased variance_C, values per channel) of the last batch, if `statistics_over` collects them.
        self.seen: list[tuple[Tensor, Tensor, int]] | None = None

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """Normalise hidden_NCHW per channel."""
        mean_C, var_C, momentum = None, None, 0.0
        if not self.training:
            mean_C, var_C = self.running_mean, self.running_var
        elif self.seen is not None:
            # With momentum 1, torch sets the running statistics to exactly this batch's mean and unbiased variance.
            mean_C, var_C, momentum = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var), 1.0
            self.seen.append((mean_C, var_C, hidden_NCHW.numel() // len(mean_C)))
        return F.batch_norm(hidden_NCHW, mean_C, var_C, self.weight, self.bias, self.training, momentum, self.eps)


@torch.no_grad()
def statistics_over(
    network: nn.Module, batches: Iterable[Tensor], *, pooled: bool = True
) -> tuple[dict[str, Tensor], int]:
    """Compute the statistics of each sBN layer over batches of images in training mode, and their weight.

    The statistics are float64 tensors with the state_dict names of `running_mean` and `running_var`; without batches
    there are none. The network does not change. If `pooled`, the statistics are E[x] and Var[x] over all values, and
    the weight is the number of images. If not, they are the means over batches of the batches' means and unbiased
    variances, as in nn.BatchNorm2d(momentum=None), and the weight is the number of batches. In both cases,
    `mean_statistics` of several participants returns the statistics of all their batches.
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
    """Compute the weighted mean of the statistics of several subsets of images; empty without layers.

    All subsets have statistics of the same layers. If `pooled`, the result is the statistics of the values of all
    subsets together. Their variance is E[x^2] - E[x]^2, so that subsets with different means have a larger variance
    together than alone.
    """
    parts = list(shares)
    names = [_mean_of(name) for name in parts[0][0] if name.endswith("running_var")] if parts else []
    if not names:
        return {}
    # The tensors of all layers are joined to one row, so that a network with many layers needs few operations.
    both = [*names, *map(_var_of, names)]
    sizes = [len(parts[0][0][name]) for name in names]
    rows = []
    for statistics, _ in parts:
        rows.append(torch.cat([statistics[name] for name in both]))
    moments_S2P = torch.stack(rows)
    P = sum(sizes)
    total = sum((weight for _, weight in parts), start=0.0)
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
    """Build a group norm with trained scale and shift (SSFL: 32 groups; released resnet_gn.py:72-103)."""
    require_groups_divide(num_groups, channels)
    return nn.GroupNorm(num_groups, channels)


def instance_norm(channels: int) -> nn.Module:
    """Build an instance norm (Ulyanov et al. 2016) with trained scale and shift: each channel of an image by itself."""
    return nn.GroupNorm(channels, channels)


def layer_norm(channels: int) -> nn.Module:
    """Build a layer norm (Ba et al. 2016) of all values of an image, with trained scale and shift per channel."""
    return nn.GroupNorm(1, channels)


def channels_last_group_norm(images_NCHW: Tensor, groups: int, weight_C: Tensor, bias_C: Tensor, eps: float) -> Tensor:
    """Compute a group norm of images in channels-last memory format, without a copy to a different format.

    On CUDA, PyTorch's group norm copies such images to NCHW and returns an NCHW result, which the next convolution
    copies back. Shapes: S places of an image, G groups, I channels of a group.
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
    """A group norm for images in channels-last format; for bfloat16 it is PyTorch's, which sums in float32."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        if images_NCHW.dim() != 4 or images_NCHW.dtype == torch.bfloat16:
            return super().forward(images_NCHW)
        return channels_last_group_norm(images_NCHW, self.num_groups, self.weight, self.bias, self.eps)


def keep_channels_last(network: nn.Module) -> None:
    """Replace the network's group norms, in place, by norms that keep the channels-last memory format."""
    for layer in network.modules():
        if type(layer) is nn.GroupNorm and layer.affine:
            layer.__class__ = ChannelsLastGroupNorm


def require_groups_divide(num_groups: int, channels: int) -> None:
    """Raise ConfigError, which names the possible group counts, unless `num_groups` divides `channels`."""
    if channels % num_groups:
        divisors = [str(groups) for groups in range(1, channels + 1) if channels % groups == 0]
        raise ConfigError(
            f"model.norm_groups is {num_groups}, but it must divide {channels} channels; {choose(divisors)}"
        )


NORMS: Mapping[str, Callable[[int], Norm]] = {
    "gn": lambda num_groups: partial(group_norm, num_groups),
    "in": lambda num_groups: instance_norm,
    "ln": lambda num_groups: layer_norm,
    "bn": lambda num_groups: nn.BatchNorm2d,
    "sbn": lambda num_groups: StaticBatchNorm2d,
    "none": lambda num_groups: nn.Identity,
}


def has_batch_statistics(module: nn.Module) -> bool:
    """Return whether an image's output in training depends on its batch, which is true for any batch norm."""
    of_batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, StaticBatchNorm2d)
    return any(isinstance(part, of_batch) for part in module.modules())
