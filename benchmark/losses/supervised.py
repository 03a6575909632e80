"""The loss on labelled images.

Sources: SSFL Eq. 3 (the server) and Eq. 6 (clients with oracle labels); SemiFL Eq. 1.
"""

import torch.nn.functional as F
from torch import Tensor

# N images, D classes


def supervised_loss(logits_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Mean over the batch of the cross-entropy with the true labels (int64); a scalar."""
    assert len(logits_ND) > 0, "a batch without images has no mean"
    return F.cross_entropy(logits_ND, labels_N)
