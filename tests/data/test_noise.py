"""The image of noise: a truncated normal on the grey levels, normalised.

Shapes: C channels, H W pixels.
"""

import torch
from scipy.stats import kstest, truncnorm

from benchmark.data.noise import gaussian_image


def test_grey_levels_are_scipy_s_truncated_normal():
    """Mean 125, deviation 125, cut at 0 and 255; undone: normalised by mean .5 and .4, deviation .25 and .2."""
    noise_1CHW = gaussian_image((2, 60, 60), (0.5, 0.4), (0.25, 0.2), seed=3)
    assert noise_1CHW.shape == (1, 2, 60, 60) and noise_1CHW.dtype == torch.float32
    for channel_HW, mean, std in zip(noise_1CHW[0], (0.5, 0.4), (0.25, 0.2), strict=True):
        grey_P = ((channel_HW.double() * std + mean) * 255).flatten().numpy()
        assert grey_P.min() >= -1e-3 and grey_P.max() <= 255 + 1e-3
        assert kstest(grey_P, truncnorm(-1.0, 130 / 125, loc=125, scale=125).cdf).pvalue > 1e-3


def test_it_is_fixed_by_the_seed():
    first, again, other = (gaussian_image((1, 8, 8), (0.1,), (0.3,), seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
