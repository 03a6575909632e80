"""What stands between a convolution and its ReLU: group norm, batch norm, static batch norm, or nothing.

A norm is passed into a network as a function from a channel count to a module, so that no network knows which it has.
Sources: SSFL, section 3.2 (design choice 2: GN instead of BN). Static batch norm (sBN), which takes the batch's own
statistics in training, and in evaluation those of a pass of its own: HeteroFL (Diao et al. 2021), section 3; SemiFL,
section 3.4; released models/utils.py:20-32 (training without tracking) and data.py:242-254 (the pass: cumulative
average over batches, momentum=None).
"""

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import choose
from benchmark.errors import ConfigError

# N images, C channels, H rows, W columns

Norm = Callable[[int], nn.Module]


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
        self.seen: list[tuple[Tensor, Tensor]] | None = None  # of each batch, where `statistics_over` asks for them

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """hidden_NCHW, normalised by channel."""
        mean_C, var_C, momentum = None, None, 0.0
        if not self.training:
            mean_C, var_C = self.running_mean, self.running_var
        elif self.seen is not None:
            # At momentum 1 torch leaves exactly this batch's mean and unbiased variance in the running statistics.
            mean_C, var_C, momentum = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var), 1.0
            self.seen.append((mean_C, var_C))
        return F.batch_norm(hidden_NCHW, mean_C, var_C, self.weight, self.bias, self.training, momentum, self.eps)


@torch.no_grad()
def statistics_over(network: nn.Module, batches: Iterable[Tensor]) -> tuple[dict[str, Tensor], int]:
    """Means over batches of images of what each sBN layer sees in training mode (`running_mean` and `running_var` by
    their state_dict names, float64), and the number of batches. Nothing where there is none.

    Every batch counts the same, whatever its size, as in nn.BatchNorm2d(momentum=None); so the means of several
    holders, weighted by their numbers of batches, are those of all batches. The network is left as it was.
    """
    layers = {name: part for name, part in network.named_modules() if isinstance(part, StaticBatchNorm2d)}
    was_training, count = network.training, 0
    network.train()
    for layer in layers.values():
        layer.seen = []
    try:
        for images_NCHW in batches:
            network(images_NCHW)
            count += 1
        seen = {name: list(zip(*(layer.seen or ()), strict=True)) for name, layer in layers.items()}
    finally:
        network.train(was_training)
        for layer in layers.values():
            layer.seen = None
    found: dict[str, Tensor] = {}
    for name, columns in seen.items():
        for statistic, values in zip(("running_mean", "running_var"), columns, strict=False):
            total_C = torch.zeros_like(values[0], dtype=torch.float64)
            for value_C in values:
                total_C += value_C
            found[f"{name}.{statistic}".lstrip(".")] = total_C / count
    return found, count


def set_statistics(weights: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights` with these statistics in place of their own, in the weights' own dtype and on their device.

    Neither argument is changed; the tensors that stay are shared.
    """
    return {**weights, **{name: value.to(weights[name]) for name, value in statistics.items()}}


def group_norm(num_groups: int) -> Norm:
    """Group norm with learned scale and shift (SSFL: 32 groups; released resnet_gn.py:72-103).

    The returned function raises ConfigError where `num_groups` does not divide the channels it is given.
    """

    def norm(channels: int) -> nn.Module:
        require_groups_divide(num_groups, channels)
        return nn.GroupNorm(num_groups, channels)

    return norm


def require_groups_divide(num_groups: int, channels: int) -> None:
    """Raise ConfigError, with the group counts that would do, unless `num_groups` divides `channels`."""
    if channels % num_groups:
        divisors = [str(groups) for groups in range(1, channels + 1) if channels % groups == 0]
        raise ConfigError(f"model.norm_groups: {num_groups} does not divide {channels} channels; {choose(divisors)}")


def no_norm(channels: int) -> nn.Module:
    """Nothing, as in the released EMNIST CNN, which declares its group norms and never calls them."""
    return nn.Identity()


NORMS: Mapping[str, Callable[[int], Norm]] = {
    "gn": group_norm,
    "bn": lambda num_groups: nn.BatchNorm2d,
    "sbn": lambda num_groups: StaticBatchNorm2d,
    "none": lambda num_groups: no_norm,
}


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether, in training, an image's output depends on the other images of its batch (batch norm, static or not)."""
    of_batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, StaticBatchNorm2d)
    return any(isinstance(part, of_batch) for part in module.modules())
