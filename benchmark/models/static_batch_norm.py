"""Static batch norm (sBN): batch statistics in training, statistics measured in a pass of their own in evaluation.

Source: HeteroFL (Diao et al. 2021), section 3; SemiFL, section 3.4; released models/utils.py:20-32 (training without
tracking) and data.py:242-254 (the pass: cumulative average over batches, momentum=None).
The pass, at fixed weights and in training mode:

    with collecting(network), torch.no_grad():
        for images_NCHW in batches:
            network(images_NCHW)
    weights = set_statistics(weights, statistics(network))

Statistics of several clients: their means, weighted by `batches_collected`, are the statistics of all their batches.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# N images, C channels, H rows, W columns


class StaticBatchNorm2d(nn.Module):
    """Batch norm with learned scale and shift whose running statistics change only from outside.

    The tensors are those of nn.BatchNorm2d, without `num_batches_tracked`, which would count nothing here.
    In training a batch with a single value a channel raises ValueError, as nn.BatchNorm2d does.
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
        self.collector: Collector | None = None

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """hidden_NCHW, normalised by channel."""
        if not self.training:
            return F.batch_norm(
                hidden_NCHW, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        if self.collector is None or not self.collector.is_open:
            return F.batch_norm(hidden_NCHW, None, None, self.weight, self.bias, training=True, eps=self.eps)
        # At momentum 1 torch leaves exactly this batch's mean and unbiased variance in the running statistics.
        mean_C, var_C = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        normalised_NCHW = F.batch_norm(
            hidden_NCHW, mean_C, var_C, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        self.collector.add(mean_C, var_C)
        return normalised_NCHW


class Collector:
    """Sums over batches of one layer's batch mean and unbiased batch variance, in float64."""

    def __init__(self, like_C: Tensor) -> None:
        self.is_open = True
        self.batches = 0
        self.mean_sum_C = torch.zeros_like(like_C, dtype=torch.float64)
        self.var_sum_C = torch.zeros_like(like_C, dtype=torch.float64)

    def add(self, mean_C: Tensor, var_C: Tensor) -> None:
        self.batches += 1
        self.mean_sum_C += mean_C
        self.var_sum_C += var_C


def static_batch_norm(channels: int) -> nn.Module:
    """sBN with learned scale and shift; running statistics 0 and 1 until `set_statistics`."""
    return StaticBatchNorm2d(channels)


@contextmanager
def collecting(network: nn.Module) -> Iterator[None]:
    """Collect, from nothing, the statistics of every batch that passes through `network` in training mode.

    What was collected stays readable by `statistics` after the context, until the next one. The network's mode, its
    weights and its running statistics are left as they are; batches in evaluation mode are not counted.
    """
    layers = list(_layers(network).values())
    for layer in layers:
        layer.collector = Collector(layer.running_mean)
    try:
        yield
    finally:
        for layer in layers:
            if layer.collector is not None:
                layer.collector.is_open = False


def statistics(network: nn.Module) -> dict[str, Tensor]:
    """`running_mean` and `running_var` of every sBN layer by their state_dict names: means over batches, float64.

    Every batch counts the same, whatever its size, as in nn.BatchNorm2d(momentum=None). Empty for a network without
    sBN. Raises ValueError where a layer has seen no batch since its last `collecting`.
    """
    collected: dict[str, Tensor] = {}
    for name, layer in _layers(network).items():
        collector = layer.collector
        if collector is None or collector.batches == 0:
            raise ValueError(f"{name} has seen no batch in training mode under `collecting`")
        prefix = f"{name}." if name else ""
        collected[f"{prefix}running_mean"] = collector.mean_sum_C / collector.batches
        collected[f"{prefix}running_var"] = collector.var_sum_C / collector.batches
    return collected


def batches_collected(network: nn.Module) -> int:
    """Batches behind `statistics`; 0 for a network without sBN, or that has collected nothing."""
    return max((layer.collector.batches for layer in _layers(network).values() if layer.collector), default=0)


def set_statistics(weights: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights` with these statistics in place of their own, in the weights' own dtype and on their device.

    Neither argument is changed; the tensors that stay are shared. Raises KeyError on a statistic of no tensor.
    """
    unknown = sorted(statistics.keys() - weights.keys())
    if unknown:
        raise KeyError(f"statistics of tensors that the weights do not have: {', '.join(unknown)}")
    return {**weights, **{name: value.to(weights[name]) for name, value in statistics.items()}}


def _layers(network: nn.Module) -> dict[str, StaticBatchNorm2d]:
    return {name: part for name, part in network.named_modules() if isinstance(part, StaticBatchNorm2d)}
