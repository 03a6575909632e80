"""Scores: by hand, and against scikit-learn on anything, ties and absent classes included."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score
from torch import Tensor

from benchmark.federated.evaluate import scores

# N images, D classes


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """logits_ND on a coarse grid, so that probabilities tie, and labels_N of which classes may be absent."""
    num_images, num_classes = draw(st.integers(1, 30)), draw(st.integers(2, 6))
    row = st.lists(st.integers(-2, 2), min_size=num_classes, max_size=num_classes)
    logits = draw(st.lists(row, min_size=num_images, max_size=num_images))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=num_images, max_size=num_images))
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)


def one_versus_rest(logits_ND: Tensor, labels_N: Tensor) -> float | None:
    """Mean of scikit-learn's two-class AUROCs over the classes that have one."""
    probabilities_ND = logits_ND.double().softmax(dim=1).numpy()
    truths = [(d, labels_N.numpy() == d) for d in range(logits_ND.shape[1])]
    areas = [roc_auc_score(truth, probabilities_ND[:, d]) for d, truth in truths if 0 < truth.sum() < len(truth)]
    return float(np.mean(areas)) if areas else None


@given(predictions())
def test_scores_are_scikit_learns(given_: tuple[Tensor, Tensor]) -> None:
    logits_ND, labels_N = given_
    labels, predicted = labels_N.numpy(), logits_ND.numpy().argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn finds a single label odd
        expected = {
            "accuracy": accuracy_score(labels, predicted),
            "precision": precision_score(labels, predicted, average="macro", zero_division=0),
            "recall": recall_score(labels, predicted, average="macro", zero_division=0),
        }
    area, found = one_versus_rest(logits_ND, labels_N), scores(logits_ND, labels_N)
    assert found.get("auroc") == (None if area is None else pytest.approx(area, abs=1e-12))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_confident_predictions_do_not_tie() -> None:
    """Logits 20 and 40 apart are both 1.0 in float32; the larger belongs to class 0, whose AUROC is 1, not .5.

    That of a network that says NaN is NaN.
    """
    logits_ND = torch.tensor([[40.0, 0.0], [20.0, 0.0], [30.0, 0.0], [25.0, 0.0]])
    assert logits_ND.softmax(dim=1)[:, 0].eq(1).all()
    assert scores(logits_ND, torch.tensor([0, 1, 0, 1]))["auroc"] == 1.0
    logits_ND[0, 0] = torch.nan
    assert np.isnan(scores(logits_ND, torch.tensor([0, 1, 0, 1]))["auroc"])
