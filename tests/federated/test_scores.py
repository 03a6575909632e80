"""Scores, by hand and against scikit-learn on anything; the quality of pseudo-labels, by hand."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score
from torch import Tensor

from benchmark.federated.evaluate import scores
from benchmark.federated.round_metrics import PseudoLabelQuality, summary

# N images, D classes


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Return logits_ND on a coarse grid, so that probabilities tie, and labels_N in which classes may be absent."""
    num_images, num_classes = draw(st.integers(1, 30)), draw(st.integers(2, 6))
    row = st.lists(st.integers(-2, 2), min_size=num_classes, max_size=num_classes)
    logits = draw(st.lists(row, min_size=num_images, max_size=num_images))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=num_images, max_size=num_images))
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)


def one_versus_rest(logits_ND: Tensor, labels_N: Tensor) -> float | None:
    """Return the mean of scikit-learn's two-class AUROCs over the classes that have one."""
    probabilities_ND = logits_ND.double().softmax(dim=1).numpy()
    truths = [(d, labels_N.numpy() == d) for d in range(logits_ND.shape[1])]
    areas = [roc_auc_score(truth, probabilities_ND[:, d]) for d, truth in truths if 0 < truth.sum() < len(truth)]
    return float(np.mean(areas)) if areas else None


@settings(max_examples=30)
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


def job(labels, kept, truth):
    found = PseudoLabelQuality()
    found.add(torch.tensor(labels), torch.tensor(kept), torch.tensor(truth))
    return found.metrics()


def test_divergences_of_two_jobs_by_hand():
    """Four classes. Labels 0, 0, 1, 1: ln 4 - ln 2 = ln 2; of the kept ones, class 0 alone: ln 4; truth of four: 0.
    Labels 0, 1, 2, 3: 0; nothing kept, so that the mean of the kept ones is the first job's; truth of one class: ln 4.
    """
    jobs = [
        job([0, 0, 1, 1], [True, True, False, False], [0, 1, 2, 3]),
        job([0, 1, 2, 3], [False] * 4, [2, 2, 2, 2]),
    ]
    found = summary(jobs, 4)
    assert found["pseudo/kl_uniform"] == pytest.approx(math.log(2) / 2)
    assert found["pseudo/kl_kept"] == pytest.approx(math.log(4))
    assert found["pseudo/kl_true"] == pytest.approx(math.log(4) / 2)
    assert (found["pseudo/kept"], found["pseudo/accuracy"]) == (0.25, 0.5)


def test_where_nothing_is_kept_there_is_no_divergence_of_it():
    found = summary([job([0, 1], [False, False], [0, 1]), {}], 2)
    assert found["pseudo/kept"] == 0.0 and "pseudo/kl_kept" not in found and summary([{}], 2) == {}


def test_candidates_of_images_without_a_selected_pseudo_label_by_hand():
    """Two jobs have four images of known classes that are not selected; the class -1 is unknown. The true class is a
    candidate for three of them, and the pseudo-label for one. Selected images and jobs without candidates do not count.
    """
    labels, kept = torch.tensor([0, 0, 1, 2, 0]), torch.tensor([True, False, False, False, False])
    truth, candidates = torch.tensor([1, 1, 1, 0, -1]), torch.zeros(5, 3, dtype=torch.bool)
    candidates[1, 1] = candidates[2, 1] = candidates[3, 2] = candidates[4, 0] = candidates[4, 2] = True
    first, second, without = PseudoLabelQuality(), PseudoLabelQuality(), PseudoLabelQuality()
    first.add(labels, kept, truth, candidates)
    second.add(torch.tensor([0]), torch.tensor([False]), torch.tensor([2]), torch.ones(1, 3, dtype=torch.bool))
    without.add(labels, kept, truth)
    found = summary([first.metrics(), second.metrics(), without.metrics()], 3)
    assert (found["pseudo/candidates"], found["pseudo/unselected_accuracy"]) == (3 / 4, 1 / 4)
    others = summary([without.metrics()], 3)
    assert not {"pseudo/candidates", "pseudo/unselected_accuracy"} & others.keys()


def test_candidates_of_joined_and_of_selected_pseudo_labels():
    """Steps are joined; without a known image that is not selected there is no share."""
    every_ND, nothing_ND = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)
    first, second, selected = PseudoLabelQuality(), PseudoLabelQuality(), PseudoLabelQuality()
    first.add(torch.tensor([0]), torch.tensor([False]), torch.tensor([1]), every_ND)
    second.add(torch.tensor([0]), torch.tensor([False]), torch.tensor([0]), nothing_ND)
    selected.add(torch.tensor([0]), torch.tensor([True]), torch.tensor([0]), every_ND)
    found = summary([first.joined(second).metrics()], 2)
    assert (found["pseudo/candidates"], found["pseudo/unselected_accuracy"]) == (0.5, 0.5)
    assert "pseudo/candidates" not in summary([selected.metrics()], 2)
