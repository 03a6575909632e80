"""Apply RandAugment to whole uint8 batches, with separate draws for each image.

Source of the `ssfl` pool: SSFL's released dataset/randaugment.py:154-169 (pool), 216-235 (RandAugmentMC) and 47-67
(CutoutAbs), which is FixMatch's pool on Pillow. Source of the `semifl` pool: SemiFL's released datasets/randaugment.py,
15 operations on Pillow, which it runs at level 10 of 10 and without an additional box. For images of 32 pixels, its
translations by 100 pixels leave a black image, and its box of 40 pixels covers everything below and to the right of a
corner. Deviation: the draws use one torch.Generator instead of Python's and NumPy's global ones, with the same
distributions.

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

# Families of operations; one pass applies all operations of a family, whatever their parameters.
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

HIGHEST = 10  # the highest level
SEMIFL_BOX = 40  # side in pixels at the highest level
# Parameters: 256 values for LOOKUP, Pillow's 6 numbers for AFFINE and BILINEAR, a factor for blends, and none for the
# others.
Operations = Mapping[str, tuple[Kernel, Sequence[float]]]  # name -> family and parameters; a draw is an index into it


def ssfl(level: int, sign: int, height: int, width: int) -> Operations:
    """Return SSFL's pool at a level for H x W pixels; `sign`, 1 or -1, applies to shears, shifts and rotations."""
    shift_x, shift_y = (int(sign * (level * 0.3 / 10) * side) for side in (width, height))
    operations = _operations(
        level,
        sign,
        height,
        width,
        factor=level * 0.9 / 10 + 0.05,
        shift=(shift_x, shift_y),
        degrees=int(level * 30 / 10),
        bits=int(level * 4 / 10) + 4,
        sampling=Kernel.AFFINE,
    )
    return {name: operation for name, operation in operations.items() if name not in ("Cutout", "Invert")}


def semifl(level: int, sign: int, height: int, width: int) -> Operations:
    """Return SemiFL's pool at a level for images of H x W pixels; `sign` has the same meaning as for `ssfl`."""
    operations = _operations(
        level,
        sign,
        height,
        width,
        factor=level * 1.8 / 10 + 0.1,
        shift=(sign * (level * 100 / 10),) * 2,
        degrees=level * 30 / 10,
        bits=int(level * 4 / 10),
        sampling=Kernel.BILINEAR,
    )
    return {name: operation for name, operation in operations.items() if name != "Identity"}


def _operations(
    level: int,
    sign: int,
    height: int,
    width: int,
    *,
    factor: float,  # of a blend; 1 does not change the image
    shift: tuple[float, float],  # in pixels, along x and y
    degrees: float,  # counter-clockwise about the centre, for sign 1
    bits: int,  # number of bits that posterize keeps
    sampling: Kernel,  # interpolation of shears and shifts
) -> Operations:
    shear = sign * (level * 0.3 / HIGHEST)  # pixels per line
    solarized_from = 256 - int(level * 256 / HIGHEST)
    angle = -math.radians(sign * degrees)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)  # like PIL.Image.rotate
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
    """All K entries of a pool for one image size: its triples (level, sign, operation) in this order.

    The last entry, K - 1, does not change the image.
    """

    operations: int  # number of operations in the pool
    host_family_K: Tensor  # int64, on the CPU; all other tensors are on the images' device
    family_K: Tensor
    position_K: Tensor  # int64, row within the parameters of the family
    parameters: Mapping[int, Tensor]  # family -> (rows, ...); must not be changed

    def apply(self, family: int, entry_N: Tensor, group: Tensor, rows: Tensor) -> Tensor:
        """Apply the entries of a family's images, which are the images in `rows`."""
        positions = self.position_K[entry_N[rows]]
        return _APPLY[family](group, self.parameters[family].index_select(0, positions))


@lru_cache(maxsize=32)
def _entries(pool: str, lowest: int, highest: int, height: int, width: int, device: torch.device) -> _Entries:
    """Compute the tables of a pool once, including affine source pixels, which need 8 P bytes per affine entry.

    Batches then only look them up.
    """
    rows: dict[int, list[Sequence[float]]] = {family: [] for family in Kernel}
    families = []
    positions = []
    operations = 0
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
    """The RandAugment policy: `num_ops` random operations, each applied with `probability`, then a grey box.

    Operations are drawn with replacement. The defaults are from the released SSFL code (RandAugmentMC(n=2, m=10):
    levels 1 .. 9 of 10). pool="semifl", levels=(10, 10), cutout=0 is the policy of SemiFL's released code. That code
    draws the probability between .2 and .8 for each operation, which is the same as a constant probability of .5.
    """

    pool: Literal["ssfl", "semifl"] = "ssfl"
    num_ops: Annotated[int, Interval("[0, 16]")] = 2  # number of drawn operations
    probability: Share = 0.5  # of applying each drawn operation
    levels: tuple[int, int] = (1, 9)  # lowest and highest, drawn uniformly per image and slot
    cutout: Share = 0.5  # side of the box as a share of the width, truncated to whole pixels; 0 for no box
    fill: Gray = 127  # grey value of the box

    def __post_init__(self) -> None:
        super().__post_init__()
        lowest, highest = self.levels
        if not 0 <= lowest <= highest <= HIGHEST:
            raise ConfigError(
                f"levels is {lowest} to {highest}, but it must be two levels from 0 to {HIGHEST}, the lower one first"
            )

    @property
    def num_draws(self) -> int:
        """Return D, the number of uniform draws per image.

        They are the operation, level, sign and gate of each slot, followed by the two coordinates of the box's centre.
        """
        return 4 * self.num_ops + 2

    def apply(self, images_NCHW: Tensor, draws_ND: Tensor, here_ND: Tensor) -> Tensor:
        """Return new uint8 images, and leave `images_NCHW` unchanged.

        `draws_ND` are uniform in [0, 1) on the CPU, and `here_ND` are the same draws on the images' device.
        """
        height, width = images_NCHW.shape[-2:]
        entries = _entries(self.pool, *self.levels, height, width, images_NCHW.device)
        chosen = zip(self._chosen(here_ND, entries), self._chosen(draws_ND, entries), strict=True)
        out_NCHW = images_NCHW
        for slot, (entry_N, host_N) in enumerate(chosen):
            functions = {family: partial(entries.apply, family, entry_N) for family in _APPLY}
            # The draws of level and sign give the centre of a box: they have no other effect if the pool has one level.
            functions[Kernel.BOX] = partial(self._painted, here_ND[:, 4 * slot + 1 : 4 * slot + 3])
            out_NCHW = ops.by_family(out_NCHW, entries.family_K[entry_N], functions, entries.host_family_K[host_N])
        side = int(self.cutout * width)
        if side == 0:
            return out_NCHW
        out_NCHW = out_NCHW if self.num_ops else out_NCHW.clone()
        return ops.paint_boxes(out_NCHW, here_ND[:, -2:], side, extra=1, fill=self.fill)

    def _chosen(self, draws_ND: Tensor, entries: _Entries) -> Sequence[Tensor]:
        """Return each image's entry for every slot, (N,) int64: the drawn entry, or the last, which does nothing."""
        lowest, highest = self.levels
        draw_NS4 = draws_ND[:, : 4 * self.num_ops].unflatten(1, (self.num_ops, 4))
        # The largest draw is 1 - 2**-24, so that float32 rounding cannot reach a count.
        counts = (entries.operations, highest - lowest + 1, 2)
        operation_NS, level_NS, sign_NS = ((draw_NS4[..., i] * count).long() for i, count in enumerate(counts))
        entry_NS = (level_NS * 2 + sign_NS) * entries.operations + operation_NS
        return torch.where(draw_NS4[..., 3] < self.probability, entry_NS, len(entries.position_K) - 1).unbind(1)

    def _painted(self, centre_N2: Tensor, images_NCHW: Tensor, rows: Tensor) -> Tensor:
        """Paint the box of SemiFL's pool (`Kernel.BOX`)."""
        side = int(self.levels[1] * SEMIFL_BOX / HIGHEST)
        return ops.paint_boxes(images_NCHW, centre_N2[rows], side, extra=1, fill=self.fill)
