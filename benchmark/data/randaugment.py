"""RandAugment on whole uint8 batches, every draw per image.

Source of the `ssfl` pool: SSFL's released dataset/randaugment.py:154-169 (pool), 216-235 (RandAugmentMC) and 47-67
(CutoutAbs), which is FixMatch's pool on Pillow. Source of the `semifl` pool: SemiFL's released
datasets/randaugment.py, 15 operations on Pillow, which it runs at level 10 of 10 and without another box. At
32 pixels its translations by 100 leave a black image, and its box of 40 covers all below and right of a corner.
Departure: the draws come from one torch.Generator instead of Python's and NumPy's global ones (same distributions).

Shapes: N images, C channels, H height, W width, P = H * W, S slots (operations drawn per image), K entries of a pool
(an operation at a level with a sign), D draws per image.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from benchmark.config import Checked, Interval, Share
from benchmark.data import image_ops as ops
from benchmark.data.image_ops import to_device
from benchmark.errors import ConfigError


class Family(IntEnum):
    """Operations that are run in one pass, whatever their parameters."""

    KEEP = 0
    LOOKUP = 1
    AUTOCONTRAST = 2
    EQUALIZE = 3
    CONTRAST = 4
    COLOR = 5
    SHARPNESS = 6
    AFFINE = 7
    BILINEAR = 8
    BOX = 9


# Images of a family (n, C, H, W), their parameters (n, ...) -> images.
_APPLY: Mapping[int, Callable[[Tensor, Tensor], Tensor]] = {
    Family.LOOKUP: lambda images, table: ops.look_up(images, table[:, None].expand(-1, images.shape[1], -1)),
    Family.AUTOCONTRAST: lambda images, _: ops.autocontrast(images),
    Family.EQUALIZE: lambda images, _: ops.equalize(images),
    Family.CONTRAST: ops.contrast,
    Family.COLOR: ops.color,
    Family.SHARPNESS: ops.sharpness,
    Family.AFFINE: ops.warp,
    Family.BILINEAR: ops.warp_bilinear,
}

Parameters = Callable[[int, int, int, int], Sequence[float]]  # (level, sign +-1, H, W) -> numbers of the family


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One member of a pool. LOOKUP takes 256 values, AFFINE and BILINEAR Pillow's 6 numbers, the blends a
    factor; BOX is painted by `RandAugment.apply`."""

    name: str
    family: Family
    parameters: Parameters


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Operations, and how strong they are at the highest level."""

    operations: tuple[Operation, ...]
    box: int  # side of BOX, in pixels


HIGHEST = 10  # level


def _pool(
    names: str,
    *,
    factor: Callable[[int], float],  # of a blend; 1 leaves the image alone
    shift: Callable[[int, int, int], float],  # (level, sign, side) -> pixels
    degrees: Callable[[int, int], float],  # (level, sign) -> counter-clockwise about the centre
    bits: Callable[[int], int],  # that posterize keeps
    sampling: Family = Family.AFFINE,  # of shears and shifts
    box: int = 0,  # side in pixels at the highest level
) -> Pool:
    """Operations by name, in the order that a draw counts them."""

    def blend(level: int, *_: int) -> Sequence[float]:
        return (factor(level),)

    def brightness(level: int, *_: int) -> Sequence[float]:
        values = ops.all_values(torch.device("cpu"))
        return ops.blend(torch.zeros(1), values, torch.tensor(factor(level))).tolist()

    def shear(level: int, sign: int) -> float:
        """Pixels a line."""
        return sign * (level * 0.3 / HIGHEST)

    def rotation(level: int, sign: int, height: int, width: int) -> Sequence[float]:
        """Rounded to 15 digits as PIL.Image.rotate does."""
        angle = -math.radians(degrees(level, sign))
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        x, y = width / 2, height / 2
        return (cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y)

    def inverted_from(limit: float) -> Sequence[float]:
        return [value if value < limit else 255 - value for value in range(256)]

    known: Mapping[str, tuple[Family, Parameters]] = {
        "AutoContrast": (Family.AUTOCONTRAST, lambda *_: ()),
        "Brightness": (Family.LOOKUP, brightness),
        "Color": (Family.COLOR, blend),
        "Contrast": (Family.CONTRAST, blend),
        "Cutout": (Family.BOX, lambda *_: ()),
        "Equalize": (Family.EQUALIZE, lambda *_: ()),
        "Identity": (Family.KEEP, lambda *_: ()),
        "Invert": (Family.LOOKUP, lambda *_: inverted_from(0)),
        "Posterize": (Family.LOOKUP, lambda level, *_: [value & -(2 ** (8 - bits(level))) for value in range(256)]),
        "Rotate": (Family.AFFINE, rotation),
        "Sharpness": (Family.SHARPNESS, blend),
        "ShearX": (sampling, lambda level, sign, *_: (1, shear(level, sign), 0, 0, 1, 0)),
        "ShearY": (sampling, lambda level, sign, *_: (1, 0, 0, shear(level, sign), 1, 0)),
        "Solarize": (Family.LOOKUP, lambda level, *_: inverted_from(256 - int(level * 256 / HIGHEST))),
        "TranslateX": (sampling, lambda level, sign, _, width: (1, 0, shift(level, sign, width), 0, 1, 0)),
        "TranslateY": (sampling, lambda level, sign, height, _: (1, 0, 0, 0, 1, shift(level, sign, height))),
    }
    operations = tuple(Operation(name=name, family=known[name][0], parameters=known[name][1]) for name in names.split())
    return Pool(operations=operations, box=box)


POOLS: Mapping[str, Pool] = {
    "ssfl": _pool(
        "AutoContrast Brightness Color Contrast Equalize Identity Posterize Rotate Sharpness ShearX ShearY Solarize "
        "TranslateX TranslateY",
        factor=lambda level: level * 0.9 / 10 + 0.05,
        shift=lambda level, sign, side: int(sign * (level * 0.3 / 10) * side),
        degrees=lambda level, sign: sign * int(level * 30 / 10),
        bits=lambda level: int(level * 4 / 10) + 4,
    ),
    "semifl": _pool(
        "AutoContrast Brightness Color Contrast Cutout Equalize Invert Posterize Rotate Sharpness ShearX ShearY "
        "Solarize TranslateX TranslateY",
        factor=lambda level: level * 1.8 / 10 + 0.1,
        shift=lambda level, sign, side: sign * (level * 100 / 10),
        degrees=lambda level, sign: sign * (level * 30 / 10),
        bits=lambda level: int(level * 4 / 10),
        sampling=Family.BILINEAR,
        box=40,
    ),
}


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """All K operation-level-sign triples of a pool for one image size. Entry K - 1 leaves the image as it is."""

    host_family_K: Tensor  # int64, on the CPU; all others are on the images' device
    family_K: Tensor
    position_K: Tensor  # int64: row within the parameters of its family
    parameters: Mapping[int, Tensor]  # family -> (rows, ...); only read


def entry_number(operation: Tensor, level: Tensor, negative: Tensor, levels: int) -> Tensor:
    """Position of (operation, level - lowest level, sign) in `_Entries`."""
    return (operation * levels + level) * 2 + negative


@lru_cache(maxsize=32)
def _entries(pool: str, lowest: int, highest: int, height: int, width: int, device: torch.device) -> _Entries:
    """The tables of a pool, computed once, affine source pixels included. They take 8 P bytes an affine entry; a batch
    then only looks them up."""
    rows: dict[int, list[Sequence[float]]] = {family: [] for family in Family}
    family_K, position_K = [], []
    for operation in POOLS[pool].operations:
        for level in range(lowest, highest + 1):
            for sign in (1, -1):
                family_K.append(operation.family)
                position_K.append(len(rows[operation.family]))
                rows[operation.family].append(operation.parameters(level, sign, height, width))
    parameters = {family: torch.tensor(values, dtype=torch.float64) for family, values in rows.items()}
    prepared = {family: values.float() for family, values in parameters.items()}
    prepared[Family.LOOKUP] = parameters[Family.LOOKUP].to(torch.uint8)
    prepared[Family.BILINEAR] = parameters[Family.BILINEAR]
    prepared[Family.AFFINE] = ops.affine_index(parameters[Family.AFFINE], height, width)
    family = torch.tensor([*map(int, family_K), int(Family.KEEP)])
    return _Entries(
        host_family_K=family,
        family_K=to_device(family, device),
        position_K=to_device(torch.tensor([*position_K, 0]), device),
        parameters={family: to_device(values, device) for family, values in prepared.items()},
    )


Gray = Annotated[int, Interval("[0, 255]")]


@dataclass(frozen=True, kw_only=True)
class RandAugment(Checked):
    """Draw `num_ops` operations, apply each by chance, then paint a grey box.

    They are drawn with replacement, and applied with `probability`. Defaults: the released SSFL code
    (RandAugmentMC(n=2, m=10): levels 1 .. 9 of 10). pool="semifl", levels=(10, 10), cutout=0 is SemiFL's released
    one: its probability, drawn between .2 and .8, is .5 in the mean of independent draws, and so is this.
    """

    pool: Literal["ssfl", "semifl"] = "ssfl"
    num_ops: Annotated[int, Interval("[0, 16]")] = 2
    probability: Share = 0.5  # of applying each drawn operation
    levels: tuple[int, int] = (1, 9)  # lowest and highest, drawn uniformly per image and slot
    cutout: Share = 0.5  # side as a share of the width, cut to pixels; 0 = none
    fill: Gray = 127  # gray of the box

    def __post_init__(self) -> None:
        super().__post_init__()
        lowest, highest = self.levels
        if not 0 <= lowest <= highest <= HIGHEST:
            raise ConfigError(f"levels: {lowest} to {highest}; choose two levels from 0 to {HIGHEST}, the lower first")

    @property
    def num_draws(self) -> int:
        """Uniform numbers an image uses (D). Operation, level, sign and gate for each slot, then the box's centre."""
        return 4 * self.num_ops + 2

    def drawn_operations(self, draws_ND: Tensor) -> Tensor:
        """Number of the operation drawn in each slot, (N, S) int64. Also where it is not applied."""
        draw_NS4 = draws_ND[:, : 4 * self.num_ops].unflatten(1, (self.num_ops, 4))
        return _whole(draw_NS4[..., 0], len(POOLS[self.pool].operations))

    def apply(self, images_NCHW: Tensor, draws_ND: Tensor, here_ND: Tensor | None = None) -> Tensor:
        """New uint8 images; `draws_ND` are uniform in [0, 1), on the CPU, `here_ND` the same on the images' device. The
        images are not changed."""
        height, width = images_NCHW.shape[-2:]
        here_ND = to_device(draws_ND, images_NCHW.device) if here_ND is None else here_ND
        entries = _entries(self.pool, *self.levels, height, width, images_NCHW.device)
        out_NCHW = images_NCHW
        for slot, (entry_N, host_N) in enumerate(zip(self._chosen(here_ND), self._chosen(draws_ND), strict=True)):
            # The centre of a box: level and sign have no effect where the pool is run at one level.
            box = partial(self._painted, centre_N2=here_ND[:, 4 * slot + 1 : 4 * slot + 3])
            out_NCHW = apply_entries(out_NCHW, entry_N, entries, host_N, box)
        side = int(self.cutout * width)
        if side == 0:
            return out_NCHW
        out_NCHW = out_NCHW if self.num_ops else out_NCHW.clone()
        return ops.paint_boxes(out_NCHW, here_ND[:, -2:], side, extra=1, fill=self.fill)

    def _chosen(self, draws_ND: Tensor) -> Sequence[Tensor]:
        """The entry of each image, (N,) int64, slot by slot: the drawn one, or the last, which changes nothing."""
        lowest, highest = self.levels
        draw_NS4 = draws_ND[:, : 4 * self.num_ops].unflatten(1, (self.num_ops, 4))
        levels = highest - lowest + 1
        level_NS = _whole(draw_NS4[..., 1], levels)
        entry_NS = entry_number(self.drawn_operations(draws_ND), level_NS, _whole(draw_NS4[..., 2], 2), levels)
        last = 2 * levels * len(POOLS[self.pool].operations)
        return torch.where(draw_NS4[..., 3] < self.probability, entry_NS, last).unbind(1)

    def _painted(self, images_NCHW: Tensor, rows: Tensor, centre_N2: Tensor) -> Tensor:
        """BOX."""
        side = int(self.levels[1] * POOLS[self.pool].box / HIGHEST)
        return ops.paint_boxes(images_NCHW, centre_N2[rows], side, extra=1, fill=self.fill)


def apply_entries(
    images_NCHW: Tensor,
    entry_N: Tensor,
    entries: _Entries,
    host_N: Tensor | None = None,
    box: ops.RowFunction | None = None,
) -> Tensor:
    """One slot: each image through the entry of its row. New images in the same order. `entry_N` is on the images'
    device, `host_N` the same on the CPU."""

    def run(family: int, group: Tensor, rows: Tensor) -> Tensor:
        positions = entries.position_K[entry_N[rows]]
        return _APPLY[family](group, entries.parameters[family].index_select(0, positions))

    functions: dict[int, ops.RowFunction] = {family: partial(run, family) for family in _APPLY}
    if box is not None:
        functions[Family.BOX] = box
    host_N = entry_N if host_N is None else host_N
    return ops.by_family(images_NCHW, entries.family_K[entry_N], functions, entries.host_family_K[host_N])


def _whole(uniform: Tensor, count: int) -> Tensor:
    """Uniform in [0, 1) -> 0 .. count - 1; float32 rounding cannot reach `count` (1 - 2**-24 is the largest draw)."""
    return (uniform * count).long()
