"""Supervised and proximal loss, sharpening and mixing, by hand and in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.losses import mix_loss, mixup, proximal_term, sharpen, supervised_loss

# N images, D classes

LOGITS = hnp.arrays(np.float64, (4, 3), elements=st.floats(-10, 10, width=32))
LABELS = hnp.arrays(np.int64, 4, elements=st.integers(0, 2))
SHARES = st.floats(0, 1)


@given(logits=LOGITS, labels=LABELS)
def test_supervised_loss_is_scipys(logits: np.ndarray, labels: np.ndarray) -> None:
    by_hand = -log_softmax(logits, axis=1)[np.arange(4), labels].mean()
    actual = supervised_loss(torch.from_numpy(logits), torch.from_numpy(labels))
    assert actual.item() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize(("half", "factor"), [(True, 1.0), (False, 2.0)])
def test_proximal_term_by_hand(half: bool, factor: float) -> None:
    """Differences (1, 2) and 3: squared norm 14 over all tensors; mu = .1 gives 1.4, halved .7.

    Norms taken tensor by tensor and then squared as a sum would give (sqrt 5 + 3)^2 instead.
    The gradient is 2 mu (w - anchor), halved mu (w - anchor), and none at the anchor.
    """
    network, anchor = nn.Linear(2, 1), nn.Linear(2, 1)
    for layer, weight, bias in ((network, [[1.0, 2.0]], 5.0), (anchor, [[0.0, 0.0]], 2.0)):
        layer.weight.data.copy_(torch.tensor(weight))
        layer.bias.data.fill_(bias)
    term = proximal_term(network, anchor, 0.1, half=half)
    term.backward()
    assert term.item() == pytest.approx(0.7 * factor)
    assert network.weight.grad is not None
    assert network.weight.grad.tolist()[0] == pytest.approx([0.1 * factor, 0.2 * factor])
    assert anchor.weight.grad is None
    assert proximal_term(network, network, 7.0, half=half).item() == 0.0


def test_running_statistics_are_not_pulled() -> None:
    network, anchor = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert network.running_mean is not None
    network.running_mean.fill_(5.0)
    assert proximal_term(network, anchor, 1.0, half=False).item() == 0.0


@given(logits=LOGITS, temperature=st.floats(0.1, 5))
def test_sharpen_is_equation_2_written_out(logits: np.ndarray, temperature: float) -> None:
    probs_ND = softmax(logits, axis=1)
    powers_ND = probs_ND ** (1 / temperature)
    expected_ND = powers_ND / powers_ND.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sharpen(torch.from_numpy(probs_ND), temperature), expected_ND, rtol=1e-9, atol=1e-300)


def test_sharpen_limits() -> None:
    """T = 1 is the identity; a tiny T leaves one class, where p^(1/T) itself would be 0/0; and 0 stays 0."""
    probs_ND = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(sharpen(probs_ND, 1.0), probs_ND)
    assert (probs_ND ** (1 / 1e-4)).sum().item() == 0.0
    assert sharpen(probs_ND, 1e-4).tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert sharpen(probs_ND, 0.5)[1, 2].item() == 0.0
    assert not sharpen(probs_ND.requires_grad_(), 0.5).requires_grad


@given(pixels=hnp.arrays(np.float32, (2, 3, 1, 2, 2), elements=st.floats(0, 1, width=32)), lam=SHARES)
def test_mixup_properties(pixels: np.ndarray, lam: float) -> None:
    """Both ends exactly, an image mixed with itself exactly, never outside the two, and symmetric."""
    images_NCHW, others_NCHW = torch.from_numpy(pixels)
    assert torch.equal(mixup(images_NCHW, others_NCHW, 1.0), images_NCHW)
    assert torch.equal(mixup(images_NCHW, others_NCHW, 0.0), others_NCHW)
    assert torch.equal(mixup(images_NCHW, images_NCHW, lam), images_NCHW)
    mixed_NCHW = mixup(images_NCHW, others_NCHW, lam)
    assert (mixed_NCHW <= torch.maximum(images_NCHW, others_NCHW) + 1e-6).all()
    assert (mixed_NCHW >= torch.minimum(images_NCHW, others_NCHW) - 1e-6).all()
    torch.testing.assert_close(mixed_NCHW, mixup(others_NCHW, images_NCHW, 1 - lam))


def test_mixup_refuses_what_it_would_broadcast() -> None:
    with pytest.raises(ValueError, match="cannot mix"):
        mixup(torch.zeros(4, 1, 2, 2), torch.zeros(1, 1, 2, 2), 0.5)


@given(logits=LOGITS, labels=LABELS, others=LABELS, lam=SHARES)
def test_mix_loss_is_the_cross_entropy_with_the_mixed_label(
    logits: np.ndarray, labels: np.ndarray, others: np.ndarray, lam: float
) -> None:
    """Cross-entropy is linear in the label distribution, so Eq. 7 equals that with the mixed one-hot labels."""
    mixed_ND = lam * np.eye(3)[labels] + (1 - lam) * np.eye(3)[others]
    by_hand = -(mixed_ND * log_softmax(logits, axis=1)).sum(axis=1).mean()
    labels_N, others_N = torch.from_numpy(labels), torch.from_numpy(others)
    actual = mix_loss(torch.from_numpy(logits), labels_N, others_N, lam)
    assert actual.item() == pytest.approx(by_hand, abs=1e-12)
