"""The fast group norm against PyTorch's in float64, and where PyTorch's is used.

Legend: N images, C channels, H rows, W columns.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmark.models.fast_group_norm import FastGroupNorm, use_fast_group_norms


def norm_and_images(N, groups, per_group, side, mean=0.0, seed=0):
    """A fast norm with random scale and shift, and float32 images with channels last."""
    torch.manual_seed(seed)
    C = groups * per_group
    norm = nn.Sequential(nn.GroupNorm(groups, C))
    for weights in norm.parameters():
        nn.init.normal_(weights)
    use_fast_group_norms(norm)
    assert type(norm[0]) is FastGroupNorm
    images_NCHW = torch.randn(N, C, side, side + 1) + mean
    return norm[0], images_NCHW.to(memory_format=torch.channels_last)


@given(
    N=st.integers(1, 5),
    groups=st.integers(1, 4),
    per_group=st.integers(1, 3),
    side=st.integers(1, 9),
    mean=st.sampled_from([0.0, 3.0, -100.0]),
)
def test_outputs_and_gradients_are_pytorchs(N, groups, per_group, side, mean):
    """Its float64 results. Rounding of a mean grows by r = 1 / sqrt(v + eps), in the gradient twice."""
    norm, images_NCHW = norm_and_images(N, groups, per_group, side, mean)
    dy_NCHW = torch.randn_like(images_NCHW)
    exact = nn.GroupNorm(groups, groups * per_group).double()
    exact.load_state_dict(norm.state_dict())
    both = []
    for module, images in ((norm, images_NCHW), (exact, images_NCHW.double())):
        leaf = images.detach().clone().requires_grad_()
        actual = module(leaf)
        actual.backward(dy_NCHW.to(actual.dtype))
        both.append((actual, leaf.grad, module.weight.grad, module.bias.grad))
    values_NGM = images_NCHW.double().reshape(N, groups, -1)
    r = float((values_NGM.var(dim=2, correction=0) + exact.eps).rsqrt().max())
    for ours, theirs in zip(*both, strict=True):
        size = float(theirs.detach().abs().max()) + 1.0
        off = float((ours.double() - theirs).detach().abs().max())
        assert off < 1e-6 * (1 + abs(mean)) * (1 + r) ** 2 * size


@pytest.mark.parametrize("change", [torch.Tensor.double, torch.Tensor.bfloat16, torch.Tensor.contiguous])
def test_elsewhere_it_is_pytorchs_own_to_the_bit(change):
    norm, images_NCHW = norm_and_images(3, 2, 2, 4)
    images = change(images_NCHW)
    norm = norm.to(images.dtype)
    own = nn.GroupNorm(2, 4).to(images.dtype)
    own.load_state_dict(norm.state_dict())
    assert torch.equal(norm(images), own(images))
