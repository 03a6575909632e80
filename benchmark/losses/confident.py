"""The consistency loss, with only the kept images in the network.

An image below tau adds nothing to SSFL Eq. 4, but takes part in its forward and backward pass: at a share q of kept
images, 1 - q of three quarters of a local step's work. Leaving those images out gives the same loss and gradient (up to
the rounding of sums over fewer terms) where no image's output depends on the others of its batch.
"""

import torch
from torch import Tensor, nn

from benchmark.losses.terms import consistency_loss
from benchmark.models.dropout import draws_by_image, rows_of_a_batch
from benchmark.models.norms import has_batch_statistics

# N images of the batch, M of them that pass the network, C channels, H rows, W columns, D classes

_LEAVES_OUT = "leaves_out_rejected_images"


def leave_out_rejected(network: nn.Module) -> bool:
    """Let `loss_of_kept` pass only kept images through this network. False where all must pass: where a batch norm
    would see other batches, or a dropout draw other masks."""
    allowed = not has_batch_statistics(network) and draws_by_image(network)
    setattr(network, _LEAVES_OUT, allowed)
    return allowed


def pass_all_images(network: nn.Module) -> None:
    """From now on `loss_of_kept` passes every image through this network."""
    setattr(network, _LEAVES_OUT, False)


def loss_of_kept(network: nn.Module, images_NCHW: Tensor, labels_N: Tensor, kept_N: Tensor) -> Tensor:
    """`consistency_loss` of the network's logits of the images; a scalar. Where nothing is kept every parameter
    still has its gradient of 0, and so weight decay and momentum step it as in the dense form. (There a NaN among
    the weights is a NaN in the loss; here only the weights show it.)"""
    if not getattr(network, _LEAVES_OUT, False) or bool(kept_N.all()):
        return consistency_loss(network(images_NCHW), labels_N, kept_N)
    count = len(images_NCHW)
    rows_M = kept_N.nonzero().squeeze(1)
    if not len(rows_M):
        # An entry of each, because the gradient of a whole tensor's sum would be as much work again.
        entries = [weight[(0,) * weight.dim()] for weight in network.parameters() if weight.requires_grad]
        return torch.stack(entries).sum() * 0.0
    with rows_of_a_batch(network, count, rows_M):
        logits_MD = network(images_NCHW[rows_M])
    return consistency_loss(logits_MD, labels_N[rows_M], kept_N[rows_M], num_images=count)
