"""The pull of a client's weights towards those it received.

Sources: FedProx (Li et al. 2020), Eq. 2, mu/2; FedSwitch Algorithm 1 (clients with labels) writes mu, its Algorithm 2
(clients without) mu/2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def proximal_term(weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor], mu: float, *, half: bool) -> Tensor:
    """mu ||w - anchor||^2, or half of it, over all tensors as one vector; a scalar.

    `half=True` is mu/2 (FedProx, FedSwitch Algorithm 2), `half=False` is mu (FedSwitch Algorithm 1).
    `weights` holds what is trained and must have the anchor's names: a buffer in one of them alone is an error
    (ValueError). The anchor takes no gradient.
    """
    if weights.keys() != anchor.keys():
        raise ValueError(f"weights and anchor differ in {sorted(weights.keys() ^ anchor.keys())}")
    squares = [(tensor - anchor[name].detach()).square().sum() for name, tensor in weights.items()]
    return torch.stack(squares).sum() * (mu / 2 if half else mu)
