"""From a `Model`, the part of an experiment that names a network, to the network with its initial weights."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.models import emnist_cnn, resnet8, resnet9, resnet18, rscfed_cnn, small_cnn, vgg11, wresnet28x2
from benchmark.models.norm import Norm, batch_norm, group_norm, no_norm, require_groups_divide
from benchmark.models.static_batch_norm import StaticBatchNorm2d, static_batch_norm
from benchmark.streams import stream_seed

ImageShape = tuple[int, int, int]  # channels, rows, columns


@dataclass(frozen=True, kw_only=True)
class Network:
    """What `build` and the checks of `Model` need to know of a network."""

    builder: Callable[..., nn.Module]  # (image_shape, num_classes, norm), and what the flags below say
    norm_channels: tuple[int, ...]  # channel counts that pass a norm; none where the network has no place for one
    smallest_side: int  # pixels below which nothing would be left after pooling
    has_dropout: bool = False  # takes dropout=
    has_widths: bool = False  # takes width= and channel_multiple=


NETWORKS = {
    "emnist_cnn": Network(
        builder=emnist_cnn.EmnistCnn,
        norm_channels=emnist_cnn.NORM_CHANNELS,
        smallest_side=emnist_cnn.SMALLEST_SIDE,
        has_dropout=True,
    ),
    "resnet8": Network(
        builder=resnet8.ResNet8,
        norm_channels=resnet8.NORM_CHANNELS,
        smallest_side=resnet8.SMALLEST_SIDE,
    ),
    "resnet9": Network(
        builder=resnet9.ResNet9,
        norm_channels=resnet9.NORM_CHANNELS,
        smallest_side=resnet9.SMALLEST_SIDE,
    ),
    "resnet18": Network(
        builder=resnet18.ResNet18,
        norm_channels=resnet18.NORM_CHANNELS,
        smallest_side=resnet18.SMALLEST_SIDE,
    ),
    "rscfed_cnn": Network(
        builder=rscfed_cnn.RscfedCnn,
        norm_channels=rscfed_cnn.NORM_CHANNELS,
        smallest_side=rscfed_cnn.SMALLEST_SIDE,
    ),
    "small_cnn": Network(
        builder=small_cnn.SmallCnn,
        norm_channels=small_cnn.NORM_CHANNELS,
        smallest_side=small_cnn.SMALLEST_SIDE,
        has_widths=True,
    ),
    "tiny_cnn": Network(
        builder=small_cnn.TinyCnn,
        norm_channels=small_cnn.NORM_CHANNELS,
        smallest_side=small_cnn.TINY_SMALLEST_SIDE,
        has_widths=True,
    ),
    "vgg11": Network(
        builder=vgg11.Vgg11,
        norm_channels=vgg11.NORM_CHANNELS,
        smallest_side=vgg11.SMALLEST_SIDE,
    ),
    "wresnet28x2": Network(
        builder=wresnet28x2.WResNet28x2,
        norm_channels=wresnet28x2.NORM_CHANNELS,
        smallest_side=wresnet28x2.SMALLEST_SIDE,
    ),
}

NORMS: dict[str, Callable[[int], Norm]] = {
    "gn": group_norm,
    "bn": lambda num_groups: batch_norm,
    "sbn": lambda num_groups: static_batch_norm,
    "none": lambda num_groups: no_norm,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network and its normalisation; part of a cell's identity.

    Raises ConfigError on a name it does not know, a group count that does not divide the network's channels, and a
    norm, dropout or width the network has no place for (a setting that moves nothing must not make another cell).
    """

    network: Literal[
        "emnist_cnn", "resnet8", "resnet9", "resnet18", "rscfed_cnn", "small_cnn", "tiny_cnn", "vgg11", "wresnet28x2"
    ]
    norm: Literal["gn", "bn", "sbn", "none"] = "gn"  # sbn: static batch norm, of SemiFL and HeteroFL
    norm_groups: int = 32  # groups of a group norm; SSFL uses 32, the small networks were measured with 4
    dropout: float = 0.0  # probability that a channel is zeroed; .25 in the released EMNIST CNN
    # Share of the hidden units that a HeteroFL sub-network has.
    width: float = field(default=1.0, metadata={"added": True})

    def __post_init__(self) -> None:
        _require_known("model.network", self.network, list(NETWORKS))
        _require_known("model.norm", self.norm, list(NORMS))
        network = NETWORKS[self.network]
        self._check_norm(network)
        self._check_dropout(network)
        self._check_width(network)

    def _check_norm(self, network: Network) -> None:
        if self.norm_groups < 1:
            raise ConfigError(f"model.norm_groups={self.norm_groups} must be 1 or more")
        if self.norm != "none" and not network.norm_channels:
            raise ConfigError(f"model.norm={self.norm!r}: {self.network} has no place for a norm; use 'none'")
        if self.norm == "gn":
            for channels in network.norm_channels:
                require_groups_divide(self.norm_groups, channels)

    def _check_dropout(self, network: Network) -> None:
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"model.dropout={self.dropout} must be at least 0 and below 1")
        if self.dropout and not network.has_dropout:
            with_dropout = ", ".join(name for name, known in NETWORKS.items() if known.has_dropout)
            raise ConfigError(
                f"model.dropout={self.dropout}: {self.network} has no dropout layer; use 0 (only {with_dropout} has)"
            )

    def _check_width(self, network: Network) -> None:
        if not 0.0 < self.width <= 1.0:
            raise ConfigError(f"model.width={self.width} must be above 0 and at most 1")
        if self.width != 1.0 and not network.has_widths:
            with_widths = ", ".join(name for name, known in NETWORKS.items() if known.has_widths)
            raise ConfigError(
                f"model.width={self.width}: {self.network} has one width; use 1 (only {with_widths} can be narrower)"
            )


def build(model: Model, image_shape: ImageShape, num_classes: int, seed: int) -> nn.Module:
    """The network on the CPU, in training mode, with PyTorch's default initialisation where its file names no other.

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
    options: dict[str, float] = {"dropout": model.dropout} if network.has_dropout else {}
    if network.has_widths:
        options |= {"width": model.width, "channel_multiple": model.norm_groups if model.norm == "gn" else 1}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the accelerators' generators, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(stream_seed(seed, "initial weights"))
        return network.builder(image_shape, num_classes, norm, **options)


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
    """Whether, in training, an image's output depends on the other images of its batch (batch norm, static or not)."""
    of_batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, StaticBatchNorm2d)
    return any(isinstance(part, of_batch) for part in module.modules())


def _require_known(key: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise ConfigError(f"{key}={value!r} is not known; {nearest(str(value), known).strip()}")
