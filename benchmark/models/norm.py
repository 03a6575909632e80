"""What stands between a convolution and its ReLU: group norm, batch norm, or nothing.

Static batch norm, which has rules of its own, is in static_batch_norm.py.

A norm is passed into a network as a function from a channel count to a module, so that no network knows which it has.
Source: SSFL, section 3.2 (design choice 2: GN instead of BN).
"""

from collections.abc import Callable

from torch import nn

from benchmark.config import choose
from benchmark.errors import ConfigError

Norm = Callable[[int], nn.Module]


def group_norm(num_groups: int) -> Norm:
    """Group norm with learned scale and shift (SSFL: 32 groups; released resnet_gn.py:72-103).

    The returned function raises ConfigError where `num_groups` does not divide the channels it is given.
    """

    def norm(channels: int) -> nn.Module:
        require_groups_divide(num_groups, channels)
        return nn.GroupNorm(num_groups, channels)

    return norm


def batch_norm(channels: int) -> nn.Module:
    """Batch norm with learned scale and shift and running statistics, PyTorch's defaults (momentum .1)."""
    return nn.BatchNorm2d(channels)


def no_norm(channels: int) -> nn.Module:
    """Nothing, as in the released EMNIST CNN, which declares its group norms and never calls them."""
    return nn.Identity()


def require_groups_divide(num_groups: int, channels: int) -> None:
    """Raise ConfigError, with the group counts that would do, unless `num_groups` divides `channels`."""
    if channels % num_groups:
        divisors = [str(groups) for groups in range(1, channels + 1) if channels % groups == 0]
        raise ConfigError(f"model.norm_groups: {num_groups} does not divide {channels} channels; {choose(divisors)}")
