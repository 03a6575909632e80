"""Losses and their parts, against SciPy, by hand and at their limits. Whole rounds are in `tests/methods`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax
from torch import nn

from benchmark.errors import ConfigError
from benchmark.losses import consistency_loss, mixup, proximal_term, pseudo_labels, sharpen

LOGITS = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 5)), elements=st.floats(-20, 20, width=32))


def test_an_image_exactly_at_the_threshold_is_kept() -> None:
    """Two equal logits give .5 exactly in floating point, and the first of two equal classes wins."""
    labels_N, confidence_N, kept_N = pseudo_labels(torch.zeros(1, 2), 0.5)
    assert (labels_N.item(), confidence_N.item(), kept_N.item()) == (0, 0.5, True)


def test_a_threshold_that_is_no_probability_is_refused() -> None:
    for threshold in (95.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="is not a probability"):
            pseudo_labels(torch.zeros(1, 2), threshold)


@given(logits=LOGITS, data=st.data())
def test_consistency_loss_is_equation_4_written_out(logits: np.ndarray, data: st.DataObject) -> None:
    """Nothing kept is 0 with a gradient of 0."""
    num_images, num_classes = logits.shape
    labels = data.draw(hnp.arrays(np.int64, num_images, elements=st.integers(0, num_classes - 1)))
    kept = data.draw(hnp.arrays(np.bool_, num_images))
    by_hand = sum(-log_softmax(logits[i])[labels[i]] for i in range(num_images) if kept[i]) / num_images
    logits_ND, labels_N, kept_N = (torch.from_numpy(array) for array in (logits, labels, kept))
    loss = consistency_loss(logits_ND.requires_grad_(), labels_N, kept_N)
    assert loss.item() == pytest.approx(by_hand, abs=1e-12)
    loss.backward()
    assert logits_ND.grad is not None and (kept.any() or not logits_ND.grad.any())
    # An engine may compute the logits of the kept images alone.
    only_kept = consistency_loss(logits_ND[kept_N], labels_N[kept_N], kept_N[kept_N], num_images)
    assert only_kept.item() == pytest.approx(by_hand, abs=1e-12)


def test_divergence_is_not_hidden_by_the_mask() -> None:
    logits_ND = torch.full((2, 3), float("nan"))
    labels_N, _, kept_N = pseudo_labels(logits_ND, 0.95)
    assert not kept_N.any()
    assert consistency_loss(logits_ND, labels_N, kept_N).isnan()


@pytest.mark.parametrize(("half", "factor"), [(True, 1.0), (False, 2.0)])
def test_proximal_term_by_hand(half: bool, factor: float) -> None:
    """Differences (1, 2) and 3: squared norm 14 over all tensors; mu = .1 gives 1.4, halved .7.

    Norms taken tensor by tensor and then squared as a sum would give (sqrt 5 + 3)^2 instead. The gradient is
    2 mu (w - anchor), halved mu (w - anchor), and none at the anchor. Running statistics are not pulled.
    """
    network, anchor = nn.Linear(2, 1), nn.Linear(2, 1)
    for layer, weight, bias in ((network, [[1.0, 2.0]], 5.0), (anchor, [[0.0, 0.0]], 2.0)):
        layer.weight.data.copy_(torch.tensor(weight))
        layer.bias.data.fill_(bias)
    term = proximal_term(network, anchor, 0.1, half=half)
    term.backward()
    assert term.item() == pytest.approx(0.7 * factor) and anchor.weight.grad is None
    assert network.weight.grad is not None
    assert network.weight.grad.tolist()[0] == pytest.approx([0.1 * factor, 0.2 * factor])
    norm = nn.BatchNorm1d(3)
    norm.get_buffer("running_mean").fill_(5.0)
    assert proximal_term(norm, nn.BatchNorm1d(3), 1.0, half=half).item() == 0.0


def test_sharpen_limits() -> None:
    """A tiny T leaves one class, where p^(1/T) itself would be 0/0; and 0 stays 0."""
    probs_ND = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]], dtype=torch.float64)
    assert (probs_ND ** (1 / 1e-4)).sum().item() == 0.0
    assert sharpen(probs_ND, 1e-4).tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert sharpen(probs_ND, 0.5)[1, 2].item() == 0.0
    assert not sharpen(probs_ND.requires_grad_(), 0.5).requires_grad


@given(pixels=hnp.arrays(np.float32, (2, 3, 1, 2, 2), elements=st.floats(0, 1, width=32)), lam=st.floats(0, 1))
def test_mixup_properties(pixels: np.ndarray, lam: float) -> None:
    """Both ends exactly, an image mixed with itself exactly, and symmetric. One image is not mixed into all."""
    images_NCHW, others_NCHW = torch.from_numpy(pixels)
    assert torch.equal(mixup(images_NCHW, others_NCHW, 1.0), images_NCHW)
    assert torch.equal(mixup(images_NCHW, others_NCHW, 0.0), others_NCHW)
    assert torch.equal(mixup(images_NCHW, images_NCHW, lam), images_NCHW)
    torch.testing.assert_close(mixup(images_NCHW, others_NCHW, lam), mixup(others_NCHW, images_NCHW, 1 - lam))
    with pytest.raises(ValueError, match="cannot mix"):
        mixup(images_NCHW, others_NCHW[:1], lam)
