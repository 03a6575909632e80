"""RandAugment on whole uint8 batches, every draw per image.

Source of the `ssfl` pool: SSFL's released dataset/randaugment.py:154-169 (pool), 216-235 (RandAugmentMC) and 47-67
(CutoutAbs), which is FixMatch's pool on Pillow. Source of the `torchvision` pool: torchvision.transforms.RandAugment
(Cubuk et al. 2019, arXiv:1909.13719) on tensors, nearest resampling, black fill. Source of the `semifl` pool: SemiFL's
released datasets/randaugment.py, 15 operations on Pillow, which it runs at level 10 of 10 and without another box. At
32 pixels its translations by 100 leave a black image, and its box of 40 covers all below and right of a corner.
Departures: the draws come from one torch.Generator instead of Python's and NumPy's global ones (same distributions);
`torchvision` geometry is computed with 16 bits after the point, so a pixel whose source coordinate lies within 0.002
pixels of the border between two pixels may take the other one.

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
from benchmark.errors import ConfigError


class Family(IntEnum):
    """Operations that run together: one pass over all rows of the family, whatever their parameters."""

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


# Images of a family (n, C, H, W), their parameters (n, ...), the rounding -> images.
_APPLY: Mapping[int, Callable[[Tensor, Tensor, ops.Arithmetic], Tensor]] = {
    Family.LOOKUP: lambda images, table, _: ops.look_up(images, table[:, None].expand(-1, images.shape[1], -1)),
    Family.AUTOCONTRAST: lambda images, _, arithmetic: ops.autocontrast(images, arithmetic),
    Family.EQUALIZE: lambda images, _, __: ops.equalize(images),
    Family.CONTRAST: ops.contrast,
    Family.COLOR: ops.color,
    Family.SHARPNESS: ops.sharpness,
    Family.AFFINE: lambda images, index, _: ops.warp(images, index),
    Family.BILINEAR: lambda images, matrix, _: ops.warp_bilinear(images, matrix),
}

Parameters = Callable[[int, int, int, int], Sequence[float]]  # (level, sign +-1, H, W) -> numbers of the family


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One member of a pool. LOOKUP takes 256 values, AFFINE and BILINEAR Pillow's 6 numbers, the blends (factor,
    1 - factor); BOX, whose side is `side` at the highest level, is painted by `RandAugment.apply`."""

    name: str
    family: Family
    parameters: Parameters = lambda *_: ()
    side: int = 0  # of BOX, in pixels


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Operations with the rounding of their reference, and the highest level they are defined for."""

    operations: tuple[Operation, ...]
    arithmetic: ops.Arithmetic
    highest_level: int


def _blend(factor: Callable[[int, int], float]) -> Parameters:
    def parameters(level: int, sign: int, _height: int, _width: int) -> Sequence[float]:
        return (factor(level, sign), 1.0 - factor(level, sign))

    return parameters


def _brightness(factor: Callable[[int, int], float], arithmetic: ops.Arithmetic) -> Parameters:
    def parameters(level: int, sign: int, _height: int, _width: int) -> Sequence[float]:
        pair = torch.tensor([factor(level, sign), 1.0 - factor(level, sign)])
        return arithmetic.blend(torch.zeros(1), ops.all_values(torch.device("cpu")), pair[0], pair[1]).tolist()

    return parameters


def _posterize(bits: Callable[[int], int]) -> Parameters:
    return lambda level, *_: [value & -(2 ** (8 - bits(level))) for value in range(256)]


def _solarize(threshold: Callable[[int], float]) -> Parameters:
    return lambda level, *_: [value if value < threshold(level) else 255 - value for value in range(256)]


def _rotate(degrees: Callable[[int, int], float]) -> Parameters:
    """Counter-clockwise about the centre; rounded to 15 digits as PIL.Image.rotate does."""

    def parameters(level: int, sign: int, height: int, width: int) -> Sequence[float]:
        angle = -math.radians(degrees(level, sign))
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        x, y = width / 2, height / 2
        return (cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y)

    return parameters


def _affine(*matrix: float | Callable[[int, int, int, int], float]) -> Parameters:
    """Pillow's six numbers, some of them functions of (level, sign, H, W)."""
    return lambda *setting: [entry(*setting) if callable(entry) else entry for entry in matrix]


def _ssfl() -> Pool:
    def factor(level: int, _sign: int) -> float:
        return level * 0.9 / 10 + 0.05

    def shear(level: int, sign: int, *_size: int) -> float:
        return sign * (level * 0.3 / 10)

    def shift_x(level: int, sign: int, _height: int, width: int) -> int:
        return int(shear(level, sign) * width)

    def shift_y(level: int, sign: int, height: int, _width: int) -> int:
        return int(shear(level, sign) * height)

    operations = (
        Operation(name="AutoContrast", family=Family.AUTOCONTRAST),
        Operation(name="Brightness", family=Family.LOOKUP, parameters=_brightness(factor, ops.PILLOW)),
        Operation(name="Color", family=Family.COLOR, parameters=_blend(factor)),
        Operation(name="Contrast", family=Family.CONTRAST, parameters=_blend(factor)),
        Operation(name="Equalize", family=Family.EQUALIZE),
        Operation(name="Identity", family=Family.KEEP),
        Operation(name="Posterize", family=Family.LOOKUP, parameters=_posterize(lambda v: int(v * 4 / 10) + 4)),
        Operation(name="Rotate", family=Family.AFFINE, parameters=_rotate(lambda v, sign: sign * int(v * 30 / 10))),
        Operation(name="Sharpness", family=Family.SHARPNESS, parameters=_blend(factor)),
        Operation(name="ShearX", family=Family.AFFINE, parameters=_affine(1, shear, 0, 0, 1, 0)),
        Operation(name="ShearY", family=Family.AFFINE, parameters=_affine(1, 0, 0, shear, 1, 0)),
        Operation(name="Solarize", family=Family.LOOKUP, parameters=_solarize(lambda v: 256 - int(v * 256 / 10))),
        Operation(name="TranslateX", family=Family.AFFINE, parameters=_affine(1, 0, shift_x, 0, 1, 0)),
        Operation(name="TranslateY", family=Family.AFFINE, parameters=_affine(1, 0, 0, 0, 1, shift_y)),
    )
    return Pool(operations=operations, arithmetic=ops.PILLOW, highest_level=10)


def _torchvision() -> Pool:
    bins = 31

    def spread(level: int, highest: float) -> float:
        return float(torch.linspace(0.0, highest, bins)[level])  # float32, as in the reference

    def factor(level: int, sign: int) -> float:
        return 1.0 + sign * spread(level, 0.9)

    def shear(level: int, sign: int, *_size: int) -> float:
        return sign * spread(level, 0.3)

    def shift_x(level: int, sign: int, _height: int, width: int) -> int:
        return -int(sign * spread(level, 150.0 / 331.0 * width))

    def shift_y(level: int, sign: int, height: int, _width: int) -> int:
        return -int(sign * spread(level, 150.0 / 331.0 * height))

    def bits(level: int) -> int:
        return int((8 - (torch.arange(bins) / ((bins - 1) / 4)).round().int())[level])

    operations = (
        Operation(name="Identity", family=Family.KEEP),
        Operation(name="ShearX", family=Family.AFFINE, parameters=_affine(1, shear, 0, 0, 1, 0)),
        Operation(name="ShearY", family=Family.AFFINE, parameters=_affine(1, 0, 0, shear, 1, 0)),
        Operation(name="TranslateX", family=Family.AFFINE, parameters=_affine(1, 0, shift_x, 0, 1, 0)),
        Operation(name="TranslateY", family=Family.AFFINE, parameters=_affine(1, 0, 0, 0, 1, shift_y)),
        Operation(name="Rotate", family=Family.AFFINE, parameters=_rotate(lambda v, sign: sign * spread(v, 30.0))),
        Operation(name="Brightness", family=Family.LOOKUP, parameters=_brightness(factor, ops.TORCHVISION)),
        Operation(name="Color", family=Family.COLOR, parameters=_blend(factor)),
        Operation(name="Contrast", family=Family.CONTRAST, parameters=_blend(factor)),
        Operation(name="Sharpness", family=Family.SHARPNESS, parameters=_blend(factor)),
        Operation(name="Posterize", family=Family.LOOKUP, parameters=_posterize(bits)),
        Operation(name="Solarize", family=Family.LOOKUP, parameters=_solarize(lambda v: 255.0 - spread(v, 255.0))),
        Operation(name="AutoContrast", family=Family.AUTOCONTRAST),
        Operation(name="Equalize", family=Family.EQUALIZE),
    )
    return Pool(operations=operations, arithmetic=ops.TORCHVISION, highest_level=bins - 1)


def _semifl() -> Pool:
    def factor(level: int, _sign: int) -> float:
        return level * 1.8 / 10 + 0.1

    def shear(level: int, sign: int, *_size: int) -> float:
        return sign * (level * 0.3 / 10)

    def shift(level: int, sign: int, *_size: int) -> float:
        return sign * (level * 100 / 10)

    operations = (
        Operation(name="AutoContrast", family=Family.AUTOCONTRAST),
        Operation(name="Brightness", family=Family.LOOKUP, parameters=_brightness(factor, ops.PILLOW)),
        Operation(name="Color", family=Family.COLOR, parameters=_blend(factor)),
        Operation(name="Contrast", family=Family.CONTRAST, parameters=_blend(factor)),
        Operation(name="CutoutConst", family=Family.BOX, side=40),
        Operation(name="Equalize", family=Family.EQUALIZE),
        Operation(name="Invert", family=Family.LOOKUP, parameters=lambda *_: [255 - value for value in range(256)]),
        Operation(name="Posterize", family=Family.LOOKUP, parameters=_posterize(lambda v: int(v * 4 / 10))),
        Operation(name="Rotate", family=Family.AFFINE, parameters=_rotate(lambda v, sign: sign * (v * 30 / 10))),
        Operation(name="Sharpness", family=Family.SHARPNESS, parameters=_blend(factor)),
        Operation(name="ShearX", family=Family.BILINEAR, parameters=_affine(1, shear, 0, 0, 1, 0)),
        Operation(name="ShearY", family=Family.BILINEAR, parameters=_affine(1, 0, 0, shear, 1, 0)),
        Operation(name="Solarize", family=Family.LOOKUP, parameters=_solarize(lambda v: 256 - int(v * 256 / 10))),
        Operation(name="TranslateXConst", family=Family.BILINEAR, parameters=_affine(1, 0, shift, 0, 1, 0)),
        Operation(name="TranslateYConst", family=Family.BILINEAR, parameters=_affine(1, 0, 0, 0, 1, shift)),
    )
    return Pool(operations=operations, arithmetic=ops.PILLOW, highest_level=10)


POOLS: Mapping[str, Pool] = {"ssfl": _ssfl(), "torchvision": _torchvision(), "semifl": _semifl()}


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """All K operation-level-sign triples of a pool for one image size; entry K - 1 leaves the image alone."""

    family_K: Tensor  # int64, on the CPU
    place_K: Tensor  # int64, on the CPU: row within the parameters of its family
    parameters: Mapping[int, Tensor]  # family -> (rows, ...), on the images' device; only read


def entry_number(operation: Tensor, level: Tensor, negative: Tensor, levels: int) -> Tensor:
    """Position of (operation, level - lowest level, sign) in `_Entries`."""
    return (operation * levels + level) * 2 + negative


@lru_cache(maxsize=32)
def _entries(pool: str, lowest: int, highest: int, height: int, width: int, device: torch.device) -> _Entries:
    """Tables worked out once: with them a batch only looks up, also its affine source pixels (8 P bytes an entry)."""
    rows: dict[int, list[Sequence[float]]] = {family: [] for family in Family}
    family_K, place_K = [], []
    for operation in POOLS[pool].operations:
        for level in range(lowest, highest + 1):
            for sign in (1, -1):
                family_K.append(operation.family)
                place_K.append(len(rows[operation.family]))
                rows[operation.family].append(operation.parameters(level, sign, height, width))
    parameters = {family: torch.tensor(values, dtype=torch.float64) for family, values in rows.items()}
    prepared = {family: values.float() for family, values in parameters.items()}
    prepared[Family.LOOKUP] = parameters[Family.LOOKUP].to(torch.uint8)
    prepared[Family.BILINEAR] = parameters[Family.BILINEAR]
    prepared[Family.AFFINE] = ops.affine_index(parameters[Family.AFFINE], height, width)
    parameters = {family: values.to(device) for family, values in prepared.items()}
    family = torch.tensor([*map(int, family_K), int(Family.KEEP)])
    return _Entries(family_K=family, place_K=torch.tensor([*place_K, 0]), parameters=parameters)


Gray = Annotated[int, Interval("[0, 255]")]


@dataclass(frozen=True, kw_only=True)
class RandAugment(Checked):
    """Draw `num_ops` operations with replacement, apply each with `probability`, then paint a gray cutout box.

    Defaults: the released SSFL code (RandAugmentMC(n=2, m=10): levels 1 .. 9 of 10). pool="torchvision",
    levels=(9, 9) of 0 .. 30, probability=1, cutout=0 is torchvision.transforms.RandAugment(2, 9). pool="semifl",
    levels=(10, 10), cutout=0 is SemiFL's released one: its probability, drawn between .2 and .8, is .5 in the mean of
    independent draws, and so is this.
    """

    pool: Literal["ssfl", "torchvision", "semifl"] = "ssfl"
    num_ops: Annotated[int, Interval("[0, 16]")] = 2
    probability: Share = 0.5  # of applying each drawn operation
    levels: tuple[int, int] = (1, 9)  # lowest and highest, drawn uniformly per image and slot
    cutout: Share = 0.5  # side as a share of the width, cut to pixels; 0 = none
    fill: Gray = 127  # gray of the box

    def __post_init__(self) -> None:
        super().__post_init__()
        (lowest, highest), most = self.levels, POOLS[self.pool].highest_level
        if not 0 <= lowest <= highest <= most:
            raise ConfigError(f"levels: {lowest} to {highest}; choose two levels from 0 to {most}, the lower first")

    @property
    def num_draws(self) -> int:
        """Uniform numbers an image uses (D): operation, level, sign, gate for each slot, then the box's centre."""
        return 4 * self.num_ops + 2

    def drawn_operations(self, draws_ND: Tensor) -> Tensor:
        """Number of the operation drawn in each slot, (N, S) int64, also where the gate stays shut."""
        draw_NS4 = draws_ND[:, : 4 * self.num_ops].unflatten(1, (self.num_ops, 4))
        return _whole(draw_NS4[..., 0], len(POOLS[self.pool].operations))

    def apply(self, images_NCHW: Tensor, draws_ND: Tensor) -> Tensor:
        """New uint8 images; `draws_ND` are uniform in [0, 1), on the CPU. The images are not changed."""
        height, width = images_NCHW.shape[-2:]
        lowest, highest = self.levels
        entries = _entries(self.pool, lowest, highest, height, width, images_NCHW.device)
        draw_NS4 = draws_ND[:, : 4 * self.num_ops].unflatten(1, (self.num_ops, 4))
        levels = highest - lowest + 1
        level_NS = _whole(draw_NS4[..., 1], levels)
        entry_NS = entry_number(self.drawn_operations(draws_ND), level_NS, _whole(draw_NS4[..., 2], 2), levels)
        entry_NS = torch.where(draw_NS4[..., 3] < self.probability, entry_NS, len(entries.family_K) - 1)
        out_NCHW = images_NCHW
        for slot, entry_N in enumerate(entry_NS.unbind(1)):
            out_NCHW = apply_entries(out_NCHW, entry_N, entries, POOLS[self.pool].arithmetic)
            boxes_N = entries.family_K[entry_N] == Family.BOX
            if boxes_N.any():
                out_NCHW = self._with_boxes(out_NCHW, boxes_N, draw_NS4[:, slot])
        side = int(self.cutout * width)
        if side == 0:
            return out_NCHW
        centre_N2 = draws_ND[:, -2:].to(images_NCHW.device, non_blocking=True)
        return ops.paint_boxes(out_NCHW if self.num_ops else out_NCHW.clone(), centre_N2, side, extra=1, fill=self.fill)

    def _with_boxes(self, images_NCHW: Tensor, boxes_N: Tensor, draw_N4: Tensor) -> Tensor:
        """BOX on these rows, in a copy. Its centre is at the draws of level and sign, which say nothing here where the
        pool is run at one level."""
        rows = boxes_N.nonzero().flatten().to(images_NCHW.device)
        largest = next(op.side for op in POOLS[self.pool].operations if op.family == Family.BOX)
        side = int(self.levels[1] * largest / POOLS[self.pool].highest_level)
        centre_N2 = draw_N4[boxes_N, 1:3].to(images_NCHW.device)
        boxed_NCHW = ops.paint_boxes(images_NCHW[rows], centre_N2, side, extra=1, fill=self.fill)
        return images_NCHW.index_copy(0, rows, boxed_NCHW)


def apply_entries(images_NCHW: Tensor, entry_N: Tensor, entries: _Entries, arithmetic: ops.Arithmetic) -> Tensor:
    """One slot: each image through the entry of its row; new images in the same order."""

    def run(family: int, group: Tensor, rows: Tensor) -> Tensor:
        parameters = entries.parameters[family]
        place = entries.place_K[entry_N[rows]].to(group.device, non_blocking=True)
        return _APPLY[family](group, parameters.index_select(0, place), arithmetic)

    return ops.by_family(images_NCHW, entries.family_K[entry_N], {family: partial(run, family) for family in _APPLY})


def _whole(uniform: Tensor, count: int) -> Tensor:
    """Uniform in [0, 1) -> 0 .. count - 1; float32 rounding cannot reach `count` (1 - 2**-24 is the largest draw)."""
    return (uniform * count).long()
