"""Views: weak geometry by indexing, the gentle policy against Pillow, normalisation.

Shapes: N images, C channels, H height, W width, D draws per image.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from torch import Tensor

import benchmark.data.augment as augment_module
from benchmark.data.augment import Augmentation, Gentle, Weak, make_views
from benchmark.data.image_ops import padded, windows
from benchmark.data.randaugment import RandAugment

DIGITS = Gentle(translate=0.0, contrast_probability=0.0)
POLICIES = [RandAugment(), RandAugment(pool="semifl", levels=(10, 10), cutout=0.0), Gentle(scale=0.1), DIGITS]


def noise(count: int, channels: int, size: int, seed: int = 0) -> Tensor:
    """Return random uint8 images (N, C, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def views_of(
    images_NCHW: Tensor,
    augmentation: Augmentation,
    seed: int = 1,
    mean: float = 0.0,
    std: float = 1 / 255,
    names: tuple[str, ...] = ("plain", "weak", "strong"),
) -> dict[str, Tensor]:
    """Return views with mean 0 and std 1/255: their values are the values of the pixels."""
    channels = images_NCHW.shape[1]
    generator = torch.Generator().manual_seed(seed)
    return make_views(images_NCHW, names, augmentation, (mean,) * channels, (std,) * channels, generator)


@given(data=st.data(), mode=st.sampled_from(["reflect", "zero"]), channels=st.sampled_from([1, 3]))
def test_crops_equal_numpy_pad(data: st.DataObject, mode: str, channels: int) -> None:
    """Flip, np.pad (reflect, or constant 0), slice: pixel by pixel, for every offset, on 9 x 8 images."""
    padding = data.draw(st.integers(0, 4))
    moves = data.draw(
        st.lists(
            st.tuples(st.booleans(), st.integers(0, 2 * padding), st.integers(0, 2 * padding)), min_size=1, max_size=5
        )
    )
    images_NCHW = noise(len(moves), channels, 9)[..., :8].contiguous()
    flip_N, top_N, left_N = torch.tensor([list(map(int, move)) for move in moves]).unbind(1)
    crops_NCHW = windows(padded(images_NCHW, padding, mode), 9, 8)(flip_N, top_N, left_N)
    numpy_mode = {"reflect": "reflect", "zero": "constant"}[mode]
    for image, crop, (flip, top, left) in zip(images_NCHW.numpy(), crops_NCHW.numpy(), moves, strict=True):
        turned = image[..., ::-1] if flip else image
        wide = np.pad(turned, [(0, 0), (padding, padding), (padding, padding)], mode=numpy_mode)  # type: ignore[call-overload]
        assert np.array_equal(crop, wide[:, top : top + 9, left : left + 8])


def test_padding_is_cut_to_whole_pixels() -> None:
    """int(.125 W): 4 at 32, 3 at 28, 1 at 8. A dark pixel moves by at most that much, and that much does occur."""
    for size, padding in ((32, 4), (28, 3), (8, 1)):
        images_NCHW = torch.zeros(600, 1, size, size, dtype=torch.uint8)
        images_NCHW[:, :, size // 2, size // 2] = 255
        weak = Weak(flip=0.0, padding_mode="zero")
        moved = views_of(images_NCHW, Augmentation(weak=weak))["weak"][:, 0].nonzero()[:, 1:] - size // 2
        assert set(moved.flatten().tolist()) == set(range(-padding, padding + 1))


def test_an_enlarged_image_is_cropped_where_the_draws_say_and_then_flipped() -> None:
    """28 pixels become 30, so 3 x 3 places: within a level of rounding of Pillow's enlarged image."""
    images_NCHW = noise(1, 3, 28).repeat(18, 1, 1, 1)
    pillow = Image.fromarray(images_NCHW[0].permute(1, 2, 0).numpy()).resize((30, 30), Image.Resampling.BILINEAR)
    large_CHW = torch.from_numpy(np.asarray(pillow).copy()).permute(2, 0, 1).float()
    draws_N3 = torch.cartesian_prod(torch.tensor([0.4, 0.6]), *[torch.tensor([0.1, 0.5, 0.9])] * 2)
    cropped_NCHW = augment_module._weak_geometry(images_NCHW, Weak(enlarge=240 / 224))(draws_N3)
    for cropped_CHW, (flip, top, left) in zip(cropped_NCHW, (draws_N3 * 3).tolist(), strict=True):
        expected_CHW = large_CHW[:, int(top) : int(top) + 28, int(left) : int(left) + 28]
        expected_CHW = expected_CHW.flip(-1) if flip < 1.5 else expected_CHW
        assert (cropped_CHW.float() - expected_CHW).abs().max() <= 1.01


def test_normalisation_by_hand() -> None:
    """(x / 255 - mean) / std, mean (.5, .25, 0), std (.5, .25, 2): 0 -> -1 -1 0, 255 -> 1 3 .5, 51 -> -.6 -.2 .1."""
    images_NCHW = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1, 1).repeat(1, 3, 2, 2)
    generator = torch.Generator().manual_seed(0)
    plain = make_views(images_NCHW, ["plain"], Augmentation(), (0.5, 0.25, 0.0), (0.5, 0.25, 2.0), generator)["plain"]
    expected = torch.tensor([[-1.0, -1.0, 0.0], [1.0, 3.0, 0.5], [-0.6, -0.2, 0.1]])
    torch.testing.assert_close(plain[:, :, 1, 0], expected)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_rows_do_not_depend_on_neighbours_chunks_or_other_views(
    policy: RandAugment | Gentle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same seed: row 5 stays the same bits when all the other rows change, in chunks of 7, and when asked for alone."""
    images_NCHW, others_NCHW = noise(50, 3, 16), noise(50, 3, 16, seed=9)
    others_NCHW[5] = images_NCHW[5]
    augmentation = Augmentation(strong=policy)
    views = views_of(images_NCHW, augmentation)
    again, changed = views_of(images_NCHW, augmentation), views_of(others_NCHW, augmentation)
    alone = views_of(images_NCHW, augmentation, names=("strong",))
    monkeypatch.setattr(augment_module, "_CHUNK_BYTES", 7 * 3 * 16 * 16)
    chunked = views_of(images_NCHW, augmentation)
    for name in ("weak", "strong"):
        assert torch.equal(views[name], again[name])
        assert torch.equal(views[name], chunked[name])
        assert torch.equal(views[name][5], changed[name][5])
        assert not torch.equal(views[name][6], changed[name][6])
    assert torch.equal(views["strong"], alone["strong"])
    assert not torch.equal(views["strong"], views_of(images_NCHW, augmentation, seed=2)["strong"])


def with_pillow(images_NCHW: Tensor, function: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply Pillow's function to each image."""
    arrays = images_NCHW.permute(0, 2, 3, 1).squeeze(3).numpy()
    done = np.stack([np.asarray(function(Image.fromarray(array))) for array in arrays])
    return torch.from_numpy(done).reshape(images_NCHW.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def test_gentle_effects_equal_pillow() -> None:
    """Each alone on every image, to the bit: nearest AFFINE with the same matrix; a factor of .7 of ImageEnhance."""
    off = Gentle(scale=0.1, geometry_probability=0, brightness_probability=0, contrast_probability=0, cutout=0)
    draws_ND = torch.rand(30, off.num_draws, generator=torch.Generator().manual_seed(0))
    for channels, size in ((1, 8), (3, 28)):
        images_NCHW = noise(30, channels, size) // 2
        everywhere_N4 = torch.ones(30, 4, dtype=torch.bool)
        matrices = iter(off.matrices(everywhere_N4, draws_ND[:, 6:11].double(), size, size).tolist())
        effects: dict[str, Callable[[Image.Image], Image.Image]] = {
            "geometry": lambda image: image.transform(image.size, Image.Transform.AFFINE, next(matrices)),  # noqa: B023
            "brightness": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
            "contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
        }
        for name, function in effects.items():
            factors = {} if name == "geometry" else {name: (0.7, 0.7)}
            policy = replace(off, **{f"{name}_probability": 1.0}, **factors)  # type: ignore[arg-type]
            assert torch.equal(policy.apply(images_NCHW, draws_ND, draws_ND), with_pillow(images_NCHW, function)), name


def test_gentle_matrices_by_hand() -> None:
    """One effect at a time on 20 x 10 (W x H), at the top of its range (draw 1, so the signed value is +1).

    Rotation 90 degrees: (x', y') -> (-y', x') about (10, 5): a b c = 0 -1 15, d e f = 1 0 -5.
    Shear .5: x + .5 (y - 5) -> c = -2.5. Shift .1: +2 and +1. Scale .25: 1 / 1.25 = .8 -> c = 10 * .2, f = 5 * .2.
    """
    policy = Gentle(rotation=90, shear=0.5, translate=0.1, scale=0.25)
    expected = torch.tensor(
        [[0, -1, 15, 1, 0, -5], [1, 0.5, -2.5, 0, 1, 0], [1, 0, 2, 0, 1, 1], [0.8, 0, 2, 0, 0.8, 1]],
        dtype=torch.float64,
    )
    got = policy.matrices(torch.eye(4, dtype=torch.bool), torch.ones(4, 5, dtype=torch.float64), 10, 20)
    torch.testing.assert_close(got, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_cuda_gives_the_views_of_the_cpu(policy: RandAugment | Gentle) -> None:
    """The same CPU generator: the same pixels; only the last bit of the normalisation may differ."""
    images_NCHW = noise(200, 3, 32)
    here = views_of(images_NCHW, Augmentation(strong=policy))
    there = views_of(images_NCHW.cuda(), Augmentation(strong=policy))
    for name, view in here.items():
        torch.testing.assert_close(there[name].cpu(), view, rtol=0, atol=1e-4)
