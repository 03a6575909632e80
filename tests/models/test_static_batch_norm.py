"""Static batch norm against torch's, in training and after a pass for statistics."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmark.models.build import Model, build, count_parameters
from benchmark.models.norms import StaticBatchNorm2d, has_batch_statistics, statistics_over

# N images, C channels, H rows, W columns

CHANNELS = 3


def batches_of(sizes: list[int], shape: tuple[int, int, int] = (CHANNELS, 4, 5), seed: int = 0) -> list[Tensor]:
    """Return batches with channels that differ in mean and spread."""
    generator = torch.Generator().manual_seed(seed)
    scale_C11 = torch.arange(1.0, shape[0] + 1)[:, None, None]
    return [torch.randn(size, *shape, generator=generator) * scale_C11 + 10 * scale_C11 for size in sizes]


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_pooled_they_are_those_of_all_values(sizes: list[int], seed: int) -> None:
    """E[x] and Var[x] of all images at once, whatever the batches' sizes; the first of them moved by 5."""
    batches = batches_of(sizes, seed=seed)
    batches[0] += 5.0
    actual, count = statistics_over(StaticBatchNorm2d(CHANNELS), batches)
    all_NCHW = torch.cat(batches).double()
    assert count == len(all_NCHW)
    torch.testing.assert_close(actual["running_mean"], all_NCHW.mean(dim=(0, 2, 3)), rtol=1e-5, atol=1e-5)
    expected_C = all_NCHW.var(dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(actual["running_var"], expected_C, rtol=1e-4, atol=1e-4)


def test_a_whole_network_equals_its_twin_with_torchs_batch_norm() -> None:
    """Same names, same initial weights, and after the pass the same statistics and the same logits."""
    shape = (1, 8, 8)
    ours, theirs = (build(Model(network="wresnet28x2", norm=norm), shape, 10, seed=3) for norm in ("sbn", "bn"))
    others = [build(Model(network="tiny_cnn", norm=norm, norm_groups=4), (1, 8, 8), 10, 0) for norm in ("gn", "none")]
    assert list(map(has_batch_statistics, (ours, theirs, *others))) == [True, True, False, False]
    assert count_parameters(ours) == count_parameters(theirs)
    their_names = [name for name in theirs.state_dict() if not name.endswith("num_batches_tracked")]
    assert list(ours.state_dict()) == their_names
    for part in theirs.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None
    batches = batches_of([6, 3, 4], shape)
    ours.load_state_dict(statistics_over(ours, batches, pooled=False)[0], strict=False)
    with torch.no_grad():
        for images_NCHW in batches:
            theirs(images_NCHW)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name])
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(batches[0]), theirs.eval()(batches[0]), rtol=1e-4, atol=1e-5)
