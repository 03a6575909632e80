"""Pseudo-labels, and the losses that learn from them on unlabelled images.

Sources: SSFL Eq. 4 (consistency regularisation, from FixMatch) and Eq. 5 (self-training); SemiFL Eq. 3 and Eq. 6;
RSCFed Eq. 3 (mean teacher).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.errors import ConfigError

# N images of the batch, M images whose logits were computed, D classes


class PseudoLabels(NamedTuple):
    """The label a network gives each image, how sure it is, and whether that is sure enough."""

    labels_N: Tensor  # int64
    confidence_N: Tensor  # largest softmax probability, in (0, 1]
    kept_N: Tensor  # bool


@torch.no_grad()
def pseudo_labels(logits_ND: Tensor, threshold: float) -> PseudoLabels:
    """argmax, max, and max >= tau of the softmax (SSFL Eq. 4, SemiFL Eq. 3), outside the gradient.

    `threshold` is tau, a probability; an image exactly at it is kept, and so tau = 0 keeps every image.
    Of equal classes the first wins. Logits that are NaN keep nothing: watch the loss or the weights for divergence.
    Raises ConfigError where tau is not a probability (95 instead of .95 would silently keep nothing).
    """
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(f"threshold={threshold} is not a probability; it must lie in [0, 1], for example 0.95")
    confidence_N, labels_N = torch.softmax(logits_ND, dim=-1).max(dim=-1)
    return PseudoLabels(labels_N, confidence_N, confidence_N >= threshold)


def consistency_loss(logits_MD: Tensor, labels_M: Tensor, kept_M: Tensor, num_images: int | None = None) -> Tensor:
    """Cross-entropy summed over the kept images, divided by all N images of the batch; a scalar.

    SSFL Eq. 4 with the logits of the strong view (released: train_LocalSGD.py:526-543), Eq. 5 (self-training) with
    those of the weak view that made the labels. The divisor counts images that were not kept: few kept images
    pull little.

    `num_images` is N where only some images' logits were computed (those kept: the others add nothing); default, M.
    Nothing kept gives 0 with gradient 0, and no image at all (M = 0 < N) does so too.
    """
    total = logits_MD.shape[0] if num_images is None else num_images
    assert total > 0, "a batch without images has no mean"
    # A product rather than a selection, so that NaN logits come out as a NaN loss even where nothing is kept.
    losses_M = F.cross_entropy(logits_MD, labels_M, reduction="none") * kept_M
    return losses_M.sum() / total


def squared_error_loss(student_ND: Tensor, target_ND: Tensor) -> Tensor:
    """||target - student||^2 of two predicted distributions, mean over the N images (RSCFed Eq. 3); a scalar.

    Summed over classes, not averaged (released: utils/losses.py:177-190). The target takes no gradient.
    """
    assert student_ND.shape == target_ND.shape and len(student_ND) > 0
    return (student_ND - target_ND.detach()).square().sum() / len(student_ND)
