"""Shards: SemiFL's K = 2 by hand, distinct classes, equal shards, refusals.

Shapes: K clients, d classes; n_d images of each class.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmark.data.partition import Shards
from benchmark.errors import ConfigError


def test_semifls_setting_by_hand():
    """CIFAR-10 less 4,000 labels, 100 clients, 2 shards each: 200 shards, 20 a class of 4,600/20 = 230 images. Every
    client has 230 of each of two classes, every class is held by 20 clients."""
    counts_Kd = Shards().shares(np.full(10, 4600), 100, 0)
    assert np.unique(counts_Kd).tolist() == [0, 230]
    assert ((counts_Kd > 0).sum(axis=1) == 2).all()
    assert ((counts_Kd > 0).sum(axis=0) == 20).all()


def test_more_shards_for_the_largest_classes_by_hand():
    """K = 3, two each: 6 shards of 4 classes, the larger two classes get 2 shards. n = (10, 30, 21, 7): shards of 10;
    15, 15; 11, 10; 7. Nobody holds both shards of a class, so the columns are these numbers and zeros."""
    counts_Kd = Shards().shares(np.array([10, 30, 21, 7]), 3, 1)
    assert [sorted(column[column > 0].tolist()) for column in counts_Kd.T] == [[10], [15, 15], [10, 11], [7]]
    assert ((counts_Kd > 0).sum(axis=1) == 2).all()


@settings(max_examples=150, deadline=None)
@given(
    n_d=st.lists(st.integers(60, 300), min_size=2, max_size=12).map(np.array),
    K=st.integers(1, 30),
    wanted=st.integers(1, 12),
    distinct=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_image_exactly_once_and_as_many_classes_as_asked(n_d, K, wanted, distinct, seed):
    d = len(n_d)
    assume(K * wanted >= d and (wanted <= d or not distinct) and -(-K * wanted // d) <= 60)
    counts_Kd = Shards(classes_per_client=wanted, distinct=distinct).shares(n_d, K, seed)
    np.testing.assert_array_equal(counts_Kd.sum(axis=0), n_d)
    held_K = (counts_Kd > 0).sum(axis=1)
    assert (held_K == wanted).all() if distinct else (held_K <= wanted).all()
    assert (held_K >= 1).all()
    if distinct:
        for column in counts_Kd.T:  # one shard each: equal up to one image
            assert column.max() - column[column > 0].min() <= 1


@pytest.mark.parametrize(
    ("rule", "n_d", "K", "words"),
    [
        (Shards(classes_per_client=4), [50] * 3, 5, "4 distinct classes of 3: take at most 3, or distinct=False"),
        (Shards(classes_per_client=2), [50] * 10, 4, "8 shards, fewer than the 10 classes: take classes_per_client=3"),
        (Shards(classes_per_client=2), [50, 50, 4, 50], 10, "cuts class 2 into 5 shards, it has 4 images left"),
    ],
)
def test_what_cannot_be_cut(rule, n_d, K, words):
    with pytest.raises(ConfigError, match=words):
        rule.shares(np.array(n_d), K, 0)
