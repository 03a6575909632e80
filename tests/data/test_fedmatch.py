"""FedMatch's ten types: the printed table, the realised R by hand, sizes, refusals.

Shapes: K clients, d classes.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.data.partition import FedMatchSkew
from benchmark.data.split import mean_total_variation

# Three rows of `ten_types_of_class_imbalanced_dist` (FedMatch, data/generator.py), as printed there.
PRINTED = {
    0: [0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15],
    4: [0.03, 0.03, 0.03, 0.15, 0.50, 0.15, 0.03, 0.03, 0.03, 0.02],
    9: [0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15, 0.50],
}


def test_clients_hold_the_printed_proportions():
    """55,000 images, 100 clients: each class's ten columns sum to 1, so a client has 550 images in its proportions;
    550 x 0.15 = 82.5 and 550 x 0.03 = 16.5 are rounded down or up."""
    counts_Kd = FedMatchSkew().shares(np.full(10, 5500), 100, 0)
    assert (counts_Kd.sum(axis=1) == 550).all()
    for kind, row in PRINTED.items():
        for client in range(kind, 100, 10):
            assert abs(counts_Kd[client] - 550 * np.array(row)).max() <= 0.5 + 1e-9


def test_realised_R_by_hand():
    """Types t and t + s are at distance, in hundredths, half the sum of |p_j - p_(j-s)|:
    s = 1: (35 + 35 + 12 + 0 + 0 + 1 + 1 + 0 + 0 + 12) / 2 = 48
    s = 2: (47 + 0 + 47 + 12 + 0 + 1 + 0 + 1 + 0 + 12) / 2 = 60
    s = 3: (47 + 12 + 12 + 47 + 12 + 1 + 0 + 0 + 1 + 12) / 2 = 72
    s = 4: (47 + 12 + 0 + 12 + 47 + 13 + 0 + 0 + 0 + 13) / 2 = 72
    s = 5: (48 + 12 + 0 + 0 + 12 + 48 + 12 + 0 + 0 + 12) / 2 = 72
    Of the 45 pairs of types ten each have s = 1 to 4 and five s = 5, each of 10 x 10 pairs of clients; the pairs of one
    type are at 0: (10 (0.48 + 0.60 + 0.72 + 0.72) + 5 x 0.72) x 100 / 4950 = 0.5818. 50 images a hundredth: exact.
    """
    counts_Kd = FedMatchSkew().shares(np.full(10, 50_000), 100, 0)
    assert mean_total_variation(counts_Kd) == pytest.approx((10 * 2.52 + 5 * 0.72) * 100 / 4950, abs=1e-12)
    assert mean_total_variation(counts_Kd) == pytest.approx(0.58, abs=0.005)


@settings(max_examples=60, deadline=None)
@given(
    n_d=st.lists(st.integers(0, 300), min_size=10, max_size=10).map(np.array),
    K=st.integers(1, 40),
)
def test_every_image_exactly_once_in_proportion(n_d, K):
    """Against the proportions in floating point: every entry is its target rounded down or up."""
    counts_Kd = FedMatchSkew().shares(n_d, K, 0)
    np.testing.assert_array_equal(counts_Kd.sum(axis=0), n_d)
    p_Kd = np.stack([np.roll(PRINTED[0], client % 10) for client in range(K)])
    assert (abs(counts_Kd - n_d * p_Kd / p_Kd.sum(axis=0)) < 1 + 1e-9).all()
