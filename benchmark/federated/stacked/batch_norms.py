"""Measure the statistics of static batch norms for each batch of a pass separately.

Legend: N images, C channels, B batches, G batches of one size, P channels of all layers, H W pixels.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.data.image_ops import to_device
from benchmark.methods.protocol import Weights
from benchmark.models.norms import StaticBatchNorm2d


def has_only_static_norms(network: nn.Module) -> bool:
    """Return whether static norms exist and are the only layers that behave differently in training mode.

    Dropout and running statistics are such layers. A network without static norms has nothing to measure.
    """
    others = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    layers = list(network.modules())
    has_others = any(isinstance(layer, others) and getattr(layer, "p", 1) > 0 for layer in layers)
    return not has_others and any(isinstance(layer, StaticBatchNorm2d) for layer in layers)


@dataclass(frozen=True, kw_only=True)
class SameSize:
    """All batches of one size in a pass."""

    size: int
    batches_G: Tensor  # int64, their numbers among all batches of the pass
    images_GN: Tensor  # int64, their images among all images of the pass


def same_sizes(sizes: Sequence[int], device: torch.device) -> list[SameSize]:
    """Group the batches of a pass by their sizes; their images are consecutive."""
    starts = [start for start, _ in spans_of(sizes)]
    numbers_of: dict[int, list[int]] = defaultdict(list)
    for number, size in enumerate(sizes):
        numbers_of[size].append(number)
    groups = []
    for size, numbers in numbers_of.items():
        first_G1 = torch.tensor([starts[number] for number in numbers])[:, None]
        images_GN = to_device(first_G1 + torch.arange(size), device)
        groups.append(SameSize(size=size, batches_G=to_device(torch.tensor(numbers), device), images_GN=images_GN))
    return groups


class NormByBatch(StaticBatchNorm2d):
    """A static batch norm in training mode that normalises each batch of a pass separately."""

    groups: Sequence[SameSize] = ()  # all batches of the pass
    measured: tuple[Tensor, Tensor, int] | None = None  # mean_BC, unbiased variance_BC, pixels of an image

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """Return hidden_NCHW, normalised by batch and channel. Raise ValueError for one value per channel.

        One call of torch's batch norm normalises all batches of one size, as additional channels. A batch then has
        the same numbers as in a separate pass, since torch sums a channel in the order of its images if their order
        in memory is kept.
        """
        is_channels_last = hidden_NCHW.is_contiguous(memory_format=torch.channels_last)
        in_memory = torch.channels_last if is_channels_last else torch.contiguous_format
        (_, C), (H, W) = hidden_NCHW.shape[:2], hidden_NCHW.shape[2:]
        B = sum(len(group.batches_G) for group in self.groups)
        means_BC, vars_BC = self.running_mean.new_zeros(2, B, C)
        normalised_NCHW = torch.empty_like(hidden_NCHW)
        for group in self.groups:
            G, N = group.images_GN.shape
            of_group = hidden_NCHW[group.images_GN.flatten()].view(G, N, C, H, W)
            as_channels = of_group.transpose(0, 1).reshape(N, G * C, H, W).contiguous(memory_format=in_memory)
            mean, var = torch.zeros_like(means_BC[:G]).flatten(), torch.zeros_like(vars_BC[:G]).flatten()
            scale, shift = self.weight.repeat(G), self.bias.repeat(G)
            result = F.batch_norm(as_channels, mean, var, scale, shift, training=True, momentum=1.0, eps=self.eps)
            by_batch = result.view(N, G, C, H, W).transpose(0, 1)
            normalised_NCHW[group.images_GN.flatten()] = by_batch.reshape(G * N, C, H, W)
            means_BC[group.batches_G], vars_BC[group.batches_G] = mean.view(G, C), var.view(G, C)
        self.measured = means_BC, vars_BC, H * W
        return normalised_NCHW


def static_norms(network: nn.Module) -> Iterator[tuple[str, StaticBatchNorm2d]]:
    """Yield the static norms, each with the prefix of its tensors' names."""
    for name, layer in network.named_modules():
        if isinstance(layer, StaticBatchNorm2d):
            yield f"{name}.".lstrip("."), layer


def named_statistics(network: nn.Module, values_2P: Tensor) -> Weights:
    """Return the means and variances of all static norms by their names, as views of two rows."""
    names = [name for name, _ in static_norms(network)]
    sizes = [len(layer.running_mean) for _, layer in static_norms(network)]
    statistics: dict[str, Tensor] = {}
    means, variances = values_2P[0].split(sizes), values_2P[1].split(sizes)
    for name, mean_C, var_C in zip(names, means, variances, strict=True):
        statistics[f"{name}running_mean"], statistics[f"{name}running_var"] = mean_C, var_C
    return statistics


def spans_of(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each of several consecutive pieces."""
    start = 0
    for size in sizes:
        yield start, start + size
        start += size
