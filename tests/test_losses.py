"""Losses and their parts at their limits, and what dropout draws from.

Their values are held by whole rounds, written once more, in `tests/methods`.
"""

import torch

from benchmark.losses import consistency_loss, pseudo_labels, sharpen
from benchmark.streams import seed_global


def test_an_image_exactly_at_the_threshold_is_kept() -> None:
    """Two equal logits give .5 exactly in floating point, and the first of two equal classes wins."""
    labels_N, confidence_N, kept_N = pseudo_labels(torch.zeros(1, 2), 0.5)
    assert (labels_N.item(), confidence_N.item(), kept_N.item()) == (0, 0.5, True)


def test_divergence_is_not_hidden_by_the_mask() -> None:
    logits_ND = torch.full((2, 3), float("nan"))
    labels_N, _, kept_N = pseudo_labels(logits_ND, 0.95)
    assert not kept_N.any()
    assert consistency_loss(logits_ND, labels_N, kept_N).isnan()


def test_sharpen_limits() -> None:
    """A tiny T leaves one class, where p^(1/T) itself would be 0/0; and 0 stays 0."""
    probs_ND = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]], dtype=torch.float64)
    assert (probs_ND ** (1 / 1e-4)).sum().item() == 0.0
    assert sharpen(probs_ND, 1e-4).tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert sharpen(probs_ND, 0.5)[1, 2].item() == 0.0
    assert not sharpen(probs_ND.requires_grad_(), 0.5).requires_grad


def test_a_seed_of_the_global_generator_is_what_torch_s_own_seeding_gives() -> None:
    torch.manual_seed(2**62 + 1)
    expected = torch.rand(5)
    seed_global(2**62 + 1)
    assert torch.equal(torch.rand(5), expected)
