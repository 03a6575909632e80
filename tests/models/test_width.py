"""HeteroFL's sub-networks: leading slices of the full network, which itself did not change."""

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.models.build import ImageShape, Model, build

# N images, C channels, H rows, W columns

SHAPES: dict[str, ImageShape] = {"small_cnn": (1, 28, 28), "tiny_cnn": (1, 8, 8), "resnet8": (3, 16, 16)}


def leading(full: Tensor, shape: torch.Size) -> tuple[slice, ...]:
    assert full.dim() == len(shape)
    return tuple(slice(length) for length in shape)


@pytest.mark.parametrize(
    ("network", "shape", "checksum"),
    [
        ("small_cnn", (1, 28, 28), "ab95c1c0888c390f"),
        ("small_cnn", (3, 32, 32), "51ccdd58fd341dd2"),
        ("tiny_cnn", (1, 8, 8), "029d9ef2edc1f8a4"),
    ],
)
def test_the_full_network_starts_as_before_there_were_widths(network, shape: ImageShape, checksum: str) -> None:
    """SHA-256 over names and bytes in state_dict order at seed 7, recorded before `width` was a field."""
    digest = hashlib.sha256()
    for name, tensor in build(Model(network=network, norm_groups=4), shape, 10, seed=7).state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest()[:16] == checksum


@settings(max_examples=30, deadline=None)
@given(
    network=st.sampled_from(sorted(SHAPES)),
    norm=st.sampled_from(["gn", "bn", "sbn", "none"]),
    groups=st.sampled_from([1, 2, 4, 8, 16]),
    widths=st.tuples(*[st.floats(0, 1, exclude_min=True)] * 2),
)
def test_a_narrower_network_is_a_leading_slice_of_a_wider(
    network, norm, groups: int, widths: tuple[float, ...]
) -> None:
    narrow, wide, full = (
        build(Model(network=network, norm=norm, norm_groups=groups, width=width), SHAPES[network], 10, 0).state_dict()
        for width in (*sorted(widths), 1.0)
    )
    assert narrow.keys() == wide.keys() == full.keys()
    for name, tensor in narrow.items():
        assert wide[name][leading(wide[name], tensor.shape)].shape == tensor.shape
        assert full[name][leading(full[name], wide[name].shape)].shape == wide[name].shape


@pytest.mark.parametrize("network", sorted(SHAPES))
@pytest.mark.parametrize("norm", ["none", "sbn"])
@pytest.mark.parametrize("width", [0.5, 0.3])
def test_a_slice_computes_what_the_full_network_does_without_the_rest(network, norm, width: float) -> None:
    """Zero the full network's weights outside the slice: the other units are then 0 and feed nothing.

    That holds only if the slice keeps the same units throughout, the flattened features of a channel included.
    """
    shape = SHAPES[network]
    full = build(Model(network=network, norm=norm), shape, 10, seed=1)
    narrow = build(Model(network=network, norm=norm, width=width), shape, 10, seed=2)
    sliced, zeroed = {}, {}
    for name, tensor in full.state_dict().items():
        part = leading(tensor, narrow.state_dict()[name].shape)
        sliced[name], zeroed[name] = tensor[part], torch.zeros_like(tensor)
        zeroed[name][part] = tensor[part]
    narrow.load_state_dict(sliced)
    full.load_state_dict(zeroed)
    images_NCHW = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for network_ in (full, narrow):
            network_.train(norm == "none")  # evaluation keeps sBN's statistics at 0 and 1, or at 0 where zeroed
        torch.testing.assert_close(narrow(images_NCHW), full(images_NCHW))


@pytest.mark.parametrize(
    ("network", "width", "message"),
    [
        ("tiny_cnn", 0.0, "width: 0.0; choose a number in .0, 1."),
        ("tiny_cnn", 1.5, "width: 1.5; choose"),
        ("tiny_cnn", float("nan"), "width: nan; choose"),
        ("wresnet28x2", 0.5, "width: 0.5, but wresnet28x2 has one width; choose 1"),
    ],
)
def test_a_wrong_width_says_what_would_be_right(network, width: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Model(network=network, norm="none", width=width)
