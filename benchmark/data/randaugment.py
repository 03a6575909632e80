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

# Operations that are run in one pass, whatever their parameters.
Kernel = IntEnum("Kernel", "KEEP LOOKUP AUTOCONTRAST EQUALIZE CONTRAST COLOR SHARPNESS AFFINE BILINEAR BOX", start=0)
# Images of a family (n, C, H, W), their parameters (n, ...) -> images.
_APPLY: Mapping[int, Callable[[Tensor, Tensor], Tensor]] = {
    Kernel.LOOKUP: lambda images, table: ops.look_up(images, table[:, None].expand(-1, images.shape[1], -1)),
    Kernel.AUTOCONTRAST: lambda images, _: ops.autocontrast(images),
    Kernel.EQUALIZE: lambda images, _: ops.equalize(images),
    Kernel.CONTRAST: ops.contrast,
    Kernel.COLOR: ops.color,
    Kernel.SHARPNESS: ops.sharpness,
    Kernel.AFFINE: ops.warp,
    Kernel.BILINEAR: ops.warp_bilinear,
}

HIGHEST = 10  # level
SEMIFL_BOX = 40  # side in pixels at the highest level
# LOOKUP takes 256 values, AFFINE and BILINEAR Pillow's 6 numbers, the blends a factor, the others nothing.
Operations = Mapping[str, tuple[Kernel, Sequence[float]]]  # by name, in the order that a draw counts them


def ssfl(level: int, sign: int, height: int, width: int) -> Operations:
    """SSFL's pool at a level, for images of H x W pixels; the sign of shears, shifts and rotations is 1 or -1."""
    shift_x, shift_y = (int(sign * (level * 0.3 / 10) * side) for side in (width, height))
    operations = _operations(
        level, sign, height, width,
        factor=level * 0.9 / 10 + 0.05, shift=(shift_x, shift_y), degrees=int(level * 30 / 10),
        bits=int(level * 4 / 10) + 4, sampling=Kernel.AFFINE,
    )  # fmt: skip
    return {name: operation for name, operation in operations.items() if name not in ("Cutout", "Invert")}


def semifl(level: int, sign: int, height: int, width: int) -> Operations:
    """SemiFL's pool, as above."""
    operations = _operations(
        level, sign, height, width,
        factor=level * 1.8 / 10 + 0.1, shift=(sign * (level * 100 / 10),) * 2, degrees=level * 30 / 10,
        bits=int(level * 4 / 10), sampling=Kernel.BILINEAR,
    )  # fmt: skip
    return {name: operation for name, operation in operations.items() if name != "Identity"}


def _operations(
    level: int, sign: int, height: int, width: int,
    *,
    factor: float,  # of a blend; 1 leaves the image alone
    shift: tuple[float, float],  # in pixels, along x and y
    degrees: float,  # counter-clockwise about the centre, at sign 1
    bits: int,  # that posterize keeps
    sampling: Kernel,  # of shears and shifts
) -> Operations:  # fmt: skip
    shear = sign * (level * 0.3 / HIGHEST)  # pixels a line
    solarized_from = 256 - int(level * 256 / HIGHEST)
    angle = -math.radians(sign * degrees)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)  # as PIL.Image.rotate does
    x, y = width / 2, height / 2
    values_V = ops.all_values(torch.device("cpu"))
    inverted = [255 - value for value in range(256)]
    posterized = [value & -(2 ** (8 - bits)) for value in range(256)]
    solarized = [value if value < solarized_from else 255 - value for value in range(256)]
    return {
        "AutoContrast": (Kernel.AUTOCONTRAST, ()),
        "Brightness": (Kernel.LOOKUP, ops.blend(torch.zeros(1), values_V, torch.tensor(factor)).tolist()),
        "Color": (Kernel.COLOR, (factor,)),
        "Contrast": (Kernel.CONTRAST, (factor,)),
        "Cutout": (Kernel.BOX, ()),
        "Equalize": (Kernel.EQUALIZE, ()),
        "Identity": (Kernel.KEEP, ()),
        "Invert": (Kernel.LOOKUP, inverted),
        "Posterize": (Kernel.LOOKUP, posterized),
        "Rotate": (Kernel.AFFINE, (cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y)),
        "Sharpness": (Kernel.SHARPNESS, (factor,)),
        "ShearX": (sampling, (1, shear, 0, 0, 1, 0)),
        "ShearY": (sampling, (1, 0, 0, shear, 1, 0)),
        "Solarize": (Kernel.LOOKUP, solarized),
        "TranslateX": (sampling, (1, 0, shift[0], 0, 1, 0)),
        "TranslateY": (sampling, (1, 0, 0, 0, 1, shift[1])),
    }


POOLS: Mapping[str, Callable[[int, int, int, int], Operations]] = {"ssfl": ssfl, "semifl": semifl}


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """All K triples (level, sign, operation) of a pool for one image size, counted in this order. Entry K - 1 leaves
    the image as it is."""

    operations: int  # of the pool
    host_family_K: Tensor  # int64, on the CPU; all others are on the images' device
    family_K: Tensor
    position_K: Tensor  # int64: row within the parameters of its family
    parameters: Mapping[int, Tensor]  # family -> (rows, ...); only read

    def apply(self, family: int, entry_N: Tensor, group: Tensor, rows: Tensor) -> Tensor:
        """The images of a family, which are those in `rows`, through their entries."""
        positions = self.position_K[entry_N[rows]]
        return _APPLY[family](group, self.parameters[family].index_select(0, positions))


@lru_cache(maxsize=32)
def _entries(pool: str, lowest: int, highest: int, height: int, width: int, device: torch.device) -> _Entries:
    """The tables of a pool, computed once, affine source pixels included. They take 8 P bytes an affine entry; a batch
    then only looks them up."""
    rows: dict[int, list[Sequence[float]]] = {family: [] for family in Kernel}
    families, positions, operations = [], [], 0
    for level in range(lowest, highest + 1):
        for sign in (1, -1):
            triples = POOLS[pool](level, sign, height, width)
            operations = len(triples)
            for family, numbers in triples.values():
                families.append(int(family))
                positions.append(len(rows[family]))
                rows[family].append(numbers)
    exact = {family: torch.tensor(values, dtype=torch.float64) for family, values in rows.items()}
    prepared = {family: values.float() for family, values in exact.items()}
    prepared[Kernel.LOOKUP] = exact[Kernel.LOOKUP].to(torch.uint8)
    prepared[Kernel.BILINEAR] = exact[Kernel.BILINEAR]
    prepared[Kernel.AFFINE] = ops.affine_index(exact[Kernel.AFFINE], height, width)
    host_family_K = torch.tensor([*families, int(Kernel.KEEP)])
    return _Entries(
        operations=operations,
        host_family_K=host_family_K,
        family_K=to_device(host_family_K, device),
        position_K=to_device(torch.tensor([*positions, 0]), device),
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

    def apply(self, images_NCHW: Tensor, draws_ND: Tensor, here_ND: Tensor) -> Tensor:
        """New uint8 images; `draws_ND` are uniform in [0, 1), on the CPU, `here_ND` the same on the images' device. The
        images are not changed."""
        height, width = images_NCHW.shape[-2:]
        entries = _entries(self.pool, *self.levels, height, width, images_NCHW.device)
        chosen = zip(self._chosen(here_ND, entries), self._chosen(draws_ND, entries), strict=True)
        out_NCHW = images_NCHW
        for slot, (entry_N, host_N) in enumerate(chosen):
            functions = {family: partial(entries.apply, family, entry_N) for family in _APPLY}
            # The centre of a box: level and sign have no effect where the pool is run at one level.
            functions[Kernel.BOX] = partial(self._painted, here_ND[:, 4 * slot + 1 : 4 * slot + 3])
            out_NCHW = ops.by_family(out_NCHW, entries.family_K[entry_N], functions, entries.host_family_K[host_N])
        side = int(self.cutout * width)
        if side == 0:
            return out_NCHW
        out_NCHW = out_NCHW if self.num_ops else out_NCHW.clone()
        return ops.paint_boxes(out_NCHW, here_ND[:, -2:], side, extra=1, fill=self.fill)

    def _chosen(self, draws_ND: Tensor, entries: _Entries) -> Sequence[Tensor]:
        """The entry of each image, (N,) int64, slot by slot: the drawn one, or the last, which changes nothing."""
        lowest, highest = self.levels
        draw_NS4 = draws_ND[:, : 4 * self.num_ops].unflatten(1, (self.num_ops, 4))
        # float32 rounding cannot reach a count: 1 - 2**-24 is the largest draw.
        counts = (entries.operations, highest - lowest + 1, 2)
        operation_NS, level_NS, sign_NS = ((draw_NS4[..., i] * count).long() for i, count in enumerate(counts))
        entry_NS = (level_NS * 2 + sign_NS) * entries.operations + operation_NS
        return torch.where(draw_NS4[..., 3] < self.probability, entry_NS, len(entries.position_K) - 1).unbind(1)

    def _painted(self, centre_N2: Tensor, images_NCHW: Tensor, rows: Tensor) -> Tensor:
        """BOX."""
        side = int(self.levels[1] * SEMIFL_BOX / HIGHEST)
        return ops.paint_boxes(images_NCHW, centre_N2[rows], side, extra=1, fill=self.fill)
