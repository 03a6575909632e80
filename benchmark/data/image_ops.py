"""Apply deterministic operations to whole uint8 batches, with separate parameters for each image.

Geometric operations are crops, affine maps and cutout boxes. Operations on pixel values are lookup tables, histograms,
grey and blends. All of them round like Pillow's C code.

Shapes: N images, C channels, H height, W width, P = H * W pixels, B = (H + 2) * (W + 2) pixels with a border of one
pixel, V = 256 values.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

_ONE = 1 << 16  # Pillow's fixed point: 16 fractional bits (src/libImaging/Geometry.c, affine_fixed)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy the tensor to the device without synchronisation, which requires pinned memory for CUDA."""
    pinned = tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
    return pinned.to(device, non_blocking=True)


RowFunction = Callable[[Tensor, Tensor], Tensor]  # (images of a group, their row numbers) -> images


def by_family(images_NCHW: Tensor, family_N: Tensor, functions: Mapping[int, RowFunction], host_N: Tensor) -> Tensor:
    """Apply one function to all images of each family, and return all images in their original order.

    `functions[family]` receives the images of the family and their row numbers. Rows of a family without a function do
    not change. `family_N` (int64) is on the images' device, and `host_N` has the same values on the CPU, so that
    computing the group sizes does not synchronise with the device.

    The rows are first sorted by family, so that each group is a slice. Two `index_select` calls for all rows then
    replace one `index_copy_` per group, which is 10x slower per row.
    """
    order_N = torch.argsort(family_N, stable=True)
    sorted_NCHW = images_NCHW.index_select(0, order_N)
    begin = 0
    for family, count in enumerate(torch.bincount(host_N).tolist()):
        if count and family in functions:
            group = sorted_NCHW[begin : begin + count]
            group.copy_(functions[family](group, order_N[begin : begin + count]))
        begin += count
    return sorted_NCHW.index_select(0, torch.argsort(order_N))


def padded(images_NCHW: Tensor, padding: int, mode: str) -> Tensor:
    """Pad the images by `padding` pixels on every side, with mode "zero", or "reflect" without repeating the edge."""
    if mode == "zero":
        return F.pad(images_NCHW, (padding,) * 4)
    # CUDA cannot reflect uint8 tensors, which are faster on a CPU.
    exact_NCHW = images_NCHW if images_NCHW.device.type == "cpu" else images_NCHW.float()
    return F.pad(exact_NCHW, (padding,) * 4, mode="reflect").to(torch.uint8)


def windows(images_NCYX: Tensor, height: int, width: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function that cuts a window of H x W pixels from each image or its mirror image.

    Its arguments are `flip_N` (0 or 1), `top_N` and `left_N`, the window's first pixel. All calls share the mirrored
    images. Each call copies whole lines, with C * H indices per image.
    """
    count, channels, lines, columns = images_NCYX.shape
    both_2NCYX = images_NCYX.new_empty((2, *images_NCYX.shape))
    both_2NCYX[0], both_2NCYX[1] = images_NCYX, images_NCYX.flip(-1)
    runs_XW = both_2NCYX.as_strided((both_2NCYX.numel() - width + 1, width), (1, 1))
    first_NCH = torch.arange(count * channels * lines, device=images_NCYX.device).view(count, channels, lines)
    first_NCH = first_NCH[..., :height] * columns

    def cut(flip_N: Tensor, top_N: Tensor, left_N: Tensor) -> Tensor:
        moved_N = (flip_N * (count * channels * lines) + top_N) * columns + left_N
        runs_NCH = (first_NCH + moved_N.view(-1, 1, 1)).flatten()
        return runs_XW.index_select(0, runs_NCH).view(count, channels, height, width)

    return cut


def affine_index(matrix_N6: Tensor, height: int, width: int) -> Tensor:
    """Compute the source pixel of every output pixel as int64 positions (N, P) in an image with a one-pixel border.

    `matrix_N6` (float64) contains Pillow's (a, b, c, d, e, f): output (x, y) is copied from input (ax + by + c,
    dx + ey + f), both measured at pixel centres. Rounding, including ties, equals Pillow's nearest resampling with 16
    fractional bits (libImaging/Geometry.c, affine_fixed). Positions outside the image point to the border.
    """
    a, b, c, d, e, f = matrix_N6.double().unbind(1)
    steps = torch.stack([a, b, d, e, c + (a + b) * 0.5, f + (d + e) * 0.5])
    a, b, d, e, c, f = ((steps * _ONE + 0.5).floor().int().view(6, -1, 1)).unbind(0)
    x_W = torch.arange(width, dtype=torch.int32, device=matrix_N6.device)
    y_H = torch.arange(height, dtype=torch.int32, device=matrix_N6.device)
    column_NHW = ((a * x_W + c)[:, None, :] + (b * y_H)[:, :, None]) >> 16
    row_NHW = ((d * x_W + f)[:, None, :] + (e * y_H)[:, :, None]) >> 16
    column_NHW = column_NHW.clamp_(-1, width)
    row_NHW = row_NHW.clamp_(-1, height).add_(1).mul_(width + 2)
    return row_NHW.add_(column_NHW).add_(1).flatten(1).long()


def warp(images_NCHW: Tensor, index_NP: Tensor) -> Tensor:
    """Gather the pixels at the positions of `affine_index`; pixels outside the image are black."""
    channels = images_NCHW.shape[1]
    bordered_NCB = F.pad(images_NCHW, (1, 1, 1, 1)).flatten(2)
    return bordered_NCB.gather(2, index_NP[:, None].expand(-1, channels, -1)).view(images_NCHW.shape)


def warp_bilinear(images_NCHW: Tensor, matrix_N6: Tensor) -> Tensor:
    """Transform the images like Pillow's affine transform with bilinear resampling.

    Coordinates are at pixel centres, pixels beyond the border equal the nearest pixel on it, and results are truncated
    to integers (libImaging/Geometry.c, bilinear_filter8). Pixels outside the image are black. `matrix_N6` (float64) has
    the same entries as in `affine_index`.
    """
    count, channels, height, width = images_NCHW.shape
    a, b, c, d, e, f = (entry_N[:, None, None] for entry_N in matrix_N6.double().unbind(1))
    x_W = torch.arange(width, dtype=torch.float64, device=images_NCHW.device) + 0.5
    y_H1 = torch.arange(height, dtype=torch.float64, device=images_NCHW.device)[:, None] + 0.5
    x_NHW, y_NHW = a * x_W + b * y_H1 + c, d * x_W + e * y_H1 + f
    inside_N1HW = ((x_NHW >= 0) & (x_NHW < width) & (y_NHW >= 0) & (y_NHW < height))[:, None]
    x_NHW, y_NHW = x_NHW - 0.5, y_NHW - 0.5
    left_NHW, top_NHW = x_NHW.floor(), y_NHW.floor()

    def pixels(row_NHW: Tensor, column_NHW: Tensor) -> Tensor:
        position_NHW = row_NHW.clamp(0, height - 1).long() * width + column_NHW.clamp(0, width - 1).long()
        position_NCP = position_NHW.flatten(1)[:, None].expand(-1, channels, -1)
        return images_NCHW.flatten(2).gather(2, position_NCP).view(images_NCHW.shape).double()

    def between(first: Tensor, second: Tensor, share_NHW: Tensor) -> Tensor:
        return first + (second - first) * share_NHW[:, None]

    rows = [between(pixels(top_NHW + k, left_NHW), pixels(top_NHW + k, left_NHW + 1), x_NHW - left_NHW) for k in (0, 1)]
    return between(rows[0], rows[1], y_NHW - top_NHW).mul_(inside_N1HW).to(torch.uint8)


def paint_boxes(images_NCHW: Tensor, centre_N2: Tensor, side: int, extra: int, fill: int) -> Tensor:
    """Paint one square of value `fill` per image, in place, and clip it at the border (CutoutAbs of the released code).

    `centre_N2` in [0, 1) is (x, y) as a share of the size. The box begins at int(max(0, centre - side / 2)) and is
    `side + extra` pixels long. extra = 1 matches Pillow's `rectangle`, which includes the second corner.
    """
    _, _, height, width = images_NCHW.shape
    inside_NW = _within(centre_N2[:, 0] * width, width, side, extra)
    inside_NH = _within(centre_N2[:, 1] * height, height, side, extra)
    inside_N1HW = (inside_NH[:, :, None] & inside_NW[:, None, :])[:, None].view(torch.uint8)
    # Two bitwise passes are vectorised, unlike masked_fill_ and where on uint8, and need 0.3 us per image
    # instead of 4 us.
    return images_NCHW.bitwise_and_(inside_N1HW - 1).bitwise_or_(inside_N1HW * fill)


def _within(centre_N: Tensor, size: int, side: int, extra: int) -> Tensor:
    begin_N1 = (centre_N - side / 2).clamp(min=0).long()[:, None]
    position = torch.arange(size, device=centre_N.device)
    return (position >= begin_N1) & (position < begin_N1 + side + extra)


def blend(degenerate: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """Compute degenerate + factor * (image - degenerate) in float32, cut to uint8 (Pillow, libImaging/Blend.c)."""
    first = degenerate.float()
    return (first + factor * (image.float() - first)).clamp_(0, 255).to(torch.uint8)


def grey(images_NCHW: Tensor) -> Tensor:
    """Compute the (N, 1, H, W) luma with 16 fractional bits, rounded (Pillow, libImaging/Convert.c, L24).

    Return grey images unchanged.
    """
    if images_NCHW.shape[1] == 1:
        return images_NCHW
    red, green, blue = images_NCHW.int().split(1, dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)


def all_values(device: torch.device) -> Tensor:
    """Return 0 .. 255 as uint8 (V,), the input of every lookup table."""
    return torch.arange(256, device=device).to(torch.uint8)


def look_up(images_NCHW: Tensor, table_NCV: Tensor) -> Tensor:
    """Replace each pixel by its entry in the table of its image and channel; the tables may be expanded views."""
    return table_NCV.gather(2, images_NCHW.flatten(2).long()).view(images_NCHW.shape)


def autocontrast(images_NCHW: Tensor) -> Tensor:
    """Stretch each channel to 0 .. 255; a constant channel does not change.

    A value becomes int(value * scale - low * scale) in float64, with scale = 255 / (high - low), as in
    PIL.ImageOps.autocontrast.
    """
    low_NC1 = images_NCHW.amin(dim=(2, 3))[..., None].double()
    span_NC1 = images_NCHW.amax(dim=(2, 3))[..., None].double() - low_NC1
    scale_NC1 = torch.full_like(span_NC1, 255.0) / span_NC1  # 255.0 / span would compute span.reciprocal() * 255
    value_V = all_values(images_NCHW.device)
    stretched_NCV = (value_V.double() * scale_NC1 + -low_NC1 * scale_NC1).trunc().clamp(0, 255).to(torch.uint8)
    return look_up(images_NCHW, torch.where(span_NC1 > 0, stretched_NCV, value_V))


def equalize(images_NCHW: Tensor) -> Tensor:
    """Flatten each channel's histogram with integer operations, like PIL.ImageOps.equalize.

    step = (pixels - count of the highest value present) // 255. Table entry v = (pixels below v + step // 2) // step,
    at most 255. A step of 0 does not change the channel.
    """
    pixels = images_NCHW.shape[-2] * images_NCHW.shape[-1]
    value_NCP = images_NCHW.flatten(2).long()
    count_NCV = value_NCP.new_zeros(*images_NCHW.shape[:2], 256).scatter_add_(2, value_NCP, torch.ones_like(value_NCP))
    highest_NC1 = images_NCHW.amax(dim=(2, 3))[..., None].long()
    step_NC1 = (pixels - count_NCV.gather(2, highest_NC1)) // 255
    below_NCV = count_NCV.cumsum(2) - count_NCV
    level_NCV = ((below_NCV + step_NC1 // 2) // step_NC1.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return look_up(images_NCHW, torch.where(step_NC1 > 0, level_NCV, all_values(images_NCHW.device)))


def contrast(images_NCHW: Tensor, factor_N1: Tensor) -> Tensor:
    """Blend each image with its mean grey value, rounded half up (PIL.ImageEnhance.Contrast)."""
    grey_N1HW = grey(images_NCHW)
    pixels = grey_N1HW.shape[-2] * grey_N1HW.shape[-1]
    # The integer sum is divided in float64, so that the mean has only one rounding error.
    mean_N1 = (grey_N1HW.sum(dim=(1, 2, 3)).double().div(pixels).float() + 0.5).floor()[:, None]
    table_NV = blend(mean_N1, all_values(images_NCHW.device), factor_N1)
    return look_up(images_NCHW, table_NV[:, None].expand(-1, images_NCHW.shape[1], -1))


def color(images_NCHW: Tensor, factor_N1: Tensor) -> Tensor:
    """Blend each image with its grey version. Return grey images unchanged."""
    if images_NCHW.shape[1] == 1:
        return images_NCHW
    return blend(grey(images_NCHW), images_NCHW, factor_N1[:, :, None, None])


def sharpness(images_NCHW: Tensor, factor_N1: Tensor) -> Tensor:
    """Blend each image with its smoothed version, like PIL.ImageFilter.SMOOTH.

    The smoothed version is the 3 x 3 mean with weight 5 of 13 at the centre, rounded. The outermost pixels are kept.
    """
    wide = images_NCHW.short()
    lines = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    total = lines[..., :-2, :] + lines[..., 1:-1, :] + lines[..., 2:, :] + 4 * wide[..., 1:-1, 1:-1]
    smooth_NCHW = images_NCHW.clone()
    # 13 is odd, so that no sum is half-way. (2 s + 13) / 26 is at least 1/26 from the next integer, enough for float32.
    smooth_NCHW[..., 1:-1, 1:-1] = ((2 * total + 13).float() / 26).to(torch.uint8)
    return blend(smooth_NCHW, images_NCHW, factor_N1[:, :, None, None])
