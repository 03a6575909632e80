"""Losses and their parts: pure functions of tensors, with equation numbers.

Sources: SSFL Eqs. 3 to 6; SemiFL Eqs. 1, 3 and 5 to 7 (mixing after mixup, Zhang et al. 2018); RSCFed Eqs. 2 and 3
(sharpening after MixMatch, Berthelot et al. 2019, Eqs. 3 and 7); UDA (Xie et al. 2020), Eq. 1; FedProx (Li et al.
2020), Eq. 2.

Legend: N images of the batch, M of them whose logits were computed, C channels, H rows, W columns, D classes.
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
    """Mean cross-entropy of the batch with the labels; a scalar. Labels are int64 (SSFL Eqs. 3 and 6, SemiFL Eq. 1).
    `smoothing`: the share of every label that is spread evenly over all D classes."""
    assert len(logits_ND) > 0, "a batch without images has no mean"
    return F.cross_entropy(logits_ND, labels_N, label_smoothing=smoothing)


class PseudoLabels(NamedTuple):
    """A network's label for each image, and whether it is confident enough."""

    labels_N: Tensor  # int64
    confidence_N: Tensor  # largest softmax probability, in (0, 1]
    kept_N: Tensor  # bool


@torch.no_grad()
def pseudo_labels(logits_ND: Tensor, threshold: float) -> PseudoLabels:
    """argmax, max, and max >= tau of the softmax, outside the gradient. SSFL Eq. 4, SemiFL Eq. 3. `threshold` is
    tau, a probability; an image exactly at it is kept, and so tau = 0 keeps every image. Of equal classes the first
    wins. Logits that are NaN keep nothing: watch the loss or the weights for divergence. Raises ConfigError where
    tau is not a probability (95 instead of .95 would keep nothing without a message)."""
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(f"threshold={threshold} is not a probability; it must lie in [0, 1], for example 0.95")
    confidence_N, labels_N = torch.softmax(logits_ND, dim=-1).max(dim=-1)
    return PseudoLabels(labels_N, confidence_N, confidence_N >= threshold)


def consistency_loss(logits_MD: Tensor, labels_M: Tensor, kept_M: Tensor, num_images: int | None = None) -> Tensor:
    """Cross-entropy of the kept images, divided by all N of the batch; a scalar.

    SSFL Eq. 4 with the logits of the strong view (released: train_LocalSGD.py:526-543), Eq. 5 (self-training) with
    those of the weak view that made the labels. The divisor counts images that were not kept: few kept images change
    the weights little.

    `num_images` is N where only some images' logits were computed (those kept: the others add nothing); default, M.
    Nothing kept gives 0 with gradient 0, and so does no image at all (M = 0 < N).
    """
    total = logits_MD.shape[0] if num_images is None else num_images
    assert total > 0, "a batch without images has no mean"
    # A product rather than a selection, so that NaN logits come out as a NaN loss even where nothing is kept.
    losses_M = F.cross_entropy(logits_MD, labels_M, reduction="none") * kept_M
    return losses_M.sum() / total


def kept_rows(values_ND: Tensor, kept_N: Tensor) -> Tensor:
    """Return the rows of the kept images, for sums over them.

    On a CPU only these rows, as in all records; elsewhere all rows, with zeros in place of the others: a choice of rows
    would wait for the device to count them, and a step whose shapes depend on values cannot be recorded, nor taken for
    several jobs at once.
    """
    selects = values_ND.is_cpu and not (is_stacked(values_ND) or is_stacked(kept_N))
    return values_ND[kept_N] if selects else values_ND * kept_N[:, None]


def squared_error_loss(student_ND: Tensor, target_ND: Tensor) -> Tensor:
    """||target - student||^2 of two predicted distributions, mean over the N images (RSCFed Eq. 3); a scalar.

    Summed over classes, not averaged (released: utils/losses.py:177-190). The target takes no gradient.
    """
    assert student_ND.shape == target_ND.shape and len(student_ND) > 0
    return (student_ND - target_ND.detach()).square().sum() / len(student_ND)


def soft_label_loss(logits_ND: Tensor, target_ND: Tensor) -> Tensor:
    """Mean over the batch of -sum target log p (MixMatch Eq. 3); a scalar. The target takes no gradient."""
    return F.cross_entropy(logits_ND, target_ND.detach())


def divergence_loss(logits_ND: Tensor, target_ND: Tensor, kept_N: Tensor) -> Tensor:
    """KL(target || p) summed over the kept images, over all N (UDA Eq. 1); a scalar. The target takes no gradient."""
    target_ND, log_ND = target_ND.detach(), torch.log_softmax(logits_ND, dim=-1)
    return ((torch.xlogy(target_ND, target_ND) - target_ND * log_ND).sum(dim=-1) * kept_N).sum() / len(logits_ND)


@torch.no_grad()
def sharpen(probs_ND: Tensor, temperature: float) -> Tensor:
    """p_i^(1/T) / sum_j p_j^(1/T), row by row (RSCFed Eq. 2), outside the gradient: it is a target.

    T = 1 changes nothing, T -> 0 leaves the largest probability alone, T > 1 flattens. `temperature` is above 0.
    Computed as a softmax of log p / T, where a small T cannot underflow to 0/0; a probability of 0 stays 0.
    """
    return torch.softmax(probs_ND.log() / temperature, dim=-1)


def mixup(images_NCHW: Tensor, other_images_NCHW: Tensor, lam: float | Tensor) -> Tensor:
    """lambda x + (1 - lambda) x' (SemiFL Eq. 5), image by image. Floating point, same shape and type. lambda, in [0,
    1], is one number a batch, or one an image (N, 1, 1, 1); it is not replaced by max(lambda, 1 - lambda). 1 gives
    `images_NCHW` and 0 the others, both exactly. Raises ValueError unless the shapes agree: one image would be mixed
    into all."""
    if images_NCHW.shape != other_images_NCHW.shape:
        raise ValueError(f"cannot mix images of {tuple(images_NCHW.shape)} and {tuple(other_images_NCHW.shape)}")
    return torch.lerp(other_images_NCHW, images_NCHW, lam)


def mix_loss(logits_ND: Tensor, labels_N: Tensor, other_labels_N: Tensor, lam: float | Tensor) -> Tensor:
    """Compute lambda CE(y) + (1 - lambda) CE(y') of the mixed images' logits, the mean over the batch (SemiFL Eq. 7).

    Return a scalar. `lam`, in [0, 1], is a number or a scalar of float64.
    """
    share, other_share = lam, 1 - lam
    if isinstance(share, Tensor) and isinstance(other_share, Tensor):  # else two scalars would sum in float64
        share, other_share = share.to(logits_ND), other_share.to(logits_ND)
    return share * supervised_loss(logits_ND, labels_N) + other_share * supervised_loss(logits_ND, other_labels_N)


def one_hot(labels_N: Tensor, D: int) -> Tensor:
    """Return a bool for each image and class: whether it is the image's label, (N, D).

    Unlike `torch.nn.functional.one_hot` it does not read the labels on the CPU, where a GPU would be waited for.
    """
    return labels_N[:, None] == torch.arange(D, device=labels_N.device)


def proximal_term(network: nn.Module, anchor: nn.Module, mu: float, *, half: bool) -> Tensor:
    """mu ||w - anchor||^2, or half of it; a scalar. Over all parameters as one vector, without running statistics.
    `half=True` is mu/2 (FedProx, FedSwitch Algorithm 2), `half=False` is mu (FedSwitch Algorithm 1). The anchor
    takes no gradient."""
    squares = sum_over_weights(lambda w, a: F.mse_loss(w, a.detach(), reduction="sum"), network, anchor)
    return squares * (mu / 2 if half else mu)


def sum_over_weights(term: Callable[..., Tensor], *networks: nn.Module) -> Tensor:
    """The sum over all parameters of these networks of a term, a scalar of tensors. On a CPU tensor by tensor, as in
    all records; elsewhere of all as one vector, since a term of each tensor would launch operations for each."""
    weights = [tensors_of(network).parameters for network in networks]
    if weights[0][0].is_cpu:
        return torch.stack([term(*tensors) for tensors in zip(*weights, strict=True)]).sum()
    return term(*map(_flat, weights))


def _flat(parameters: list[Tensor]) -> Tensor:
    """All as one vector, each in its order in memory, which is the same for networks of one model."""
    return torch.cat([p.permute(sorted(range(p.dim()), key=lambda d: -p.stride()[d])).flatten() for p in parameters])


# The consistency loss with only the kept images in the network. An image below tau adds nothing to SSFL Eq. 4, but
# takes part in its forward and backward pass: at a share q of kept images, 1 - q of three quarters of a local step's
# work. Leaving it out gives the same loss and gradient (up to the rounding of sums over fewer terms) where no image's
# output depends on the others of its batch.

_LEAVES_OUT = "leaves_out_rejected_images"
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def skip_low_confidence_images(network: nn.Module) -> bool:
    """Let `loss_of_kept` pass only kept images through this network. False where all must pass: where a batch norm
    would see other batches, or a dropout draw other masks."""
    draws = any(isinstance(module, DROPOUTS) and module.p > 0 for module in network.modules())
    own = not type(network).__module__.startswith("benchmark.")  # what it calls of torch.nn.functional is not seen
    allowed = not own and not has_batch_statistics(network) and not draws
    setattr(network, _LEAVES_OUT, allowed)
    return allowed


def loss_on_confident(network: nn.Module, images_NCHW: Tensor, labels_N: Tensor, kept_N: Tensor) -> Tensor:
    """`consistency_loss` of the network's logits of the images; a scalar. Where nothing is kept every parameter
    still has its gradient of 0, and so weight decay and momentum step it as in the dense form. (There a NaN among
    the weights is a NaN in the loss; here only the weights show it.)"""
    if not getattr(network, _LEAVES_OUT, False) or bool(kept_N.all()):
        return consistency_loss(network(images_NCHW), labels_N, kept_N)
    rows_M = kept_N.nonzero().squeeze(1)
    if not len(rows_M):
        # An entry of each, because the gradient of a whole tensor's sum would be as much work again.
        entries = [weight[(0,) * weight.dim()] for weight in network.parameters() if weight.requires_grad]
        return torch.stack(entries).sum() * 0.0
    logits_MD = network(images_NCHW[rows_M])
    return consistency_loss(logits_MD, labels_N[rows_M], kept_N[rows_M], num_images=len(images_NCHW))
