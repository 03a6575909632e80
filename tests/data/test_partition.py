"""Counts of each rule: rounding, sizes, proportions, Eq. 9 of SSFL, refusals. That each image comes once: test_split.

Shapes: K clients, d classes; n_d images of each class.
"""

import hashlib
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmark.data.partition import RULES, ClassSkew, Dirichlet, FedMatchSkew, Iid, Partition, Shards, main_classes
from benchmark.data.tables import round_table
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream

CLASS_SIZES = st.lists(st.integers(20, 400), min_size=2, max_size=12).map(np.array)


def drawn(rule: str, n_d: np.ndarray, K: int, alpha: float, seed: int) -> np.ndarray:
    """Return the first (K, d) draw, whatever a client's smallest number of images."""
    return RULES[rule](n_d, K, alpha, partial(numpy_stream, seed, "partition", "dirichlet", "redraw", 0))


def test_every_rule_gives_what_it_gave():
    """Counts decide every image's holder: records hang on these digests. The first two are of the code before the
    other rules came, the third of the rounding in its first, plain form."""
    few_d = np.array([120, 80, 300, 55, 210])
    many_d = np.random.default_rng(5).integers(200, 900, 47)
    ten_d = np.arange(10) * 7 + 60
    recorded: list[tuple[Partition, np.ndarray, int, str]] = [
        (Dirichlet(alpha=0.1, min_size=3), few_d, 6, "8ba26f3330fb8f4d"),
        (Dirichlet(alpha=5.0, min_size=3), few_d, 4, "7331e54b52ae6452"),
        (ClassSkew(R=0.4), many_d, 300, "d8c34a101be47900"),
        (ClassSkew(R=0.7, sizes="equal"), many_d, 30, "01260cb943e6510f"),
        (FedMatchSkew(), ten_d, 25, "115711376ed0120e"),
        (Shards(), ten_d, 12, "928903c18bed9c7b"),
        (Dirichlet(alpha=0.3, min_size=1, rule="limited"), few_d, 6, "03ac681c7da01c1c"),
        (Dirichlet(alpha=0.3, min_size=1, rule="fedswitch"), few_d, 6, "1ac14cd8b4cfff04"),
        (Dirichlet(alpha=0.3, min_size=1, rule="fedswitch_at_once"), few_d, 6, "91d07241626bd49f"),
        (Dirichlet(alpha=0.3, min_size=1, rule="sage"), few_d, 6, "fb066d89e0aa2269"),
    ]
    for rule, n_d, K, digest in recorded:
        counts_Kd = rule.shares(n_d, K, 0)
        assert hashlib.sha256(counts_Kd.astype("<i8").tobytes()).hexdigest()[:16] == digest, rule


@settings(max_examples=25, deadline=None)
@given(n_d=CLASS_SIZES, half=st.integers(1, 12), R=st.floats(0, 1), alpha=st.floats(0.02, 500), seed=st.integers(0, 9))
def test_equal_clients_are_equal_up_to_one_image(n_d, half, R, alpha, seed):
    rules = (Iid(), ClassSkew(R=R, sizes="equal"))
    for rule in rules:
        for K in (2 * half, 2 * half - 1):
            assert np.ptp(rule.shares(n_d, K, 0).sum(axis=1)) <= 1
    for name in ("fedswitch", "fedswitch_at_once", "sage"):
        assert np.ptp(drawn(name, n_d, 2 * half, alpha, seed).sum(axis=1)) <= 1
    skew, iid = ClassSkew(R=0, sizes="equal").shares(n_d, half, 0), Iid().shares(n_d, half, 0)
    np.testing.assert_array_equal(skew, iid)


@given(n_d=CLASS_SIZES, K=st.integers(1, 30), percent=st.integers(0, 100))
def test_paper_sizes_are_equation_9_rounded_down_or_up(n_d, K, percent):
    """Eq. 9 once more, client by client in exact fractions: [i in M] n_i R/m_i + n_i (1-R) sum_M q_j/m_j."""
    R = Fraction(percent, 100)
    N = int(n_d.sum())
    mains_Kd = main_classes(n_d, K)
    counts_Kd = ClassSkew(R=percent / 100).shares(n_d, K, 0)
    for client, mains_d in enumerate(mains_Kd):
        q = sum((Fraction(int(n_d[j]), N * int(mains_Kd[:, j].sum())) for j in np.flatnonzero(mains_d)), Fraction(0))
        for i, n in enumerate(n_d.tolist()):
            exact = (R * n / int(mains_Kd[:, i].sum()) if mains_d[i] else 0) + (1 - R) * n * q
            assert abs(counts_Kd[client, i] - exact) < 1
        assert abs(int(counts_Kd[client].sum()) - q * N) < 1


@given(K=st.integers(2, 4), d=st.integers(2, 4), data=st.data())
def test_rounding_keeps_columns_and_rounds_entries_and_rows(K, d, data):
    """Random tables in quarters whose columns are whole."""
    row = st.lists(st.integers(0, 7), min_size=d, max_size=d)
    quarters = [data.draw(row) for _ in range(K - 1)]
    quarters.append([-sum(column) % 4 for column in zip(*quarters, strict=True)])
    exact_Kd = np.array(quarters, dtype=object) * Fraction(1, 4)
    rounded_Kd = round_table(exact_Kd)
    assert (rounded_Kd.sum(axis=0) == exact_Kd.sum(axis=0)).all()
    assert (abs(rounded_Kd - exact_Kd) < 1).all()
    assert (abs(rounded_Kd.sum(axis=1) - exact_Kd.sum(axis=1)) < 1).all()


def test_dirichlet_mean_and_variance():
    """A share of Dirichlet(alpha) over K has mean 1/K and variance (1/K)(1-1/K)/(K alpha + 1): 400 classes of 1,000."""
    K = 5
    alpha = 0.7
    shares_Kd = Dirichlet(alpha=alpha).shares(np.full(400, 1000), K, 3) / 1000
    assert shares_Kd.mean() == pytest.approx(1 / K)
    assert shares_Kd.var() == pytest.approx((1 / K) * (1 - 1 / K) / (K * alpha + 1), rel=0.1)


def test_dirichlet_redraws_until_every_client_has_enough():
    rule = Dirichlet(alpha=0.3, min_size=30)
    assert rule.shares(np.full(4, 100), 6, 0).sum(axis=1).min() >= 30
    with pytest.raises(ConfigError, match="alpha=0.3 with K=6 .* min_size=30 in each of 1 draws"):
        Dirichlet(alpha=0.3, min_size=30, max_redraws=0).shares(np.full(4, 100), 6, 0)


@given(n_d=CLASS_SIZES, K=st.integers(1, 25), alpha=st.floats(0.005, 500), seed=st.integers(0, 9))
def test_limited_gives_a_full_client_nothing_more(n_d, K, alpha, seed):
    """The cap, class by class: whoever held N/K images or more before a class has none of it."""
    counts_Kd = drawn("limited", n_d, K, alpha, seed)
    before_Kd = counts_Kd.cumsum(axis=1) - counts_Kd
    assert counts_Kd[before_Kd * K >= n_d.sum()].sum() == 0


def test_fedswitch_proportions_are_those_of_the_dirichlet_distribution():
    """A client's share of class c has mean p_c and variance p_c (1 - p_c) / (alpha + 1).

    alpha = 2, p = (1/2, 1/4, 1/4). Client 0 of 4 wants at most N/4 of a class, and there are N/4 or more, so none
    runs out. 500 seeds: the mean's standard error is below 0.014, the variance's about 4 % (the share's fourth
    moment is near a uniform's).
    """
    n_d, share_d = np.array([2000, 1000, 1000]), np.array([0.5, 0.25, 0.25])
    shares_Sd = np.stack([drawn("fedswitch", n_d, 4, 2.0, seed)[0] for seed in range(500)]) / 1000
    assert shares_Sd.mean(axis=0) == pytest.approx(share_d, abs=0.05)
    assert shares_Sd.var(axis=0) == pytest.approx(share_d * (1 - share_d) / 3, rel=0.15)


@given(n_d=st.lists(st.integers(0, 300), min_size=10, max_size=10).map(np.array), K=st.integers(1, 40))
def test_fedmatch_rounds_the_printed_proportions_down_or_up(n_d, K):
    """The row of type 0 of `ten_types_of_class_imbalanced_dist` (data/generator.py); type t is t places further."""
    printed_d = [0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15]
    p_Kd = np.stack([np.roll(printed_d, client % 10) for client in range(K)])
    counts_Kd = FedMatchSkew().shares(n_d, K, 0)
    assert (abs(counts_Kd - n_d * p_Kd / p_Kd.sum(axis=0)) < 1 + 1e-9).all()


def test_more_shards_for_the_largest_classes_by_hand():
    """K = 3, two each: 6 shards of 4 classes, the larger two classes get 2 shards. n = (10, 30, 21, 7): shards of 10;
    15, 15; 11, 10; 7. Nobody holds both shards of a class, so the columns are these numbers and zeros."""
    counts_Kd = Shards().shares(np.array([10, 30, 21, 7]), 3, 1)
    assert [sorted(column[column > 0].tolist()) for column in counts_Kd.T] == [[10], [15, 15], [10, 11], [7]]
    assert ((counts_Kd > 0).sum(axis=1) == 2).all()


@given(
    n_d=st.lists(st.integers(60, 300), min_size=2, max_size=12).map(np.array),
    K=st.integers(1, 30),
    wanted=st.integers(1, 12),
    distinct=st.booleans(),
    seed=st.integers(0, 5),
)
def test_shards_give_every_image_once_and_as_many_classes_as_asked(n_d, K, wanted, distinct, seed):
    d = len(n_d)
    assume(K * wanted >= d and (wanted <= d or not distinct) and -(-K * wanted // d) <= 60)
    counts_Kd = Shards(classes_per_client=wanted, distinct=distinct).shares(n_d, K, seed)
    np.testing.assert_array_equal(counts_Kd.sum(axis=0), n_d)
    held_K = (counts_Kd > 0).sum(axis=1)
    assert (held_K == wanted).all() if distinct else (held_K <= wanted).all() and (held_K >= 1).all()
    if distinct:
        for column in counts_Kd.T:  # one shard each: equal up to one image
            assert column.max() - column[column > 0].min() <= 1


@pytest.mark.parametrize(
    ("rule", "n_d", "K", "words"),
    [
        (Shards(classes_per_client=4), [50] * 3, 5, "classes_per_client=4, .* at most 3, or distinct=False"),
        (
            Shards(classes_per_client=2),
            [50] * 10,
            4,
            "8 shards, fewer than the 10 .* classes_per_client=3",
        ),
        (Shards(classes_per_client=2), [50, 50, 4, 50], 10, "cuts class 2 into 5 shards, .* 4 images"),
        (Dirichlet(alpha=0.1, rule="sage"), [100] * 10, 5, "K=5 is odd; choose K=6"),
        (FedMatchSkew(), [100] * 9, 5, "FedMatchSkew needs 10 classes, .* 9"),
        (Dirichlet(alpha=1, min_size=10), [9] * 2, 2, "min_size can be at most 9"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(rule, n_d, K, words):
    with pytest.raises(ConfigError, match=words):
        rule.shares(np.array(n_d), K, 0)
