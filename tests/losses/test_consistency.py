"""Pseudo-labels and the losses on them, against SciPy and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax, softmax

from benchmark.errors import ConfigError
from benchmark.losses import consistency_loss, pseudo_labels, squared_error_loss

# N images, D classes

LOGITS = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 5)), elements=st.floats(-20, 20, width=32))


def test_an_image_exactly_at_the_threshold_is_kept() -> None:
    """Two equal logits give .5 exactly in floating point, and the first of two equal classes wins."""
    labels_N, confidence_N, kept_N = pseudo_labels(torch.zeros(1, 2), 0.5)
    assert (labels_N.item(), confidence_N.item(), kept_N.item()) == (0, 0.5, True)


@given(logits=LOGITS, threshold=st.floats(0, 1))
def test_pseudo_labels_are_scipys(logits: np.ndarray, threshold: float) -> None:
    probs_ND = softmax(logits, axis=1)
    actual = pseudo_labels(torch.from_numpy(logits), threshold)
    np.testing.assert_allclose(actual.confidence_N, probs_ND.max(axis=1), rtol=1e-12)
    # the label may be any of the classes that tie to rounding
    np.testing.assert_allclose(np.take_along_axis(probs_ND, actual.labels_N.numpy()[:, None], 1)[:, 0], probs_ND.max(1))
    clear_N = np.abs(probs_ND.max(axis=1) - threshold) > 1e-9
    assert (actual.kept_N.numpy() == (probs_ND.max(axis=1) >= threshold))[clear_N].all()


@pytest.mark.parametrize("threshold", [95.0, -0.1, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="is not a probability"):
        pseudo_labels(torch.zeros(1, 2), threshold)


@given(logits=LOGITS, data=st.data())
def test_consistency_loss_is_equation_4_written_out(logits: np.ndarray, data: st.DataObject) -> None:
    num_images, num_classes = logits.shape
    labels = data.draw(hnp.arrays(np.int64, num_images, elements=st.integers(0, num_classes - 1)))
    kept = data.draw(hnp.arrays(np.bool_, num_images))
    by_hand = sum(-log_softmax(logits[i])[labels[i]] for i in range(num_images) if kept[i]) / num_images
    logits_ND, labels_N, kept_N = (torch.from_numpy(array) for array in (logits, labels, kept))
    assert consistency_loss(logits_ND, labels_N, kept_N).item() == pytest.approx(by_hand, abs=1e-12)
    # An engine may compute the logits of the kept images alone.
    only_kept = consistency_loss(logits_ND[kept_N], labels_N[kept_N], kept_N[kept_N], num_images)
    assert only_kept.item() == pytest.approx(by_hand, abs=1e-12)


@given(logits=LOGITS)
def test_nothing_kept_is_exactly_zero(logits: np.ndarray) -> None:
    logits_ND = torch.from_numpy(logits).requires_grad_()
    nothing_N = torch.zeros(len(logits), dtype=torch.bool)
    loss = consistency_loss(logits_ND, nothing_N.long(), nothing_N)
    loss.backward()
    assert loss.item() == 0.0
    assert logits_ND.grad is not None and not logits_ND.grad.any()


def test_divergence_is_not_hidden_by_the_mask() -> None:
    logits_ND = torch.full((2, 3), float("nan"))
    labels_N, _, kept_N = pseudo_labels(logits_ND, 0.95)
    assert not kept_N.any()
    assert consistency_loss(logits_ND, labels_N, kept_N).isnan()


def test_squared_error_by_hand() -> None:
    """(.5, .5) against (1, 0): .25 + .25 = .5; equal rows: 0; mean of the two .25. By class it would be .125."""
    student_ND = torch.tensor([[0.5, 0.5], [0.2, 0.8]], requires_grad=True)
    target_ND = torch.tensor([[1.0, 0.0], [0.2, 0.8]], requires_grad=True)
    loss = squared_error_loss(student_ND, target_ND)
    loss.backward()
    assert loss.item() == pytest.approx(0.25)
    # 2 (student - target) / N, and none for the target
    assert student_ND.grad is not None and student_ND.grad.tolist() == [[-0.5, 0.5], [0.0, 0.0]]
    assert target_ND.grad is None
