"""Compute losses and their parts with pure functions of tensors.

Sources: SSFL Eqs. 3 to 6; SemiFL Eqs. 1, 3 and 5 to 7 (mixing after mixup, Zhang et al. 2018); RSCFed Eqs. 2 and 3
(sharpening after MixMatch, Berthelot et al. 2019, Eqs. 3 and 7); UDA (Xie et al. 2020), Eq. 1; FedProx (Li et al.
2020), Eq. 2.

Shapes: N images of a batch, M of these images with computed logits, C channels, H rows, W columns, D classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.models.norms import has_batch_statistics
from benchmark.models.tensors import is_stacked, tensors_of


def supervised_loss(logits_ND: Tensor, labels_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy between the logits and the int64 labels, a scalar (SSFL Eqs. 3, 6; SemiFL Eq. 1).

    `smoothing` is the share of each label that is distributed evenly over all D classes.
    """
    assert len(logits_ND) > 0, "a batch without images has no mean"
    return F.cross_entropy(logits_ND, labels_N, label_smoothing=smoothing)


class PseudoLabels(NamedTuple):
    """The pseudo-label of each image, its confidence, and whether the image is selected."""

    labels_N: Tensor  # int64
    confidence_N: Tensor  # largest softmax probability, in (0, 1]
    kept_N: Tensor  # bool


@torch.no_grad()
def pseudo_labels(logits_ND: Tensor, threshold: float) -> PseudoLabels:
    """Compute argmax, max, and max >= tau of the softmax for each image, without gradients (SSFL Eq. 4, SemiFL Eq. 3).

    `threshold` is tau, a probability. An image exactly at the threshold is selected, so that tau = 0 selects every
    image. Ties between classes go to the lowest class index. Images with NaN logits are never selected, so divergence
    must be detected from the loss or the weights. Raise ConfigError if tau is not a probability, because 95 instead of
    0.95 would select no image without any message.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(f"threshold is {threshold}, but it must be a probability in [0, 1]; choose 0.95, for example")
    confidence_N, labels_N = torch.softmax(logits_ND, dim=-1).max(dim=-1)
    return PseudoLabels(labels_N, confidence_N, confidence_N >= threshold)


def consistency_loss(logits_MD: Tensor, labels_M: Tensor, kept_M: Tensor, num_images: int | None = None) -> Tensor:
    """Return the cross-entropy summed over the selected images and divided by the batch size N, a scalar.

    This is SSFL Eq. 4 for logits of the strong view (released code: train_LocalSGD.py:526-543), and Eq. 5
    (self-training) for logits of the same weak view as the pseudo-labels. The divisor also counts images that were not
    selected, so that few selected images change the weights only slightly.

    `num_images` is N if only the logits of the M selected images were computed; it defaults to M. The loss and its
    gradient are 0 if no image is selected or if M = 0 < N.
    """
    total = logits_MD.shape[0] if num_images is None else num_images
    assert total > 0, "a batch without images has no mean"
    # Multiplying instead of indexing makes the loss NaN for NaN logits even if no image is selected.
    losses_M = F.cross_entropy(logits_MD, labels_M, reduction="none") * kept_M
    return losses_M.sum() / total


def kept_rows(values_ND: Tensor, kept_N: Tensor) -> Tensor:
    """Return the rows of the selected images, for sums over them.

    On a CPU, return only these rows, as in all records. On other devices, return all rows, with zeros instead of the
    rows that are not selected. Selecting rows would synchronise with the device to count them, and a step with shapes
    that depend on values can neither be captured nor be computed for several jobs at once.
    """
    selects = values_ND.is_cpu and not (is_stacked(values_ND) or is_stacked(kept_N))
    return values_ND[kept_N] if selects else values_ND * kept_N[:, None]


def squared_error_loss(student_ND: Tensor, target_ND: Tensor) -> Tensor:
    """Return ||target - student||^2 of two predicted distributions, averaged over the N images (RSCFed Eq. 3).

    The scalar is summed, not averaged, over classes (released code: utils/losses.py:177-190). No gradient flows into
    the target.
    """
    assert student_ND.shape == target_ND.shape and len(student_ND) > 0
    return (student_ND - target_ND.detach()).square().sum() / len(student_ND)


def soft_label_loss(logits_ND: Tensor, target_ND: Tensor) -> Tensor:
    """Return the batch mean of -sum target log p, a scalar (MixMatch Eq. 3). No gradient flows into the target."""
    return F.cross_entropy(logits_ND, target_ND.detach())


def divergence_loss(logits_ND: Tensor, target_ND: Tensor, kept_N: Tensor) -> Tensor:
    """Return KL(target || p) summed over the selected images and divided by N, a scalar (UDA Eq. 1).

    No gradient flows into the target.
    """
    target_ND, log_ND = target_ND.detach(), torch.log_softmax(logits_ND, dim=-1)
    return ((torch.xlogy(target_ND, target_ND) - target_ND * log_ND).sum(dim=-1) * kept_N).sum() / len(logits_ND)


@torch.no_grad()
def sharpen(probs_ND: Tensor, temperature: float) -> Tensor:
    """Compute p_i^(1/T) / sum_j p_j^(1/T) for each row, without gradients because it is a target (RSCFed Eq. 2).

    `temperature` is T > 0. T = 1 changes nothing, T -> 0 leaves only the largest probability, and T > 1 flattens the
    distribution. The value is computed as a softmax of log p / T, so that a small T cannot underflow to 0/0. A
    probability of 0 stays 0.
    """
    return torch.softmax(probs_ND.log() / temperature, dim=-1)


def mixup(images_NCHW: Tensor, other_images_NCHW: Tensor, lam: float | Tensor) -> Tensor:
    """Compute lambda x + (1 - lambda) x' for each pair of floating-point images (SemiFL Eq. 5).

    `lam` is lambda in [0, 1]: one number per batch, or one per image with shape (N, 1, 1, 1). It is not replaced by
    max(lambda, 1 - lambda). 1 returns `images_NCHW` exactly, and 0 returns the other images exactly. Raise ValueError
    if the shapes differ, because broadcasting would mix one image into all others.
    """
    if images_NCHW.shape != other_images_NCHW.shape:
        raise ValueError(f"cannot mix images of {tuple(images_NCHW.shape)} and {tuple(other_images_NCHW.shape)}")
    return torch.lerp(other_images_NCHW, images_NCHW, lam)


def mix_loss(logits_ND: Tensor, labels_N: Tensor, other_labels_N: Tensor, lam: float | Tensor) -> Tensor:
    """Compute lambda CE(y) + (1 - lambda) CE(y') of the mixed images' logits, the mean over the batch (SemiFL Eq. 7).

    Return a scalar. `lam`, in [0, 1], is a number or a scalar of float64.
    """
    share, other_share = lam, 1 - lam
    if isinstance(share, Tensor) and isinstance(other_share, Tensor):  # because two scalars would be added in float64
        share, other_share = share.to(logits_ND), other_share.to(logits_ND)
    return share * supervised_loss(logits_ND, labels_N) + other_share * supervised_loss(logits_ND, other_labels_N)


def one_hot(labels_N: Tensor, D: int) -> Tensor:
    """Return a bool for each image and class that is true if the class is the image's label, (N, D).

    Unlike `torch.nn.functional.one_hot`, it does not read the labels on the CPU, which would synchronise with a GPU.
    """
    return labels_N[:, None] == torch.arange(D, device=labels_N.device)


def proximal_term(network: nn.Module, anchor: nn.Module, mu: float, *, half: bool) -> Tensor:
    """Return mu ||w - anchor||^2, or half of it, a scalar. w contains all parameters, but no running statistics.

    `half=True` uses mu/2 (FedProx, FedSwitch Algorithm 2), and `half=False` uses mu (FedSwitch Algorithm 1). No
    gradient flows into the anchor.
    """
    squares = sum_over_weights(lambda w, a: F.mse_loss(w, a.detach(), reduction="sum"), network, anchor)
    return squares * (mu / 2 if half else mu)


def sum_over_weights(term: Callable[..., Tensor], *networks: nn.Module) -> Tensor:
    """Return the sum of `term`, a scalar function of one tensor per network, over all parameters of the networks.

    On a CPU, the term is computed tensor by tensor, as in all records. On other devices, it is computed once for all
    parameters as one vector, because each tensor would launch separate operations.
    """
    weights = [tensors_of(network).parameters for network in networks]
    if weights[0][0].is_cpu:
        return torch.stack([term(*tensors) for tensors in zip(*weights, strict=True)]).sum()
    return term(*map(_flat, weights))


def _flat(parameters: list[Tensor]) -> Tensor:
    """Concatenate the parameters, each in its memory format, which is equal for all networks of one model."""
    return torch.cat([p.permute(sorted(range(p.dim()), key=lambda d: -p.stride()[d])).flatten() for p in parameters])


# The consistency loss can be computed with only the selected images in the network. An image below tau adds nothing to
# SSFL Eq. 4, but is in its forward and backward pass. If a share q of the images is selected, the rejected ones cost 1
# - q of three quarters of a local step's work. Leaving them out gives the same loss and gradient, up to the rounding of
# sums over fewer terms, if no image's output depends on the other images of its batch.

_LEAVES_OUT = "leaves_out_rejected_images"
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def skip_low_confidence_images(network: nn.Module) -> bool:
    """Let `loss_on_confident` pass only selected images through this network, and return whether this is allowed.

    It is not allowed if a batch norm would see different batches, if a dropout would draw different masks, or if the
    network is a custom one.
    """
    draws = any(isinstance(module, DROPOUTS) and module.p > 0 for module in network.modules())
    own = not type(network).__module__.startswith("benchmark.")  # its calls of torch.nn.functional cannot be inspected
    allowed = not own and not has_batch_statistics(network) and not draws
    setattr(network, _LEAVES_OUT, allowed)
    return allowed


def loss_on_confident(network: nn.Module, images_NCHW: Tensor, labels_N: Tensor, kept_N: Tensor) -> Tensor:
    """Return the `consistency_loss` of the network's logits for the images, a scalar.

    If no image is selected, every parameter still gets a gradient of 0, so that weight decay and momentum change it as
    if all images had passed through the network. In this case NaN weights do not make the loss NaN.
    """
    if not getattr(network, _LEAVES_OUT, False) or bool(kept_N.all()):
        return consistency_loss(network(images_NCHW), labels_N, kept_N)
    rows_M = kept_N.nonzero().squeeze(1)
    if not len(rows_M):
        # One entry per parameter is enough; the gradient of sums over whole tensors would be additional work.
        entries = [weight[(0,) * weight.dim()] for weight in network.parameters() if weight.requires_grad]
        return torch.stack(entries).sum() * 0.0
    logits_MD = network(images_NCHW[rows_M])
    return consistency_loss(logits_MD, labels_N[rows_M], kept_N[rows_M], num_images=len(images_NCHW))
