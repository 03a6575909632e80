"""Instance norm and layer norm against their equations, and the maps of one pixel that an instance norm refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.federated.stacked.layers import RULES
from benchmark.models.build import NETWORKS, Model, build, count_parameters
from benchmark.models.norms import NORMS, has_batch_statistics

# N images, C channels, H rows, W columns

OVER: dict[Any, tuple[int, ...]] = {
    "in": (2, 3),
    "ln": (1, 2, 3),
}  # the dimensions whose values share a mean and a variance
SEEN = Model(network="tiny_cnn", norm_groups=4)
# The smallest side of an image that a network takes; 0 for a network without norms.
SIDES: dict[str, int] = {
    name: getattr(of, "smallest_side", 1) if getattr(of, "norm_channels", ()) else 0 for name, of in NETWORKS.items()
}


def normalised(images_NCHW: Tensor, over: tuple[int, ...]) -> Tensor:
    """Divide by the standard deviation after subtracting the mean, both by their sums over these dimensions."""
    count = 1
    for dim in over:
        count *= images_NCHW.shape[dim]
    centred_NCHW = images_NCHW - images_NCHW.sum(dim=over, keepdim=True) / count
    variance = (centred_NCHW**2).sum(dim=over, keepdim=True) / count
    return centred_NCHW / (variance + 1e-5) ** 0.5


@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize("training", [True, False])
def test_each_image_is_normalised_by_itself(name, training):
    """Instance norm (Ulyanov et al. 2016, Eq. 1) per channel, layer norm (Ba et al. 2016, Eq. 3) over all of them."""
    draw = torch.Generator().manual_seed(1)
    images_NCHW = 7 + 3 * torch.randn(5, 6, 4, 3, generator=draw, dtype=torch.float64)
    scale_C, shift_C = torch.rand(6, generator=draw).double(), torch.rand(6, generator=draw).double()
    layer = NORMS[name](4)(6).double().train(training)
    layer.load_state_dict({"weight": scale_C, "bias": shift_C})
    expected = normalised(images_NCHW, OVER[name]) * scale_C[:, None, None] + shift_C[:, None, None]
    torch.testing.assert_close(layer(images_NCHW), expected)
    alone = torch.cat([layer(images_NCHW[at : at + 1]) for at in range(5)])
    torch.testing.assert_close(alone, expected)


@pytest.mark.parametrize("name", OVER)
def test_no_batch_is_measured_and_jobs_can_train_together(name):
    """Parameters are those of a group norm: a scale and a shift per channel. Layers have a rule for stacked jobs."""
    network = build(replace(SEEN, norm=name), (1, 8, 8), 10, seed=0)
    assert not has_batch_statistics(network) and not list(network.buffers())
    assert count_parameters(network) == count_parameters(build(replace(SEEN, norm="gn"), (1, 8, 8), 10, seed=0))
    norms = [layer for layer in network.modules() if not isinstance(layer, nn.Conv2d | nn.Linear) and layer._parameters]
    assert len(norms) == 2 and all(type(layer) in RULES for layer in norms)


def test_the_number_of_groups_is_not_theirs():
    """32 groups do not divide the 16 channels of the small networks, which only a group norm refuses."""
    with pytest.raises(ConfigError, match="norm_groups is 32"):
        Model(network="tiny_cnn", norm="gn")
    for name in OVER:
        build(Model(network="tiny_cnn", norm=name), (1, 8, 8), 10, seed=0)


def smallest_map(network: nn.Module, images_NCHW: Tensor) -> int:
    """Return the number of pixels of the smallest map that a norm returns."""
    sizes: list[int] = []
    for layer in network.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.register_forward_hook(lambda layer, given, out: sizes.append(out[0, 0].numel()))
    network(images_NCHW)
    return min(sizes)


@pytest.mark.parametrize("network", sorted(name for name in NETWORKS if SIDES[name]))
def test_maps_of_one_pixel_are_refused_for_an_instance_norm(network):
    """Its only value is its own mean, so that every image would look the same; what is built tells images apart."""
    refused = 0
    for side in (8, 32):
        shape = (1, side, side)
        if side < SIDES[network]:
            continue
        images_NCHW = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
        if smallest_map(build(Model(network=network, norm="ln"), shape, 10, seed=0), images_NCHW) == 1:
            refused += 1
            with pytest.raises(ConfigError, match="map of one pixel"):
                build(Model(network=network, norm="in"), shape, 10, seed=0)
        else:
            logits_ND = build(Model(network=network, norm="in"), shape, 10, seed=0)(images_NCHW)
            assert bool(((logits_ND - logits_ND[0]).abs() > 1e-5).any())
    # VGG-11 halves 32 pixels five times before its last norm; the ResNets halve 8 pixels three times.
    assert refused == {"vgg11": 2, "resnet18": 1, "resnet18_mlp": 1, "resnet9": 1}.get(network, 0)


class OnePixel(nn.Module):
    """A custom network that pools everything before its norm."""

    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.norm, self.fc = norm(image_shape[0]), nn.Linear(image_shape[0], num_classes)

    def forward(self, images_NCHW):
        return self.fc(self.norm(images_NCHW.mean(dim=(2, 3), keepdim=True)).flatten(1))


def test_a_custom_network_whose_norm_sees_one_pixel_is_refused():
    own = Model(network=f"{__name__}:OnePixel", norm="in")
    with pytest.raises(ConfigError, match="map of one pixel"):
        build(own, (4, 8, 8), 10, seed=0)
    assert build(replace(own, norm="ln"), (4, 8, 8), 10, seed=0)(torch.rand(2, 4, 8, 8)).shape == (2, 10)
