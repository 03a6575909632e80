"""CRL with a fixed share of confident samples: how the time of a local step depends on the share, whatever the data.

Legend: N images of a batch, D classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.methods.objectives import CRL, ConsistencyUpdate


@dataclass(frozen=True, kw_only=True)
class ForcedShareUpdate(ConsistencyUpdate):
    """Keeps the `share` of each batch that is most confident, in place of what lies above tau."""

    share: float = 1.0

    @torch.no_grad()
    def choose(self, logits_ND: Tensor) -> tuple[Tensor, Tensor]:
        """labels_N (argmax) and kept_N (bool): round(share x N) of them, those with the largest probability."""
        confidence_N, labels_N = torch.softmax(logits_ND, dim=1).max(dim=1)
        kept_N = torch.zeros_like(labels_N, dtype=torch.bool)
        kept_N[confidence_N.topk(round(self.share * len(labels_N))).indices] = True
        return labels_N, kept_N


@dataclass(frozen=True, kw_only=True)
class ForcedShare(CRL):
    """Objective Eq. 4 with a forced share, for measuring only: no experiment can name it."""

    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"share: {self.share} is outside [0, 1]")

    def update(self, keeps_momentum: bool) -> ForcedShareUpdate:
        return ForcedShareUpdate(
            keeps_momentum=keeps_momentum,
            threshold=self.threshold,
            pseudo_label_mode=self.pseudo_label_mode,
            views=self.views,
            share=self.share,
        )
