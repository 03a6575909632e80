"""Mixing of two batches, and the loss on the mix.

Source: SemiFL Eq. 5 and Eq. 7, after mixup (Zhang et al. 2018). One lambda a batch, drawn by the caller from
Beta(.75, .75) in the released code, and not replaced by max(lambda, 1 - lambda).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# N images, C channels, H rows, W columns, D classes


def mixup(images_NCHW: Tensor, other_images_NCHW: Tensor, lam: float) -> Tensor:
    """lambda x + (1 - lambda) x' (SemiFL Eq. 5), image by image; floating point, same shape and type.

    lambda = 1 gives `images_NCHW` and 0 the others, both exactly. Raises ValueError unless the shapes agree (one image
    would be mixed into all) and lambda lies in [0, 1].
    """
    if images_NCHW.shape != other_images_NCHW.shape:
        raise ValueError(f"cannot mix images of {tuple(images_NCHW.shape)} and {tuple(other_images_NCHW.shape)}")
    _require_share(lam)
    return torch.lerp(other_images_NCHW, images_NCHW, lam)


def mix_loss(logits_ND: Tensor, labels_N: Tensor, other_labels_N: Tensor, lam: float) -> Tensor:
    """lambda CE(y) + (1 - lambda) CE(y') of the mixed images' logits, mean over the batch (SemiFL Eq. 7); a scalar.

    Raises ValueError unless lambda lies in [0, 1].
    """
    _require_share(lam)
    assert len(logits_ND) > 0, "a batch without images has no mean"
    return lam * F.cross_entropy(logits_ND, labels_N) + (1 - lam) * F.cross_entropy(logits_ND, other_labels_N)


def _require_share(lam: float) -> None:
    if not 0.0 <= lam <= 1.0:
        raise ValueError(f"lambda = {lam} must lie in [0, 1]")
