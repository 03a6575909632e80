"""From a `Model`, the part of an experiment that names a network, to the network with its initial weights."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.models import emnist_cnn, resnet18, small_cnn
from benchmark.models.norm import Norm, batch_norm, group_norm, no_norm, require_groups_divide
from benchmark.streams import stream_seed

ImageShape = tuple[int, int, int]  # channels, rows, columns


@dataclass(frozen=True, kw_only=True)
class Network:
    """What `build` and the checks of `Model` need to know of a network."""

    builder: Callable[..., nn.Module]  # (image_shape, num_classes, norm), and dropout= where there is one
    norm_channels: tuple[int, ...]  # channel counts that pass a norm
    smallest_side: int  # pixels below which nothing would be left after pooling
    has_dropout: bool = False


NETWORKS = {
    "emnist_cnn": Network(
        builder=emnist_cnn.EmnistCnn,
        norm_channels=emnist_cnn.NORM_CHANNELS,
        smallest_side=emnist_cnn.SMALLEST_SIDE,
        has_dropout=True,
    ),
    "resnet18": Network(
        builder=resnet18.ResNet18,
        norm_channels=resnet18.NORM_CHANNELS,
        smallest_side=resnet18.SMALLEST_SIDE,
    ),
    "small_cnn": Network(
        builder=small_cnn.SmallCnn,
        norm_channels=small_cnn.NORM_CHANNELS,
        smallest_side=small_cnn.SMALLEST_SIDE,
    ),
    "tiny_cnn": Network(
        builder=small_cnn.TinyCnn,
        norm_channels=small_cnn.NORM_CHANNELS,
        smallest_side=small_cnn.TINY_SMALLEST_SIDE,
    ),
}

NORMS: dict[str, Callable[[int], Norm]] = {
    "gn": group_norm,
    "bn": lambda num_groups: batch_norm,
    "none": lambda num_groups: no_norm,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network and its normalisation; part of a cell's identity.

    Raises ConfigError on a name it does not know, a group count that does not divide the network's channels,
    and a dropout the network has no layer for (a setting that moves nothing must not make another cell).
    """

    network: Literal["emnist_cnn", "resnet18", "small_cnn", "tiny_cnn"]
    norm: Literal["gn", "bn", "none"] = "gn"
    norm_groups: int = 32  # groups of a group norm; SSFL uses 32, the small networks were measured with 4
    dropout: float = 0.0  # probability that a channel is zeroed; .25 in the released EMNIST CNN

    def __post_init__(self) -> None:
        _require_known("model.network", self.network, list(NETWORKS))
        _require_known("model.norm", self.norm, list(NORMS))
        network = NETWORKS[self.network]
        if self.norm_groups < 1:
            raise ConfigError(f"model.norm_groups={self.norm_groups} must be 1 or more")
        if self.norm == "gn":
            for channels in network.norm_channels:
                require_groups_divide(self.norm_groups, channels)
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"model.dropout={self.dropout} must be at least 0 and below 1")
        if self.dropout and not network.has_dropout:
            with_dropout = ", ".join(name for name, known in NETWORKS.items() if known.has_dropout)
            raise ConfigError(
                f"model.dropout={self.dropout}: {self.network} has no dropout layer; use 0 (only {with_dropout} has)"
            )


def build(model: Model, image_shape: ImageShape, num_classes: int, seed: int) -> nn.Module:
    """The network on the CPU, in training mode, with PyTorch's default initialisation.

    The weights come from the stream "initial weights" of `seed`, the experiment's own seed: the same on every call,
    whatever was drawn before. No global generator is moved, and the default device is not used.
    Raises ConfigError where images are too small or there are fewer than two classes.
    """
    network = NETWORKS[model.network]
    if min(image_shape[1:]) < network.smallest_side or image_shape[0] < 1:
        size = f"{network.smallest_side} x {network.smallest_side}"
        raise ConfigError(
            f"model.network={model.network} needs images of {size} or more, not (C, H, W) = {image_shape}"
        )
    if num_classes < 2:
        raise ConfigError(f"a data set of {num_classes} classes cannot be classified; it needs 2 or more")
    norm = NORMS[model.norm](model.norm_groups)
    dropout = {"dropout": model.dropout} if network.has_dropout else {}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the accelerators' generators, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(stream_seed(seed, "initial weights"))
        return network.builder(image_shape, num_classes, norm, **dropout)


def count_parameters(module: nn.Module) -> int:
    """How many numbers are trained; buffers, such as the running statistics of a batch norm, are not among them."""
    return sum(parameter.numel() for parameter in module.parameters())


def forward_flops(module: nn.Module, image_shape: ImageShape) -> int:
    """Floating-point operations of one image's forward pass; a multiplication and its addition count as two.

    Convolutions and matrix products only, as torch's FlopCounterMode counts them. Nothing is computed: a copy of the
    module runs on the meta device, in evaluation mode, and `module` is left as it is.
    """
    shapes_only = copy.deepcopy(module).to("meta").eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        shapes_only(torch.empty(1, *image_shape, device="meta"))
    return counter.get_total_flops()


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether, in training, an image's output depends on the other images of its batch (batch norm)."""
    of_batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return any(isinstance(part, of_batch) for part in module.modules())


def _require_known(key: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise ConfigError(f"{key}={value!r} is not known; {nearest(str(value), known).strip()}")
