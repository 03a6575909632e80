"""HeteroFL's sub-networks: leading slices of the unchanged full network."""

import pytest
import torch

from benchmark.models.build import ImageShape, Model, build

# N images, C channels, H rows, W columns

SHAPES: dict[str, ImageShape] = {"small_cnn": (1, 28, 28), "tiny_cnn": (1, 8, 8), "resnet8": (3, 16, 16)}


@pytest.mark.parametrize("network", sorted(SHAPES))
@pytest.mark.parametrize(("norm", "width"), [("none", 0.5), ("sbn", 0.3)])
def test_a_slice_computes_what_the_full_network_does_without_the_rest(network, norm, width: float) -> None:
    """Zero the full network's weights outside the slice: the other units are then 0 and feed nothing.

    That holds only if the slice keeps the same units throughout, the flattened features of a channel included.
    """
    shape = SHAPES[network]
    full = build(Model(network=network, norm=norm), shape, 10, seed=1)
    narrow = build(Model(network=network, norm=norm, width=width), shape, 10, seed=2)
    sliced, zeroed = {}, {}
    for name, tensor in full.state_dict().items():
        part = tuple(slice(length) for length in narrow.state_dict()[name].shape)
        sliced[name], zeroed[name] = tensor[part], torch.zeros_like(tensor)
        zeroed[name][part] = tensor[part]
    narrow.load_state_dict(sliced)
    full.load_state_dict(zeroed)
    images_NCHW = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for network_ in (full, narrow):
            network_.train(norm == "none")  # evaluation keeps sBN's statistics at 0 and 1, or at 0 where zeroed
        torch.testing.assert_close(narrow(images_NCHW), full(images_NCHW))
