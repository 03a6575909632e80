"""One image of Gaussian noise, by which FedMatch compares models.

Source: FedMatch, models/fedmatch/server.py: a truncated normal of mean 125 and deviation 125 on the grey levels 0..255,
drawn once. Here normalised as the data set's images are. Shapes: C channels, H W pixels.
"""

import math

import torch
from torch import Tensor

from benchmark.streams import torch_stream

CENTER, SPREAD, BRIGHTEST = 125.0, 125.0, 255.0  # grey levels


def gaussian_image(shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...], seed: int) -> Tensor:
    """noise_1CHW, float32, normalised by each channel's mean and std. These are on the 0..1 scale; the same seed gives
    the same image."""
    uniform_CHW = torch.rand(shape, generator=torch_stream(seed, "noise image"), dtype=torch.float64)
    low, high = (0.5 * (1 + math.erf((grey - CENTER) / SPREAD / math.sqrt(2))) for grey in (0.0, BRIGHTEST))
    grey_CHW = CENTER + SPREAD * torch.special.ndtri(low + (high - low) * uniform_CHW)
    mean_C11, std_C11 = (torch.tensor(value, dtype=torch.float64)[:, None, None] for value in (mean, std))
    return ((grey_CHW / BRIGHTEST - mean_C11) / std_C11).float()[None]
