"""Scores of logits against labels: accuracy, macro AUROC, macro precision, macro recall.

Source: RSCFed, Tables 1 to 5; released utils/metrics.py:14-37 (scikit-learn: one class against the rest, on softmax).
Pure functions of tensors on any one device; the tests hold each of them to scikit-learn.

Departures. 1. scikit-learn refuses an AUROC where a class has no image; here that class is left out of the mean.
2. The softmax is taken in float64: in float32 confident predictions all become 1, ties that the logits do not have.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# N images, D classes, P images of one class


def scores(logits_ND: Tensor, labels_N: Tensor) -> dict[str, float]:
    """`accuracy`, `auroc`, `precision` and `recall` as fractions; no `auroc` where no class has one."""
    precision, recall = precision_and_recall(logits_ND, labels_N)
    found = {"accuracy": accuracy(logits_ND, labels_N), "precision": precision, "recall": recall}
    area = auroc(logits_ND, labels_N)
    return found if area is None else {**found, "auroc": area}


def accuracy(logits_ND: Tensor, labels_N: Tensor) -> float:
    """Share of images whose largest logit is their label's; of equal logits, the first class is predicted."""
    return float((logits_ND.argmax(dim=1) == labels_N).double().mean())


def auroc(logits_ND: Tensor, labels_N: Tensor) -> float | None:
    """Macro one-versus-rest AUROC of the softmax probabilities; None where no class has one, NaN for NaN logits.

    The AUROC of class d is the probability that an image of d gets a larger p_d than an image of another class, a tie
    counting one half: the Mann-Whitney statistic of d's mid-ranks. A class without images has no AUROC, nor has one
    that all images belong to: these are left out of the mean.
    """
    probabilities_DN = logits_ND.detach().cpu().double().softmax(dim=1).T.contiguous().numpy()
    labels = labels_N.cpu().numpy()
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        return None
    if np.isnan(probabilities_DN).any():
        return math.nan
    order = np.argsort(labels, kind="stable")
    images_of_class = np.split(order, np.cumsum(counts)[:-1])
    areas = [_area(probabilities_DN[d], at_P) for d, at_P in zip(classes, images_of_class, strict=True)]
    return float(np.mean(areas))


def precision_and_recall(logits_ND: Tensor, labels_N: Tensor) -> tuple[float, float]:
    """Macro precision and macro recall of the predictions, each class counting the same.

    A class that was never predicted has precision 0, one without images recall 0 (scikit-learn's zero_division=0).
    A class with neither image nor prediction is left out of both means (scikit-learn's labels=None).
    """
    predicted_N, num_classes = logits_ND.argmax(dim=1).cpu(), logits_ND.shape[1]
    labels_N = labels_N.cpu()
    of_label_D, of_prediction_D, hits_D = (
        torch.bincount(found, minlength=num_classes).double()
        for found in (labels_N, predicted_N, labels_N[predicted_N == labels_N])
    )
    seen_D = of_label_D + of_prediction_D > 0
    precision_D, recall_D = hits_D / of_prediction_D.clamp(min=1), hits_D / of_label_D.clamp(min=1)
    return float(precision_D[seen_D].mean()), float(recall_D[seen_D].mean())


def _area(values_N: NDArray[np.float64], at_P: NDArray[np.int64]) -> float:
    """AUROC of one class: `values_N` are its probabilities, `at_P` its images.

    Only its own images are ranked, by search in the sorted values: fewer than all, and NumPy sorts values several
    times faster than it finds an order. In ascending order the searches stay near each other in memory.
    """
    ascending_N, own_P = np.sort(values_N), np.sort(values_N[at_P])
    below_P = np.searchsorted(ascending_N, own_P, side="left")
    not_above_P = np.searchsorted(ascending_N, own_P, side="right")
    positives, negatives = len(own_P), len(values_N) - len(own_P)
    rank_sum = float((below_P + not_above_P + 1).sum()) / 2  # mid-ranks, counted from 1
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
