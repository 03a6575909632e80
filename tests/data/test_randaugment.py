"""The RandAugment pools, operation by operation, against Pillow, byte by byte.

Shapes: N images, C channels, H height, W width. An "image" array is (H, W) or (H, W, 3) uint8 for Pillow.
"""

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from scipy.stats import chisquare
from sklearn.datasets import load_sample_image
from torch import Tensor

from benchmark.data.randaugment import RandAugment, _entries, semifl, ssfl
from tests.data.test_augment import with_pillow

SHAPES = [(1, 28, 28), (3, 32, 32), (3, 9, 14)]
NAMES = {"ssfl": [*ssfl(0, 1, 8, 8)], "semifl": [*semifl(0, 1, 8, 8)]}


@cache
def pictures(shape: tuple[int, int, int]) -> Tensor:
    """Return six uint8 images: a photograph at two scales, noise, few values in a narrow range, constant, nearly
    constant.
    """
    channels, height, width = shape
    photograph = Image.fromarray(load_sample_image("china.jpg")).convert("L" if channels == 1 else "RGB")
    rng = np.random.default_rng(0)
    out = [np.asarray(photograph.resize((width, height)))]
    out.append(np.asarray(photograph.crop((200, 150, 200 + width, 150 + height))))
    out.append(rng.integers(0, 256, out[0].shape, dtype=np.uint8))
    out.append(rng.integers(97, 104, out[0].shape, dtype=np.uint8))
    out.append(np.full_like(out[0], 200))
    out.append(out[-1].copy())
    out[-1].flat[: channels * 2] = 31
    return torch.from_numpy(np.stack(out)).reshape(6, height, width, channels).permute(0, 3, 1, 2).contiguous()


def run_pool(pool: str, name: str, level: int, sign: int, images_NCHW: Tensor) -> Tensor:
    """Apply our operation to every image at one level and sign."""
    policy = RandAugment(pool=pool, num_ops=1, probability=1.0, levels=(level, level), cutout=0.0)  # type: ignore[arg-type]
    drawn = (NAMES[pool].index(name) + 0.5) / len(NAMES[pool])
    draws_ND = torch.tensor([[drawn, 0, 0.25 if sign > 0 else 0.75, 0, 0, 0]]).repeat(len(images_NCHW), 1)
    return policy.apply(images_NCHW, draws_ND, draws_ND)


def pillow_operation(pool: str, name: str, v: int, sign: int) -> Callable[[Image.Image], Image.Image]:
    """Return the released operation at level v of 10: SSFL's dataset/randaugment.py:154-169, and SemiFL's
    datasets/randaugment.py, which draws the sign.
    """
    released = pool == "ssfl"
    factor = v * 0.9 / 10 + 0.05 if released else v * 1.8 / 10 + 0.1
    angle = sign * (int(v * 30 / 10) if released else v * 30 / 10)
    bits = int(v * 4 / 10) + (4 if released else 0)
    share = sign * (v * 0.3 / 10)

    def affine(*matrix: float) -> Callable[[Image.Image], Image.Image]:
        sampling = Image.Resampling.NEAREST if released else Image.Resampling.BILINEAR
        return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, sampling)

    def shift(side: int) -> float:
        return int(share * side) if released else sign * (v * 100 / 10)

    table: dict[str, Callable[[Image.Image], Image.Image]] = {
        "AutoContrast": ImageOps.autocontrast,
        "Brightness": lambda image: ImageEnhance.Brightness(image).enhance(factor),
        "Color": lambda image: ImageEnhance.Color(image).enhance(factor),
        "Contrast": lambda image: ImageEnhance.Contrast(image).enhance(factor),
        "Equalize": ImageOps.equalize,
        "Identity": lambda image: image,
        "Invert": ImageOps.invert,
        "Posterize": lambda image: ImageOps.posterize(image, bits),
        "Rotate": lambda image: image.rotate(angle),
        "Sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(factor),
        "ShearX": affine(1, share, 0, 0, 1, 0),
        "ShearY": affine(1, 0, 0, share, 1, 0),
        "Solarize": lambda image: ImageOps.solarize(image, 256 - int(v * 256 / 10)),
        "TranslateX": lambda image: affine(1, 0, shift(image.size[0]), 0, 1, 0)(image),
        "TranslateY": lambda image: affine(1, 0, 0, 0, 1, shift(image.size[1]))(image),
    }
    return table[name]


LEVELS = {"ssfl": (0, 1, 3, 6, 9, 10), "semifl": (10, 4, 7)}  # SemiFL's is run at 10


@pytest.mark.parametrize("pool", ["ssfl", "semifl"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operations_equal_pillow(pool: str, shape: tuple[int, int, int]) -> None:
    """Levels and both signs give Pillow's bytes, pixel by pixel."""
    images_NCHW = pictures(shape)
    for name, level, sign in product(NAMES[pool], LEVELS[pool], (1, -1)):
        if name != "Cutout":
            ours_NCHW = run_pool(pool, name, level, sign, images_NCHW)
            theirs_NCHW = with_pillow(images_NCHW, pillow_operation(pool, name, level, sign))
            assert torch.equal(ours_NCHW, theirs_NCHW), f"{name} level {level} sign {sign}"


@pytest.mark.parametrize("size", [(32, 32), (96, 96), (14, 9)])
def test_semifl_s_box_is_the_released_one(size: tuple[int, int]) -> None:
    """A box of 40 pixels about a centre of its own for each image and slot; other images stay as they are."""
    width, height = size
    white_NCHW = torch.full((3, 1, height, width), 255, dtype=torch.uint8)
    policy = RandAugment(pool="semifl", levels=(10, 10), num_ops=1, probability=1.0, cutout=0.0)
    box, identity = ((NAMES["semifl"].index(name) + 0.5) / 15 for name in ("Cutout", "Color"))
    draws_ND = torch.tensor([[box, 0.2, 0.9, 0, 0, 0], [identity, 0.2, 0.9, 0, 0, 0], [box, 0.7, 0.4, 0, 0, 0]])
    out_NCHW = policy.apply(white_NCHW, draws_ND, draws_ND)
    for row, (u_x, u_y) in {0: (0.2, 0.9), 2: (0.7, 0.4)}.items():
        expected = released_cutout(width, height, 40, float(np.float32(u_x)), float(np.float32(u_y)))
        assert torch.equal(out_NCHW[row, 0], torch.from_numpy(expected.copy()))
    assert out_NCHW[1].min() == 255 and white_NCHW.min() == 255


def test_drawn_operations_are_uniform_and_per_image() -> None:
    """20,000 images x 2 slots over 14 operations: chi-square does not reject (fixed seed), and slots are independent.

    A draw per batch would put all 20,000 in one bin: statistic 260,000 instead of about 13.
    """
    policy = RandAugment(probability=1.0)
    draws_ND = torch.rand(20_000, policy.num_draws, generator=torch.Generator().manual_seed(3))
    entries = _entries("ssfl", *policy.levels, 8, 8, torch.device("cpu"))
    drawn_NS = torch.stack([*policy._chosen(draws_ND, entries)], dim=1) % 14
    assert chisquare(torch.bincount(drawn_NS.flatten(), minlength=14).numpy()).pvalue > 0.01
    assert chisquare(torch.bincount(drawn_NS[:, 0] * 14 + drawn_NS[:, 1], minlength=196).numpy()).pvalue > 0.01


def released_cutout(width: int, height: int, v: int, u_x: float, u_y: float) -> np.ndarray:
    """Apply CutoutAbs (dataset/randaugment.py:47-67) with given uniform draws to a white image."""
    x0, y0 = int(max(0, u_x * width - v / 2.0)), int(max(0, u_y * height - v / 2.0))
    x1, y1 = int(min(width, x0 + v)), int(min(height, y0 + v))
    image = Image.new("L", (width, height), 255)
    ImageDraw.Draw(image).rectangle((x0, y0, x1, y1), 127)
    return np.asarray(image)


@given(
    u_x=st.floats(0, 1 - 2**-24, width=32),
    u_y=st.floats(0, 1 - 2**-24, width=32),
    size=st.sampled_from([(8, 8), (28, 28), (32, 32), (14, 9), (96, 96)]),
)
def test_cutout_is_the_released_box(u_x: float, u_y: float, size: tuple[int, int]) -> None:
    """Side int(.5 W), both corners included as Pillow's rectangle draws them (17 x 17 at 32), clipped at the border."""
    width, height = size
    white_NCHW = torch.full((1, 1, height, width), 255, dtype=torch.uint8)
    draws_ND = torch.tensor([[u_x, u_y]])
    out_NCHW = RandAugment(num_ops=0).apply(white_NCHW, draws_ND, draws_ND)
    expected = released_cutout(width, height, int(0.5 * width), float(np.float32(u_x)), float(np.float32(u_y)))
    assert torch.equal(out_NCHW[0, 0], torch.from_numpy(expected.copy()))
    assert white_NCHW.min() == 255  # the input is not painted
