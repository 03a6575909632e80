"""Sharpening of a teacher's prediction.

Source: RSCFed Eq. 2, after MixMatch (Berthelot et al. 2019); RSCFed's released code uses temperature .5.
"""

import torch
from torch import Tensor

from benchmark.errors import ConfigError

# N images, D classes


@torch.no_grad()
def sharpen(probs_ND: Tensor, temperature: float) -> Tensor:
    """p_i^(1/T) / sum_j p_j^(1/T), row by row (RSCFed Eq. 2), outside the gradient: it is a target.

    T = 1 changes nothing, T -> 0 leaves the largest probability alone, T > 1 flattens.
    Computed as a softmax of log p / T, where a small T cannot underflow to 0/0; a probability of 0 stays 0.
    Raises ConfigError unless T > 0.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature} must be above 0, for example 0.5")
    return torch.softmax(probs_ND.log() / temperature, dim=-1)
