"""Distance-reweighted aggregation, by hand on three clients with two weights each.

The models lie on a line: t x (0.6, 0.8) with t = 0, 10, 30, so that one norm of a difference is |t - t'| and the sum of
the two tensors' norms 1.4 |t - t'|. Clients: A (t = 0, N = 100, labelled), B (t = 10, N = 50), C (t = 30, N = 50).
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from benchmark.methods import rscfed
from benchmark.methods.mean_teacher import Member
from benchmark.methods.rscfed import RSCFed, norm_of_all, reweighted, sum_of_norms

LN2 = math.log(2)
A, B, C = Member(size=100, labelled=True), Member(size=50, labelled=False), Member(size=50, labelled=False)


def model(t):
    return {"one.weight": torch.tensor([0.6 * t]), "two.weight": torch.tensor([[0.8 * t]])}


MODELS = [model(0), model(10), model(30)]


def check(found, expected):
    """Weights in these proportions, and the model that they give."""
    theta, weights = found
    share = [value / sum(expected) for value in expected]
    assert weights == pytest.approx(share, rel=1e-6)
    t = 10 * share[1] + 30 * share[2]
    assert theta["one.weight"].tolist() == pytest.approx([0.6 * t], rel=1e-5)
    assert theta["two.weight"].tolist()[0] == pytest.approx([0.8 * t], rel=1e-5)


# Eq. 5's frequencies put theta_avg at t; beta |t_i - t| / N_i is a whole number of ln 2, so that exp is a power of 2.
# paper: 1/2, 1/4, 1/4 -> t = 10, distances 10, 0, 20; / N = .1, 0, .4; beta 10 ln 2: 1/2, 1, 1/16
# released_code, times 2: 200, 50, 50 -> t = 20/3, distances 20/3, 10/3, 70/3; beta 15 ln 2: 1/2, 1/2, 1/128; then 400
# released_command: 100, 50, 50 -> t = 10, as in the paper; then 200.  by_size: the same without.
BY_HAND = {
    "paper": (10 * LN2, [0.5 / 2, 0.25, 0.25 / 16]),
    "released_code": (15 * LN2, [400 / 2, 50 / 2, 50 / 128]),
    "released_command": (10 * LN2, [200 / 2, 50, 50 / 16]),
    "by_size": (10 * LN2, [100 / 2, 50, 50 / 16]),
}


@pytest.mark.parametrize("rule", BY_HAND)
@pytest.mark.parametrize("distance, stretch", [("paper", 1.0), ("released_code", 1.4)])
def test_three_clients(rule, distance, stretch):
    """The sum of norms is 1.4 times the norm: beta / 1.4 gives the same powers of 2."""
    beta, expected = BY_HAND[rule]
    times: dict[str, Any] = {"labelled_times": 2.0} if rule.startswith("released") else {}
    method = RSCFed(labelled_weight=rule, beta=beta / stretch, distance=distance, **times)
    check(method.consensus(MODELS, [A, B, C]), expected)


def test_the_share_of_labelled_clients():
    """beta = 0 and a share of .2: A weighs .2, B and C .4 each; two labelled clients share by size: 100 and 300."""
    method = RSCFed(labelled_share=0.2, beta=0.0)
    check(method.consensus(MODELS, [A, B, C]), [0.2, 0.4, 0.4])
    check(method.consensus(MODELS, [A, replace(A, size=300), C]), [0.05, 0.15, 0.8])


@pytest.mark.parametrize("labelled", [True, False])
def test_one_kind_of_client_is_weighted_by_size(labelled):
    members = [replace(member, labelled=labelled) for member in (A, B, C)]
    check(RSCFed(beta=0.0).consensus(MODELS, members), [100, 50, 50])


def test_the_released_weight_of_the_labelled_client():
    """Released numbers (x 6 twice, N equal, no distance): 36 of 40, the .9 of the code's subsets of five."""
    members = [replace(A, size=10), *[replace(B, size=10)] * 4]
    models = [model(0), *[model(10)] * 4]
    _, weights = RSCFed(labelled_weight="released_code", beta=0.0).consensus(models, members)
    assert weights[0] == pytest.approx(36 / 40)


def test_the_beta_rules():
    """Both subsets by hand; only the released rule has two betas.

    A, B, C with beta = 10 ln 2: as above. B and C with N = 50, 100: t = 70/3, distances 40/3 and 20/3, / N = 4/15 and
    1/15; beta = 7.5 ln 2: 2^-2 and 2^-0.5, of 50 and 100.
    """
    C100 = replace(C, size=100)
    unlabelled_alone = [50 / 4, 100 * 2**-0.5]
    released = RSCFed(beta=7.5 * LN2, beta_rule="released_code", beta_labelled=10 * LN2)
    paper = RSCFed(beta=7.5 * LN2)
    check(released.consensus(MODELS, [A, B, C]), BY_HAND["paper"][1])
    for method in (released, paper):
        _, weights = method.consensus(MODELS[1:], [B, C100])
        assert weights == pytest.approx([value / sum(unlabelled_alone) for value in unlabelled_alone], rel=1e-6)
    # paper, A B C with 7.5 ln 2: 2^-.75, 1, 2^-3
    check(paper.consensus(MODELS, [A, B, C]), [0.5 * 2**-0.75, 0.25, 0.25 / 8])


def test_statistics_count_for_the_released_distance_alone():
    """A running mean 2 apart adds 2 to the sum of norms, nothing to the norm of parameters; a counter adds nothing."""
    extra = [
        {"norm.running_mean": torch.tensor([value]), "norm.num_batches_tracked": torch.tensor(7)}
        for value in (1.0, 3.0)
    ]
    left, right = ({**model(t), **more} for t, more in zip((0, 10), extra, strict=True))
    assert norm_of_all(left, right) == pytest.approx(10.0)
    assert sum_of_norms(left, right) == pytest.approx(16.0)


def test_weights_where_exp_is_zero():
    """beta d / N = 1000, 1000.02 and 1200: each exp is 0 in float64; their proportions 1, e^-.02, e^-200 are not."""
    assert math.exp(-1000) == 0.0
    found = reweighted([1.0, 1.0, 1.0], [5.0, 5.0001, 6.0], [50, 50, 50], beta=1e4)
    e = math.exp(-0.02)
    assert found == pytest.approx([1 / (1 + e), e / (1 + e), math.exp(-200) / (1 + e)], rel=1e-9)
    theta, _ = RSCFed(beta=1e6).consensus(MODELS, [A, B, C])
    assert torch.isfinite(theta["one.weight"]).all() and theta["one.weight"].item() == pytest.approx(6.0)


def test_without_beta_no_distance_is_taken(monkeypatch):
    """Table 2, "Basic + SSO"."""
    monkeypatch.setattr(rscfed, "norm_of_all", lambda left, right: pytest.fail("a distance was taken"))
    check(RSCFed(beta=0.0).consensus(MODELS, [A, B, C]), [0.5, 0.25, 0.25])


def test_a_model_that_diverged_is_not_hidden():
    theta, _ = RSCFed(beta=1.0).consensus([model(0), model(math.nan)], [A, B])
    assert theta["one.weight"].isnan().all()


clients = st.lists(
    st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 100.0), st.integers(1, 10_000)), min_size=1, max_size=6
)


@given(clients, st.floats(0.0, 1e5))
def test_weights_are_a_softmax(members, beta):
    """Sum 1 and finite for any numbers; the same as SciPy's softmax of ln f - beta d / N; nearer is never less."""
    frequencies, distances, sizes = (list(column) for column in zip(*members, strict=True))
    weights = reweighted(frequencies, distances, sizes, beta)
    logs = [math.log(f) - beta * d / n for f, d, n in members]
    assert sum(weights) == pytest.approx(1.0)
    assert weights == pytest.approx(list(softmax(logs)), rel=1e-9, abs=1e-300)
    nearer = reweighted(frequencies, [distances[0] / 2, *distances[1:]], sizes, beta)
    assert nearer[0] >= weights[0] - 1e-12
