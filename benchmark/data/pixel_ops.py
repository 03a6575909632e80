"""Pixel values of whole uint8 batches: lookup tables, histograms, grey, blends, with one parameter per image.

Shapes: N images, C channels, H height, W width, V = 256 values.
Two `Arithmetic`s round as Pillow's C code and as torchvision's tensor code do; everything else is shared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def blend_pillow(degenerate: Tensor, image: Tensor, factor: Tensor, _rest: Tensor) -> Tensor:
    """degenerate + factor * (image - degenerate) in float32, cut (Pillow, libImaging/Blend.c); uint8 out."""
    first = degenerate.float()
    return (first + factor * (image.float() - first)).clamp_(0, 255).to(torch.uint8)


def blend_torchvision(degenerate: Tensor, image: Tensor, factor: Tensor, rest: Tensor) -> Tensor:
    """factor * image + rest * degenerate in float32, clamped and cut (torchvision, _functional_tensor._blend)."""
    return (factor * image.float() + rest * degenerate.float()).clamp_(0, 255).to(torch.uint8)


def grey_pillow(images_NCHW: Tensor) -> Tensor:
    """(N, 1, H, W) luma with 16 fractional bits, rounded (Pillow, libImaging/Convert.c, L24); C = 1 is returned."""
    if images_NCHW.shape[1] == 1:
        return images_NCHW
    red, green, blue = images_NCHW.int().split(1, dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)


def grey_torchvision(images_NCHW: Tensor) -> Tensor:
    """(N, 1, H, W) 0.2989 R + 0.587 G + 0.114 B in float32, cut (torchvision, rgb_to_grayscale); C = 1 is returned."""
    if images_NCHW.shape[1] == 1:
        return images_NCHW
    red, green, blue = images_NCHW.split(1, dim=1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)


def mean_pillow(grey_N1HW: Tensor) -> Tensor:
    """(N,) mean grey rounded half up (PIL.ImageEnhance.Contrast)."""
    return (mean_torchvision(grey_N1HW) + 0.5).floor()


def mean_torchvision(grey_N1HW: Tensor) -> Tensor:
    """(N,) mean grey, exact up to one rounding: the sum of integers is taken in float64."""
    pixels = grey_N1HW.shape[-2] * grey_N1HW.shape[-1]
    return grey_N1HW.sum(dim=(1, 2, 3)).double().div(pixels).float()


def stretch_pillow(low: Tensor, high: Tensor, value_V: Tensor) -> Tensor:
    """int(value * scale - low * scale) in float64, scale = 255 / (high - low) (PIL.ImageOps.autocontrast)."""
    span = (high - low).double()
    scale = torch.full_like(span, 255.0) / span  # 255.0 / span would be span.reciprocal() * 255: other last bits
    return (value_V.double() * scale + -low.double() * scale).trunc()


def stretch_torchvision(low: Tensor, high: Tensor, value_V: Tensor) -> Tensor:
    """(value - low) * scale in float32 (torchvision, _functional_tensor.autocontrast)."""
    return (value_V.float() - low.float()) * (255.0 / (high - low).float())


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How a reference implementation rounds."""

    blend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (degenerate, image, factor, 1 - factor) -> uint8
    grey: Callable[[Tensor], Tensor]  # (N, C, H, W) -> (N, 1, H, W) uint8
    mean: Callable[[Tensor], Tensor]  # (N, 1, H, W) -> (N,) float32
    stretch: Callable[[Tensor, Tensor, Tensor], Tensor]  # (low, high, values) -> stretched values, not yet clipped


PILLOW = Arithmetic(blend=blend_pillow, grey=grey_pillow, mean=mean_pillow, stretch=stretch_pillow)
TORCHVISION = Arithmetic(
    blend=blend_torchvision, grey=grey_torchvision, mean=mean_torchvision, stretch=stretch_torchvision
)


def all_values(device: torch.device) -> Tensor:
    """0 .. 255 as uint8 (V,): the input of every lookup table."""
    return torch.arange(256, device=device).to(torch.uint8)


def look_up(images_NCHW: Tensor, table_NCV: Tensor) -> Tensor:
    """Each pixel replaced by its image's and channel's table entry; the tables may be expanded views."""
    return table_NCV.gather(2, images_NCHW.flatten(2).long()).view(images_NCHW.shape)


def autocontrast(images_NCHW: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Stretch each channel to 0 .. 255; a constant channel is left alone."""
    low_NC1 = images_NCHW.amin(dim=(2, 3))[..., None].int()
    high_NC1 = images_NCHW.amax(dim=(2, 3))[..., None].int()
    value_V = all_values(images_NCHW.device)
    stretched_NCV = arithmetic.stretch(low_NC1, high_NC1, value_V).clamp(0, 255).to(torch.uint8)
    return look_up(images_NCHW, torch.where(high_NC1 > low_NC1, stretched_NCV, value_V))


def histogram(images_NCHW: Tensor) -> Tensor:
    """Counts of each value, (N, C, V) int64."""
    # On a CPU bincount is the faster one; on other devices it would wait for the largest value.
    count = counts_by_bin if images_NCHW.device.type == "cpu" else counts_by_scatter
    return count(images_NCHW.flatten(2).long())


def counts_by_bin(value_NCP: Tensor) -> Tensor:
    """Counts (N, C, V) of int64 values 0 .. 255; reads on the host how many bins there are."""
    count, channels = value_NCP.shape[:2]
    shift = torch.arange(count * channels, device=value_NCP.device).view(count, channels, 1) * 256
    flat = (value_NCP + shift).flatten()
    return torch.bincount(flat, minlength=count * channels * 256).view(count, channels, 256)


def counts_by_scatter(value_NCP: Tensor) -> Tensor:
    """The same counts with nothing read on the host."""
    zeros_NCV = value_NCP.new_zeros(*value_NCP.shape[:2], 256)
    return zeros_NCV.scatter_add_(2, value_NCP, torch.ones_like(value_NCP))


def equalize(images_NCHW: Tensor) -> Tensor:
    """Flatten each channel's histogram in integers, as PIL.ImageOps.equalize and torchvision both do.

    step = (pixels - count of the highest value present) // 255; entry v = (pixels below v + step // 2) // step,
    at most 255; a step of 0 leaves the channel alone.
    """
    pixels = images_NCHW.shape[-2] * images_NCHW.shape[-1]
    count_NCV = histogram(images_NCHW)
    highest_NC1 = images_NCHW.amax(dim=(2, 3))[..., None].long()
    step_NC1 = (pixels - count_NCV.gather(2, highest_NC1)) // 255
    below_NCV = count_NCV.cumsum(2) - count_NCV
    level_NCV = ((below_NCV + step_NC1 // 2) // step_NC1.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return look_up(images_NCHW, torch.where(step_NC1 > 0, level_NCV, all_values(images_NCHW.device)))


def contrast(images_NCHW: Tensor, factor_N2: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Blend each image with its mean grey; `factor_N2` holds (factor, 1 - factor) in float32."""
    mean_N1 = arithmetic.mean(arithmetic.grey(images_NCHW))[:, None]
    factor_N1, rest_N1 = factor_N2.split(1, dim=1)
    table_NV = arithmetic.blend(mean_N1, all_values(images_NCHW.device), factor_N1, rest_N1)
    return look_up(images_NCHW, table_NV[:, None].expand(-1, images_NCHW.shape[1], -1))


def color(images_NCHW: Tensor, factor_N2: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Blend each image with its grey version; one channel stays as it is."""
    if images_NCHW.shape[1] == 1:
        return images_NCHW
    return _blend_images(arithmetic.grey(images_NCHW), images_NCHW, factor_N2, arithmetic)


def sharpness(images_NCHW: Tensor, factor_N2: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Blend each image with its smoothed version."""
    return _blend_images(smooth(images_NCHW), images_NCHW, factor_N2, arithmetic)


def smooth(images_NCHW: Tensor) -> Tensor:
    """3 x 3 mean with weight 5 of 13 at the centre, rounded; the outermost pixels are kept (PIL.ImageFilter.SMOOTH)."""
    wide = images_NCHW.short()
    lines = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    total = lines[..., :-2, :] + lines[..., 1:-1, :] + lines[..., 2:, :] + 4 * wide[..., 1:-1, 1:-1]
    out = images_NCHW.clone()
    # 13 is odd, so no sum is half-way; (2 s + 13) / 26 lies 1/26 or more from the next integer, safe in float32.
    out[..., 1:-1, 1:-1] = ((2 * total + 13).float() / 26).to(torch.uint8)
    return out


def _blend_images(degenerate: Tensor, images_NCHW: Tensor, factor_N2: Tensor, arithmetic: Arithmetic) -> Tensor:
    factor, rest = factor_N2[:, :, None, None].split(1, dim=1)
    return arithmetic.blend(degenerate, images_NCHW, factor, rest)
