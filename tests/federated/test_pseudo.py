"""The quality of pseudo-labels by hand: what a round says of its jobs."""

import math

import pytest
import torch

from benchmark.federated.ledger import PseudoLabelQuality, summary


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
