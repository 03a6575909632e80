"""What FedMatch and FedSwitch need besides: pooled images, images that arrive in steps, an image of noise."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, truncnorm

from benchmark.data.datasets import DataSet
from benchmark.data.pooled import arrivals, gaussian_image, pooled
from benchmark.errors import ConfigError

# N images, C channels, H x W pixels


def test_pooled_images_come_once_with_their_labels():
    """FedMatch's proportions: 580 + 20 of 600. Image i shows i (as two grey levels) and has label i mod 10."""
    values_N = torch.arange(600)
    images_NCHW = torch.stack([values_N // 256, values_N % 256], dim=1).to(torch.uint8).reshape(-1, 1, 1, 2)
    data = DataSet(
        name="toy",
        classes=tuple("abcdefghij"),
        mean=(0.5,),
        std=(0.5,),
        content_hash="0" * 64,
        train_images_NCHW=images_NCHW[:500],
        train_labels_N=values_N[:500] % 10,
        test_images_NCHW=images_NCHW[500:],
        test_labels_N=values_N[500:] % 10,
    )
    pool = pooled(data, 20, 0)
    assert len(pool.train_labels_N) == 580 and len(pool.test_labels_N) == 20
    shown_N2 = torch.cat([pool.train_images_NCHW, pool.test_images_NCHW]).reshape(-1, 2).long()
    seen_N = shown_N2 @ torch.tensor([256, 1])
    assert seen_N.sort().values.tolist() == list(range(600))
    assert torch.equal(seen_N % 10, torch.cat([pool.train_labels_N, pool.test_labels_N]))
    with pytest.raises(ConfigError, match="pooled_test is 600, .* toy .*600 .*; choose 1 to 599"):
        pooled(data, 600, 0)


@given(steps=st.integers(1, 15), more=st.integers(0, 200), seed=st.integers(0, 5), client=st.integers(0, 5))
def test_every_image_arrives_once_in_equal_steps(steps, more, seed, client):
    positions_N = np.arange(steps + more) * 3
    parts = arrivals(positions_N, steps, seed, client)
    assert len(parts) == steps and max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all((np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), positions_N)


def test_seed_and_client_decide_on_arrivals_and_the_order_given_does_not():
    firsts = [
        arrivals(positions_N, 4, seed, client)[0].tobytes()
        for positions_N in (np.arange(100), np.arange(100)[::-1])
        for seed, client in ((0, 0), (1, 0), (0, 1))
    ]
    assert firsts[:3] == firsts[3:] and len(set(firsts)) == 3
    with pytest.raises(ConfigError, match="streaming_steps is 10, but client 4 has 9 unlabelled images; choose 9"):
        arrivals(np.arange(9), 10, 0, 4)


def test_grey_levels_of_noise_are_scipy_s_truncated_normal():
    """Mean 125, deviation 125, cut at 0 and 255; undone: normalised by mean .5 and .4, deviation .25 and .2."""
    noise_1CHW = gaussian_image((2, 60, 60), (0.5, 0.4), (0.25, 0.2), seed=3)
    assert noise_1CHW.shape == (1, 2, 60, 60) and noise_1CHW.dtype == torch.float32
    for channel_HW, mean, std in zip(noise_1CHW[0], (0.5, 0.4), (0.25, 0.2), strict=True):
        grey_P = ((channel_HW.double() * std + mean) * 255).flatten().numpy()
        assert grey_P.min() >= -1e-3 and grey_P.max() <= 255 + 1e-3
        assert kstest(grey_P, truncnorm(-1.0, 130 / 125, loc=125, scale=125).cdf).pvalue > 1e-3
    assert not torch.equal(noise_1CHW, gaussian_image((2, 60, 60), (0.5, 0.4), (0.25, 0.2), seed=4))
