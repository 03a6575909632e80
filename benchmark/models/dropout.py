"""Dropout of whole channels with masks that belong to images.

What one image loses does not depend on which others pass the network.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

# N images of a batch, M of them that pass the network, C channels, H rows, W columns


class ImageDropout2d(nn.Dropout2d):
    """`nn.Dropout2d` bit by bit, where the whole batch passes. Where some images are left out (`rows_of_a_batch`),
    masks are drawn for all N images, and those of the M that pass are used."""

    rows: tuple[int, Tensor] | None = None  # N, and positions_M

    def forward(self, features_MCHW: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return features_MCHW
        channels = features_MCHW.shape[1]
        count, rows_M = self.rows or (len(features_MCHW), None)
        # As torch makes it: one draw an image and channel, 1 / (1 - p) or 0.
        kept_NC11 = features_MCHW.new_empty(count, channels, 1, 1).bernoulli_(1 - self.p).div_(1 - self.p)
        return features_MCHW * (kept_NC11 if rows_M is None else kept_NC11[rows_M])


@contextmanager
def rows_of_a_batch(network: nn.Module, count: int, rows_M: Tensor) -> Iterator[None]:
    """Within it, only `rows_M` of a batch of `count` images pass the network."""
    dropouts = [module for module in network.modules() if isinstance(module, ImageDropout2d)]
    for dropout in dropouts:
        dropout.rows = (count, rows_M)
    try:
        yield
    finally:
        for dropout in dropouts:
            dropout.rows = None


def draws_by_image(network: nn.Module) -> bool:
    """Whether every dropout of the network is an `ImageDropout2d` or draws nothing."""
    unknown = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    dropouts = [module for module in network.modules() if isinstance(module, unknown)]
    return all(isinstance(module, ImageDropout2d) or module.p == 0 for module in dropouts)
