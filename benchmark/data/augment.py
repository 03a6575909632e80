"""Compute normalised views of a batch of uint8 images: plain, weak and strong.

The weak view is a flip and a crop. The strong view is a flip and a crop followed by a policy. Source: SSFL's released
dataset/cifar.py:425-445; the gentle policy is this project's setting for laptops.
Deviation: all draws of a call are made first, from one torch.Generator, and their number does not depend on the
requested views. A view therefore depends neither on the other views nor on how the batch is divided into chunks.

Shapes: N images, C channels, H height, W width, D uniform draws per image.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.config import Checked, Interval, Share, added
from benchmark.data.image_ops import (
    affine_index,
    all_values,
    blend,
    by_family,
    contrast,
    look_up,
    padded,
    paint_boxes,
    to_device,
    warp,
    windows,
)
from benchmark.data.randaugment import Gray, RandAugment
from benchmark.errors import ConfigError, DataError

VIEWS = ("plain", "weak", "weak2", "strong")
# Size of a chunk of uint8 images on the CPU. Smaller chunks cost more dispatch. Larger ones grow the heap, and glibc is
# then likelier to return memory to the system between calls, which causes page faults in every call.
_CHUNK_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Weak(Checked):
    """Horizontal flip and crop, FixMatch's weak view; the crop is a part of the padded image, or of the enlarged one as
    in RSCFed.
    """

    flip: Share = 0.5  # probability
    # Share of the width, truncated to whole pixels as in the released code: 4 for 32 pixels, 3 for 28, 1 for 8.
    crop_padding: Annotated[float, Interval("[0, 0.5]")] = 0.125
    padding_mode: Literal["reflect", "zero"] = "reflect"
    # Above 1: the image is enlarged by this factor (bilinear) and cropped to its former size, without padding; 1.25
    # enlarges 32 pixels to 40.
    enlarge: Annotated[float, Interval("[1, 4]")] = added(1.0)

    read_with = {name: ("enlarge", (1.0,)) for name in ("crop_padding", "padding_mode")}
    num_draws = 3  # D: flip, top, left


@dataclass(frozen=True, kw_only=True)
class Gentle(Checked):
    """The mild strong view for laptops: an affine map, brightness and contrast, each by chance, then a cutout box.

    Each parameter is drawn uniformly, and applied with its probability. The setting for digits of 8 x 8 pixels is
    Gentle(translate=0, contrast_probability=0); its box is 4 pixels wide.
    """

    rotation: Annotated[float, Interval("[0, 180]")] = 15.0  # largest angle in degrees, +-
    shear: Share = 0.15  # largest horizontal shift per line, +-
    translate: Share = 0.1  # largest shift as a share of the size, +-, horizontally and vertically
    scale: Annotated[float, Interval("[0, 0.9]")] = 0.0  # largest relative change of size, +-
    geometry_probability: Share = 0.35  # probability of each of the four above, drawn independently
    brightness: tuple[float, float] = (0.5, 1.0)  # factor, lowest and highest
    brightness_probability: Share = 0.3
    contrast: tuple[float, float] = (0.5, 1.0)  # factor, lowest and highest
    contrast_probability: Share = 0.3
    cutout: Share = 0.5  # side of the box as a share of the width, truncated to whole pixels; 0 for no box
    fill: Gray = 127  # grey value of the box: half of the range

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (lowest, highest) in (("brightness", self.brightness), ("contrast", self.contrast)):
            if not 0 <= lowest <= highest <= 10:
                raise ConfigError(
                    f"{name} is {lowest} to {highest}, but it must be two factors from 0 to 10, the lower one first"
                )

    # D: 4 + 2 gates; angle, shear, shift in x and y, scale, brightness, contrast; centre of the box
    num_draws = 15

    def apply(self, images_NCHW: Tensor, draws_ND: Tensor, here_ND: Tensor) -> Tensor:
        """Return new uint8 images, and leave `images_NCHW` unchanged.

        `draws_ND` are uniform in [0, 1) on the CPU, and `here_ND` are the same draws on the images' device.
        """
        height, width = images_NCHW.shape[-2:]
        device = images_NCHW.device
        # Matrices are computed on the CPU: sines of other devices differ in their last bits, which would change pixels.
        gate_N4 = draws_ND[:, :4] < self.geometry_probability
        matrix_N6 = to_device(self.matrices(gate_N4, draws_ND[:, 6:11].double(), height, width), device)

        def affine(group: Tensor, rows: Tensor) -> Tensor:
            return warp(group, affine_index(matrix_N6[rows], height, width))

        def darken(group: Tensor, rows: Tensor) -> Tensor:
            factor_N1 = _factors(here_ND[rows, 11], self.brightness)
            table_NV = blend(torch.zeros((), device=device), all_values(device), factor_N1)
            return look_up(group, table_NV[:, None].expand(-1, group.shape[1], -1))

        def flatten(group: Tensor, rows: Tensor) -> Tensor:
            return contrast(group, _factors(here_ND[rows, 12], self.contrast))

        out_NCHW = images_NCHW
        families = zip(self._changed(here_ND), self._changed(draws_ND), strict=True)
        for function, (family_N, host_N) in zip((affine, darken, flatten), families, strict=True):
            out_NCHW = by_family(out_NCHW, family_N, {1: function}, host_N)
        side = int(self.cutout * width)
        return paint_boxes(out_NCHW, here_ND[:, 13:], side, extra=0, fill=self.fill) if side else out_NCHW

    def _changed(self, draws_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return three (N,) tensors with 1 for images with a change of geometry, brightness or contrast, and 0 for the
        others.
        """
        moved_N = (draws_ND[:, :4] < self.geometry_probability).any(1)
        darker_N, flatter_N = draws_ND[:, 4] < self.brightness_probability, draws_ND[:, 5] < self.contrast_probability
        return moved_N.long(), darker_N.long(), flatter_N.long()

    def matrices(self, gate_N4: Tensor, draws_N5: Tensor, height: int, width: int) -> Tensor:
        """Compute the (N, 6) output-to-input maps for `affine_index`.

        Each is R(angle) [[1, shear], [0, 1]] / scale about the centre, followed by the shift.
        """
        signed_N5 = 2 * draws_N5 - 1
        rotated, sheared, shifted, scaled = gate_N4.double().unbind(1)
        angle = math.radians(self.rotation) * signed_N5[:, 0] * rotated
        shear = self.shear * signed_N5[:, 1] * sheared
        shift_N2 = self.translate * signed_N5[:, 2:4] * shifted[:, None] * torch.tensor([width, height])
        zoom = 1 / (1 + self.scale * signed_N5[:, 4] * scaled)
        cos, sin = angle.cos() * zoom, angle.sin() * zoom
        a, b, d, e = cos, cos * shear - sin, sin, sin * shear + cos
        x, y = width / 2, height / 2
        c, f = x - a * x - b * y + shift_N2[:, 0], y - d * x - e * y + shift_N2[:, 1]
        return torch.stack([a, b, c, d, e, f], dim=1)


def _factors(uniform_N: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Scale uniform draws to float32 factors within the bounds, (N, 1)."""
    return (bounds[0] + (bounds[1] - bounds[0]) * uniform_N)[:, None]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The policies of the weak and the strong view of an experiment."""

    weak: Weak = field(default_factory=Weak)
    strong: RandAugment | Gentle = field(default_factory=RandAugment)


def make_views(
    images_NCHW: Tensor,
    views: Sequence[str],
    augmentation: Augmentation,
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Compute normalised float32 views (x / 255 - mean) / std of uint8 images, on their device, (N, C, H, W) each.

    With a CPU generator, the views are the same on every device. The number of draws depends only on the batch size and
    the augmentation. Raise the same errors as `views_of`.
    """
    return views_of(images_NCHW, views, augmentation, mean, std, draws_of(len(images_NCHW), augmentation, generator))


def draws_of(count: int, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Draw the uniform numbers in [0, 1) for the views of `count` images, (N, D) on the CPU.

    Numbers are drawn row by row, so that one call for several batches returns the same rows as one call per batch.
    """
    draws = 2 * Weak.num_draws + augmentation.strong.num_draws
    return torch.rand(count, draws, generator=generator, device=generator.device).cpu()


def views_of(
    images_NCHW: Tensor,
    views: Sequence[str],
    augmentation: Augmentation,
    mean: Sequence[float],
    std: Sequence[float],
    draws_ND: Tensor,
) -> dict[str, Tensor]:
    """Compute the views of `make_views` from the images' draws; an image's views depend only on its row of draws.

    "strong" has a separate flip and crop, followed by the strong policy (cifar.py:425-445). "weak2" is a second draw of
    the weak view, with the flip and crop of "strong". Raise ConfigError for an unknown view, and DataError for images
    that are too wide to be padded.
    """
    count, channels, height, width = images_NCHW.shape
    for view in views:
        if view not in VIEWS:
            raise ConfigError(f"view is {view!r}; it must be one of {', '.join(VIEWS)}")
    if height <= width // 2:
        raise DataError(f"images are {height} pixels high, but reflected padding needs more than half of their width")
    device = images_NCHW.device
    here_ND = to_device(draws_ND, device)
    scale_C11, shift_C11 = _normalisation(tuple(mean), tuple(std), device)
    out = {view: torch.empty(images_NCHW.shape, device=device) for view in views}
    size = max(1, _CHUNK_BYTES // (channels * height * width)) if device.type == "cpu" else max(1, count)
    for begin in range(0, count, size):
        chunk = slice(begin, begin + size)
        pixels = _views(images_NCHW[chunk], views, augmentation, draws_ND[chunk], here_ND[chunk])
        for view in views:
            out[view][chunk].copy_(pixels[view]).mul_(scale_C11).add_(shift_C11)
    return out


@lru_cache(maxsize=32)
def _normalisation(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> Tensor:
    """Compute the factor and the summand of every channel, (2, C, 1, 1), for pixels from 0 to 255."""
    factor_C = [1 / (255 * s) for s in std]
    summand_C = [-m / s for m, s in zip(mean, std, strict=True)]
    pair_2C = torch.tensor([factor_C, summand_C])
    return to_device(pair_2C[:, :, None, None], device)


def _views(
    images_NCHW: Tensor, views: Sequence[str], augmentation: Augmentation, draws_ND: Tensor, here_ND: Tensor
) -> Mapping[str, Tensor]:
    """Compute the uint8 views of one chunk.

    The columns of the draws are: geometry of the weak view, geometry of the strong view, policy.
    """
    pixels = {"plain": images_NCHW}
    moved = set(views) - {"plain"}
    if moved:
        crop = _weak_geometry(images_NCHW, augmentation.weak)
        used = Weak.num_draws
        if "weak" in moved:
            pixels["weak"] = crop(here_ND[:, :used])
        if moved & {"strong", "weak2"}:
            cropped = crop(here_ND[:, used : 2 * used])
            pixels["weak2"] = cropped
            if "strong" in moved:
                pixels["strong"] = augmentation.strong.apply(cropped, draws_ND[:, 2 * used :], here_ND[:, 2 * used :])
    return pixels


def _weak_geometry(images_NCHW: Tensor, weak: Weak) -> Callable[[Tensor], Tensor]:
    """Return a function from draws (N, 3) to flipped and cropped images.

    All calls of the function share the padded or enlarged images.
    """
    height, width = images_NCHW.shape[-2:]
    enlarges = weak.enlarge > 1.0
    if enlarges:
        size = [round(side * weak.enlarge) for side in (height, width)]
        large_NCYX = F.interpolate(images_NCHW.float(), size=size, mode="bilinear", antialias=True)
        large_NCYX = large_NCYX.round_().to(torch.uint8)
    else:
        large_NCYX = padded(images_NCHW, int(weak.crop_padding * width), weak.padding_mode)
    places = large_NCYX.shape[-2] - height + 1, large_NCYX.shape[-1] - width + 1
    cut = windows(large_NCYX, height, width)

    def draw(draws_N3: Tensor) -> Tensor:
        flip_N = draws_N3[:, 0] < weak.flip
        top_N, left_N = ((draws_N3[:, 1 + axis] * places[axis]).long() for axis in (0, 1))
        if enlarges:  # flips the crop; without enlargement, the image is flipped before it is cropped
            left_N = torch.where(flip_N, places[1] - 1 - left_N, left_N)
        return cut(flip_N.long(), top_N, left_N)

    return draw
