"""A group norm that leaves images channels last computes PyTorch's group norm."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.models.build import Model, build
from benchmark.models.norms import ChannelsLastGroupNorm, channels_last_group_norm, keep_channels_last


class ImageSized(TorchDispatchMode):
    """Counts the results as large as the images: those that lie channels last, and all."""

    def __init__(self, images_NCHW: Tensor) -> None:
        super().__init__()
        self._size, self.channels_last, self.all = images_NCHW.numel(), 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == self._size and not function.is_view:
            self.all += 1
            strides = result.stride()
            order = sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim))
            self.channels_last += order in ([0, 2, 3, 1], [0, 1, 2, 3][: result.dim()])
        return result


def images_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(len(shape))
    images_NCHW = 3 * torch.randn(shape, generator=draw, dtype=dtype) + 1.7
    return images_NCHW.to(memory_format=torch.channels_last)


def with_gradients(norm: nn.Module, images_NCHW: Tensor) -> list[Tensor]:
    images_NCHW = images_NCHW.clone(memory_format=torch.preserve_format).requires_grad_()
    normed_NCHW = norm(images_NCHW)
    weights_NCHW = torch.arange(normed_NCHW.numel(), dtype=normed_NCHW.dtype).sin().view(normed_NCHW.shape)
    loss = (normed_NCHW * weights_NCHW).sum() + (normed_NCHW**2).mean()
    return [normed_NCHW, *torch.autograd.grad(loss, [images_NCHW, *norm.parameters()])]


@pytest.mark.parametrize(
    ("shape", "groups"), [((3, 8, 5, 7), 4), ((2, 6, 1, 1), 3), ((1, 8, 4, 4), 1), ((4, 8, 3, 3), 8)]
)
def test_it_is_pytorchs_in_float64(shape: tuple[int, ...], groups: int) -> None:
    plain = nn.GroupNorm(groups, shape[1]).double()
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    ours = copy.deepcopy(plain)
    keep_channels_last(ours)
    assert isinstance(ours, ChannelsLastGroupNorm)
    for found, wanted in zip(
        with_gradients(ours, images_of(shape)), with_gradients(plain, images_of(shape)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_it_is_the_equation() -> None:
    """Wu & He, Eqs. 1 to 6: (x - mean) / sqrt(variance + eps) over the channels and places of a group."""
    images_NCHW, groups, eps = images_of((2, 6, 3, 4)), 2, 1e-5
    weight_C, bias_C = torch.linspace(0.5, 2, 6).double(), torch.linspace(-1, 1, 6).double()
    found_NCHW = channels_last_group_norm(images_NCHW, groups, weight_C, bias_C, eps)
    for n in range(2):
        for group in range(groups):
            mine = slice(3 * group, 3 * group + 3)
            x = images_NCHW[n, mine]
            normed = (x - x.mean()) / ((x - x.mean()).square().mean() + eps).sqrt()
            wanted = normed * weight_C[mine, None, None] + bias_C[mine, None, None]
            torch.testing.assert_close(found_NCHW[n, mine], wanted, rtol=1e-12, atol=1e-12)


def test_images_stay_channels_last_without_a_copy() -> None:
    """One result as large as the images is computed, which lies as they do. PyTorch's on CUDA copies them before it."""
    images_NCHW = images_of((4, 8, 6, 6), torch.float32)
    norm = nn.GroupNorm(4, 8)
    keep_channels_last(norm)
    with ImageSized(images_NCHW) as sized, torch.no_grad():
        normed_NCHW = norm(images_NCHW)
    assert normed_NCHW.is_contiguous(memory_format=torch.channels_last)
    assert (sized.all, sized.channels_last) == (1, 1)


@pytest.mark.parametrize("network", ["wresnet28x2", "resnet18", "small_cnn"])
def test_a_whole_network_has_the_same_gradients(network: str) -> None:
    model = Model(network=network, norm="gn", norm_groups=4)
    plain = build(model, (3, 16, 16) if network != "small_cnn" else (1, 28, 28), 10, seed=0).double()
    ours = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    keep_channels_last(ours)
    assert any(isinstance(layer, ChannelsLastGroupNorm) for layer in ours.modules())
    shape = (2, 3, 16, 16) if network != "small_cnn" else (2, 1, 28, 28)
    for found, wanted in zip(
        with_gradients(ours, images_of(shape)), with_gradients(plain, images_of(shape)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    assert ours.state_dict().keys() == plain.state_dict().keys()


def test_it_works_under_vmap_and_leaves_bfloat16_to_pytorch() -> None:
    images_MNCHW = torch.stack([images_of((2, 8, 3, 3)), -images_of((2, 8, 3, 3))])
    norm = nn.GroupNorm(2, 8).double()
    wanted = torch.stack([norm(images_NCHW) for images_NCHW in images_MNCHW])
    keep_channels_last(norm)
    torch.testing.assert_close(vmap(norm)(images_MNCHW), wanted, rtol=1e-12, atol=1e-12)
    rough = nn.GroupNorm(2, 8).bfloat16()
    images_NCHW = images_of((2, 8, 3, 3), torch.float32).bfloat16()
    before_NCHW = rough(images_NCHW)
    keep_channels_last(rough)
    assert torch.equal(rough(images_NCHW), before_NCHW)
