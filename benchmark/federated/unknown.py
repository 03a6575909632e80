"""Compute how well a network's predictions separate images of known and unknown classes (label setting "open").

An image has a score, and the larger it is, the more the image is taken for one of a known class:
* "max_softmax": the largest softmax probability (Hendrycks and Gimpel, ICLR 2017, arXiv:1610.02136), the default;
* "energy": the logarithm of the sum of the exponentials of the logits, which is the negative free energy at temperature
  1 (Liu et al. NeurIPS 2020, arXiv:2010.03759, Eqs. 4 and 7).

Both metrics have known classes as positives, as in these papers (section 4.1 of the latter, and its released
display_results.py). Scores are computed in float64, so that fewer confident predictions tie.

Shapes: N images, D known classes.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Score = Literal["max_softmax", "energy"]


def score_of(logits_ND: Sequence[Tensor], kind: Score) -> Tensor:
    """Compute score_N from the logits of one model, or of several models that vote.

    For several models, the softmax probabilities or the energies are averaged.
    """
    models_ND = [some_ND.double() for some_ND in logits_ND]
    if kind == "energy":
        return torch.stack([some_ND.logsumexp(dim=1) for some_ND in models_ND]).mean(dim=0)
    return torch.stack([some_ND.softmax(dim=1) for some_ND in models_ND]).mean(dim=0).amax(dim=1)


def separation(score_N: Tensor, known_N: Tensor) -> dict[str, float]:
    """Compute `unknown_auroc` and `unknown_fpr95` of these scores, as fractions.

    `unknown_auroc` is the probability that an image of a known class has a larger score than an image of an unknown
    class, where a tie counts one half. `unknown_fpr95` is the share of images of unknown classes that reach the largest
    threshold that at least 95 % of the images of known classes reach. Both are NaN if a score is NaN. There must be
    images of known and of unknown classes.
    """
    score_N, known_N = score_N.double().cpu(), known_N.cpu()
    if score_N.isnan().any():
        return {"unknown_auroc": math.nan, "unknown_fpr95": math.nan}
    of_known_N, of_unknown_N = score_N[known_N].sort().values, score_N[~known_N].sort().values
    known, unknown = len(of_known_N), len(of_unknown_N)
    below_N, up_to_N = (torch.searchsorted(of_unknown_N, of_known_N, right=right) for right in (False, True))
    halves = int(below_N.sum() + up_to_N.sum())  # two for each pair in order, one for each tie
    accepted = -(-95 * known // 100)  # the smallest whole number that is at least 95 % of the known images
    threshold = of_known_N[known - accepted]
    return {
        "unknown_auroc": halves / (2 * known * unknown),
        "unknown_fpr95": int((of_unknown_N >= threshold).sum()) / unknown,
    }
