"""AUROC and FPR95 of unknown test images, by hand and against scikit-learn, and what an evaluation records.

Shapes: N images, D known classes.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score, roc_curve

from benchmark.federated.environment import Part, prepare, weights_of
from benchmark.federated.evaluate import Evaluator, logits_of, scores
from benchmark.federated.round_metrics import PseudoLabelQuality, summary
from benchmark.federated.unknown import Score, score_of, separation
from benchmark.methods.registry import METHODS
from tests.methods.watch import tiny_with, watched


def separated(known: list[float], unknown: list[float]) -> tuple[float, float]:
    score_N = torch.tensor([*known, *unknown])
    found = separation(score_N, torch.arange(len(score_N)) < len(known))
    return found["unknown_auroc"], found["unknown_fpr95"]


@given(
    known=st.lists(st.integers(0, 8), min_size=1, max_size=60),
    unknown=st.lists(st.integers(0, 8), min_size=1, max_size=60),
)
def test_both_are_scikit_learns(known, unknown):
    """Integers tie often. FPR95 is the rate at the first point of the curve with a true positive rate of 95 %."""
    truth = [1] * len(known) + [0] * len(unknown)
    values = [*map(float, known), *map(float, unknown)]
    false_positives, true_positives, _ = roc_curve(truth, values, drop_intermediate=False)
    first = int(np.argmax(true_positives >= 0.95 - 1e-12))
    expected = (roc_auc_score(truth, values), false_positives[first])
    assert separated(known, unknown) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("known", "unknown", "auroc", "fpr95"),
    [
        ([3, 4], [1, 2], 1.0, 0.0),  # all known images are above
        ([1, 2], [3, 4], 0.0, 1.0),
        ([1, 1], [1, 1, 1], 0.5, 1.0),  # all tie, and all are accepted
        # Pairs in order: 2 of the second known image, 0 of the first, which ties with one: (2 + 1/2) / 4. The threshold
        # must accept both known images, and also accepts the image that ties with it, and the one above.
        ([1, 3], [1, 2], 2.5 / 4, 1.0),
        # 19 of 20 known images suffice: the threshold is 2, above the unknown image of 1, and accepts the one of 2.
        ([0] + [2] * 19, [1, 2], (1 + 0.5) * 19 / 40, 0.5),
        # 18 of 19 are less than 95 %, so that the known image of 0 must be accepted, and with it all images.
        ([0] + [2] * 18, [1, 2], (1 + 0.5) * 18 / 38, 1.0),
    ],
)
def test_by_hand(known, unknown, auroc, fpr95):
    assert separated(known, unknown) == pytest.approx((auroc, fpr95))


def test_no_score_without_a_number():
    assert all(math.isnan(value) for value in separated([1.0, math.nan], [0.0]))


def test_scores_by_scipy():
    """Two models that vote: the mean of probabilities, and of energies."""
    generator = torch.Generator().manual_seed(0)
    models_ND = [5 * torch.randn(6, 4, generator=generator) for _ in range(2)]
    plain = [logits_ND.double().numpy() for logits_ND in models_ND]
    for several in (slice(1), slice(2)):
        mean_ND = np.mean([softmax(some_ND, axis=1) for some_ND in plain[several]], axis=0)
        energy_N = np.mean([logsumexp(some_ND, axis=1) for some_ND in plain[several]], axis=0)
        np.testing.assert_allclose(score_of(models_ND[several], "max_softmax"), mean_ND.max(axis=1), rtol=1e-12)
        np.testing.assert_allclose(score_of(models_ND[several], "energy"), energy_N, rtol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("fedavg_fixmatch", "max_softmax"), ("fedavg_energy", "energy")])
def test_an_evaluation_has_the_scores_of_known_images_and_the_separation(name, kind: Score):
    """The digits 6 to 9 are unknown. The energy baseline has its own score; held-out labels have no unknown image."""
    environment = prepare(tiny_with(METHODS[name](), "open"))
    voters = [weights_of(environment.network())]
    data = environment.data
    found = Evaluator(environment).measure(voters)
    every_N = torch.arange(len(data.test_labels_N))
    part = Part(images_NCHW=data.test_images_NCHW, positions_N=every_N, labels_N=None, truth_N=None)
    logits_ND = logits_of(environment.network(), environment, part)
    known_N = data.test_labels_N < 6
    expected = scores(logits_ND[known_N], data.test_labels_N[known_N])
    separated_ = separation(score_of([logits_ND], kind), known_N)
    for metric, value in {**expected, **separated_}.items():
        assert found[f"test/{metric}"] == pytest.approx(value, abs=1e-12)
    other: Score = "energy" if kind == "max_softmax" else "max_softmax"
    assert separation(score_of([logits_ND], other), known_N) != separated_


def test_other_settings_and_held_out_labels_have_no_unknown_images():
    module, _ = watched(tiny_with(METHODS["fedavg_fixmatch"](batch_size=8, server_batch_size=8)))
    assert not any("unknown" in name for name in module.metrics)


def test_the_share_of_unknown_images_among_selected_pseudo_labels_by_hand():
    """Two jobs; -1 is an unknown class. Selected: 3 images of the first job, of which one is unknown and one correct,
    and one known image of the second. True labels of known images: 0, 1 and 2 once each, and 0 twice."""
    jobs = []
    for labels, kept, truth in (
        ([0, 1, 1, 2], [True, True, True, False], [0, -1, 1, 2]),
        ([0, 0], [True, False], [0, 0]),
        ([1], [False], [-1]),
    ):
        quality = PseudoLabelQuality()
        quality.add(torch.tensor(labels), torch.tensor(kept), torch.tensor(truth))
        jobs.append(quality.metrics())
    found = summary(jobs, 3)
    assert (found["pseudo/unknown"], found["pseudo/accuracy"]) == (1 / 4, 3 / 4)
    assert found["pseudo/kl_true"] == pytest.approx((0 + math.log(3)) / 2)  # the third job has no known image
    assert "pseudo/unknown" not in summary(jobs[1:2], 3)
