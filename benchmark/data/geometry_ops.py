"""Geometry of whole uint8 batches: crops, nearest-neighbour affine maps and cutout boxes, one transformation per image.

Shapes: N images, C channels, H height, W width, P = H * W pixels, B = (H + 2) * (W + 2) pixels with a border of one.
Nothing here draws: callers pass one row of parameters per image.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

_ONE = 1 << 16  # Pillow's fixed point: 16 fractional bits (src/libImaging/Geometry.c, affine_fixed)


RowFunction = Callable[[Tensor, Tensor], Tensor]  # (images of a group, their row numbers) -> images


def by_family(images_NCHW: Tensor, family_N: Tensor, functions: Mapping[int, RowFunction]) -> Tensor:
    """Apply `functions[family](images of the family, their row numbers)` and return the rows in their old order.

    `family_N` (int64) and the row numbers stay on the CPU, so that the group sizes cost no device synchronisation.
    Rows of a family without a function are left as they are. The rows are sorted by family first: a group is then
    a slice, and two `index_select` over everything replace an `index_copy_` per group, which is 10x slower per row.
    """
    order_N = torch.argsort(family_N, stable=True)
    device = images_NCHW.device
    sorted_NCHW = images_NCHW.index_select(0, order_N.to(device, non_blocking=True))
    begin = 0
    for family, count in enumerate(torch.bincount(family_N).tolist()):
        if count and family in functions:
            group = sorted_NCHW[begin : begin + count]
            group.copy_(functions[family](group, order_N[begin : begin + count]))
        begin += count
    return sorted_NCHW.index_select(0, torch.argsort(order_N).to(device, non_blocking=True))


def shifted_crops(images_NCHW: Tensor, padding: int, mode: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function `(flip_N bool, top_N, left_N) -> crops_NCHW` of flip, then pad, then crop back to H x W.

    `top` and `left` are pixels in 0 .. 2 * padding; `mode` is "reflect" or "zero". Columns are padded once for all
    later calls (weak and strong views share them); each call then copies whole lines, C * H indices an image.
    """
    count, channels, height, width = images_NCHW.shape
    padded_width = width + 2 * padding
    blank = 2 * count * channels * height * padded_width  # where a line of zeros begins
    # Filled in place: concatenating the same pieces takes four times as long (9 against 2 us an image of 32 x 32 x 3).
    buffer = images_NCHW.new_empty(blank + width)
    buffer[blank:] = 0
    padded_NCHX, mirrored_NCHX = buffer[:blank].view(2, count, channels, height, padded_width).unbind(0)
    padded_NCHX[..., padding : padding + width] = images_NCHW
    _FILL_SIDES[mode](padded_NCHX, images_NCHW, padding)
    mirrored_NCHX.copy_(padded_NCHX.flip(-1))  # padding is symmetric, so this is the mirrored image, padded
    windows_XW = buffer.as_strided((buffer.numel() - width + 1, width), (1, 1))
    device = images_NCHW.device
    plane_NC1 = torch.arange(count * channels, device=device).view(count, channels, 1)
    line_H = torch.arange(height, device=device)
    source = _SOURCE_LINE[mode]

    def crop(flip_N: Tensor, top_N: Tensor, left_N: Tensor) -> Tensor:
        line_N1H, inside_N1H = source(line_H + (top_N - padding).view(-1, 1, 1), height)
        mirrored_N11 = flip_N.view(-1, 1, 1) * (count * channels)
        start_NCH = ((mirrored_N11 + plane_NC1) * height + line_N1H) * padded_width + left_N.view(-1, 1, 1)
        start_NCH = torch.where(inside_N1H, start_NCH, blank)
        return windows_XW.index_select(0, start_NCH.flatten()).view(count, channels, height, width)

    return crop


def _fill_reflected(padded_NCHX: Tensor, images_NCHW: Tensor, padding: int) -> None:
    """Mirror `padding` columns at both sides without repeating the edge (`padding` < W)."""
    width = images_NCHW.shape[-1]
    padded_NCHX[..., :padding] = images_NCHW[..., 1 : padding + 1].flip(-1)
    padded_NCHX[..., padding + width :] = images_NCHW[..., width - 1 - padding : width - 1].flip(-1)


def _fill_zero(padded_NCHX: Tensor, images_NCHW: Tensor, padding: int) -> None:
    padded_NCHX[..., :padding] = 0
    padded_NCHX[..., padding + images_NCHW.shape[-1] :] = 0


def _reflected_line(line: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """Line numbers mirrored into 0 .. H-1 (-1 -> 1, H -> H-2), all of them inside."""
    return (height - 1) - ((height - 1) - line.abs()).abs(), torch.ones_like(line, dtype=torch.bool)


def _plain_line(line: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """Line numbers as they are, and which of them lie within the image."""
    return line, (line >= 0) & (line < height)


_FILL_SIDES = {"reflect": _fill_reflected, "zero": _fill_zero}
_SOURCE_LINE = {"reflect": _reflected_line, "zero": _plain_line}


def affine_index(matrix_N6: Tensor, height: int, width: int) -> Tensor:
    """Source pixel of every output pixel, as int64 positions (N, P) in an image with a border of one pixel.

    `matrix_N6` (float64) holds Pillow's (a, b, c, d, e, f): output (x, y) takes input (ax + by + c, dx + ey + f),
    both measured at pixel centres. Rounding is that of Pillow's nearest resampling, 16 bits after the point
    (libImaging/Geometry.c, affine_fixed), so that ties fall as they do there. What lies outside points at the border.
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
    """Gather the pixels that `affine_index` names; what lies outside is black."""
    count, channels, height, width = images_NCHW.shape
    bordered_NCB = F.pad(images_NCHW, (1, 1, 1, 1)).flatten(2)
    return bordered_NCB.gather(2, index_NP[:, None].expand(-1, channels, -1)).view(images_NCHW.shape)


def centred(linear_N4: Tensor, shift_N2: Tensor, height: int, width: int) -> Tensor:
    """Matrices (N, 6) of `affine_index`: a linear map (a, b, d, e) about the image's centre, then a shift in pixels."""
    a, b, d, e = linear_N4.unbind(1)
    x, y = width / 2, height / 2
    return torch.stack([a, b, x - a * x - b * y + shift_N2[:, 0], d, e, y - d * x - e * y + shift_N2[:, 1]], dim=1)


def paint_boxes(images_NCHW: Tensor, centre_N2: Tensor, side: int, extra: int, fill: int) -> Tensor:
    """Paint, in place, one square of value `fill` per image, clipped at the border (CutoutAbs of the released code).

    `centre_N2` in [0, 1) is (x, y) as a share of the size. The box begins at int(max(0, centre - side / 2)) and is
    `side + extra` pixels long: extra = 1 is what Pillow's `rectangle`, whose second corner is included, draws.
    """
    _, _, height, width = images_NCHW.shape
    inside_NW = _within(centre_N2[:, 0] * width, width, side, extra)
    inside_NH = _within(centre_N2[:, 1] * height, height, side, extra)
    inside_N1HW = (inside_NH[:, :, None] & inside_NW[:, None, :])[:, None].view(torch.uint8)
    # Two bitwise passes are vectorised; masked_fill_ and where on bytes are not (4 us against 0.3 us an image).
    return images_NCHW.bitwise_and_(inside_N1HW - 1).bitwise_or_(inside_N1HW * fill)


def _within(centre_N: Tensor, size: int, side: int, extra: int) -> Tensor:
    begin_N1 = (centre_N - side / 2).clamp(min=0).long()[:, None]
    position = torch.arange(size, device=centre_N.device)
    return (position >= begin_N1) & (position < begin_N1 + side + extra)
