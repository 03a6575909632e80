"""HeteroFL's sub-networks: leading slices of the unchanged full network."""

import pytest
import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.models.build import ImageShape, Model, build

# N images, C channels, H rows, W columns

SHAPES: dict[str, ImageShape] = {"small_cnn": (1, 28, 28), "tiny_cnn": (1, 8, 8), "resnet8": (3, 16, 16)}


def leading(full: Tensor, shape: torch.Size) -> tuple[slice, ...]:
    assert full.dim() == len(shape)
    return tuple(slice(length) for length in shape)


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


def test_a_width_that_a_network_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="width: 0.5, but wresnet28x2 has one width; choose 1"):
        Model(network="wresnet28x2", norm="none", width=0.5)
