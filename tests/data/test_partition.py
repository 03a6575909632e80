"""Counts of each rule: conservation, rounding, main classes, and Eq. 9 and 10 of SSFL by hand.

Shapes: K clients, d classes; n_d images of each class.
"""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.data.partition import ClassSkew, Dirichlet, Iid, main_classes
from benchmark.data.tables import round_table
from benchmark.errors import ConfigError

CLASS_SIZES = st.lists(st.integers(20, 400), min_size=2, max_size=12).map(np.array)


@settings(max_examples=60, deadline=None)
@given(n_d=CLASS_SIZES, K=st.integers(1, 40), R=st.floats(0, 1))
def test_equal_sizes_are_equal_up_to_one_image(n_d, K, R):
    for rule in (Iid(), ClassSkew(R=R, sizes="equal")):
        sizes_K = rule.shares(n_d, K, 0).sum(axis=1)
        assert sizes_K.max() - sizes_K.min() <= 1


@settings(max_examples=60, deadline=None)
@given(n_d=CLASS_SIZES, K=st.integers(1, 30), percent=st.integers(0, 100))
def test_paper_sizes_are_equation_9_rounded_down_or_up(n_d, K, percent):
    """Eq. 9 once more, client by client in exact fractions: [i in M] n_i R/m_i + n_i (1-R) sum_M q_j/m_j."""
    R, N = Fraction(percent, 100), int(n_d.sum())
    mains_Kd = main_classes(n_d, K)
    counts_Kd = ClassSkew(R=percent / 100).shares(n_d, K, 0)
    for client, mains_d in enumerate(mains_Kd):
        q = sum((Fraction(int(n_d[j]), N * int(mains_Kd[:, j].sum())) for j in np.flatnonzero(mains_d)), Fraction(0))
        for i, n in enumerate(n_d.tolist()):
            exact = (R * n / int(mains_Kd[:, i].sum()) if mains_d[i] else 0) + (1 - R) * n * q
            assert abs(counts_Kd[client, i] - exact) < 1
        assert abs(int(counts_Kd[client].sum()) - q * N) < 1


def test_class_skew_on_cifar10_by_hand():
    """4,900 images a class left, R = 0.4, K = d = 10: main 4900 (0.4 + 0.6/10) = 2254, others 4900 0.6/10 = 294."""
    counts_Kd = ClassSkew(R=0.4).shares(np.full(10, 4900), 10, 0)
    np.testing.assert_array_equal(counts_Kd, np.full((10, 10), 294) + np.eye(10, dtype=int) * (2254 - 294))


@settings(max_examples=40, deadline=None)
@given(n_d=CLASS_SIZES, K=st.integers(1, 30))
def test_R_0_equal_is_iid(n_d, K):
    skew, iid = ClassSkew(R=0, sizes="equal").shares(n_d, K, 0), Iid().shares(n_d, K, 0)
    np.testing.assert_array_equal(skew, iid)


@settings(max_examples=80, deadline=None)
@given(K=st.integers(2, 4), d=st.integers(2, 4), data=st.data())
def test_rounding_keeps_columns_and_rounds_entries_and_rows(K, d, data):
    """Random tables in quarters whose columns are whole."""
    quarters = [[data.draw(st.integers(0, 7)) for _ in range(d)] for _ in range(K - 1)]
    quarters.append([-sum(column) % 4 for column in zip(*quarters, strict=True)])
    exact = [[Fraction(x, 4) for x in row] for row in quarters]
    rounded_Kd = round_table(np.array(exact, dtype=object))
    assert rounded_Kd.sum(axis=0).tolist() == [int(sum(column)) for column in zip(*exact, strict=True)]
    for rounded, row in zip(rounded_Kd.tolist(), exact, strict=True):
        assert all(abs(whole - x) < 1 for whole, x in zip(rounded, row, strict=True))
        assert abs(sum(rounded) - sum(row)) < 1


def test_the_same_table_as_ever():
    """Counts decide every image's holder: their hash is that of the first, plain form of the rounding, in fractions."""
    n_d = np.random.default_rng(5).integers(200, 900, 47)
    counts_Kd = ClassSkew(R=0.4).shares(n_d, 300, 0)
    assert hashlib.sha256(counts_Kd.astype("<i8").tobytes()).hexdigest()[:16] == "d8c34a101be47900"


def test_dirichlet_mean_and_variance():
    """A share of Dirichlet(alpha) over K has mean 1/K and variance (1/K)(1-1/K)/(K alpha + 1): 400 classes of 1,000."""
    K, alpha = 5, 0.7
    shares_Kd = Dirichlet(alpha=alpha).shares(np.full(400, 1000), K, 3) / 1000
    assert shares_Kd.mean() == pytest.approx(1 / K)
    assert shares_Kd.var() == pytest.approx((1 / K) * (1 - 1 / K) / (K * alpha + 1), rel=0.1)


def test_dirichlet_redraws_until_every_client_has_enough():
    rule = Dirichlet(alpha=0.3, min_size=30)
    assert rule.shares(np.full(4, 100), 6, 0).sum(axis=1).min() >= 30
    with pytest.raises(ConfigError, match="alpha=0.3 with K=6 .* min_size=30 in each of 1 draws"):
        Dirichlet(alpha=0.3, min_size=30, max_redraws=0).shares(np.full(4, 100), 6, 0)
