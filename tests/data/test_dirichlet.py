"""The Dirichlet rules: plain, RSCFed's and SemiFL's limit, FedSwitch's equal clients.

Shapes: K clients, d classes; n_d images of each class.
"""

import hashlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.data.partition import RULES, Dirichlet
from benchmark.data.split import mean_total_variation
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream


def drawn(rule: str, n_d: np.ndarray, K: int, alpha: float, seed: int) -> np.ndarray:
    """(K, d) the first draw, whatever a client's least number of images."""
    return RULES[rule](n_d, K, alpha, partial(numpy_stream, seed, "partition", "dirichlet", "redraw", 0))


CLASS_SIZES = st.lists(st.integers(0, 200), min_size=2, max_size=12).map(np.array).filter(lambda n_d: n_d.sum() >= 30)


def test_the_rule_of_old_gives_what_it_gave():
    """Recorded from the code before the other rules came: every Dirichlet run so far hangs on these."""
    n_d = np.array([120, 80, 300, 55, 210])
    recorded = {
        (0, 0.1, 6): "8ba26f3330fb8f4d", (0, 0.8, 10): "477d3a77464c75c7", (0, 5.0, 4): "7331e54b52ae6452",
        (1, 0.1, 6): "c85c6355b7e63bd4", (1, 0.8, 10): "95f17824dec1da30", (1, 5.0, 4): "57f6bb01180ba130",
        (2, 0.1, 6): "86294ca054e66a9e", (2, 0.8, 10): "c408e631baf8892e", (2, 5.0, 4): "f8514d6130727247",
    }  # fmt: skip
    for (seed, alpha, K), digest in recorded.items():
        counts_Kd = Dirichlet(alpha=alpha, min_size=3).shares(n_d, K, seed)
        assert hashlib.sha256(counts_Kd.astype("<i8").tobytes()).hexdigest()[:16] == digest
    few_Kd = Dirichlet(alpha=0.5, min_size=3, rule="plain").shares(np.array([20, 30, 25]), 3, 0)
    assert few_Kd.tolist() == [[1, 10, 24], [4, 1, 0], [15, 19, 1]]


@settings(max_examples=100, deadline=None)
@given(n_d=CLASS_SIZES, K=st.integers(1, 25), alpha=st.floats(0.005, 500), seed=st.integers(0, 9))
def test_limited_gives_a_full_client_nothing_more(n_d, K, alpha, seed):
    """The cap, class by class: whoever held N/K images or more before a class has none of it."""
    counts_Kd = drawn("limited", n_d, K, alpha, seed)
    before_Kd = counts_Kd.cumsum(axis=1) - counts_Kd
    full_Kd = before_Kd * K >= n_d.sum()
    assert counts_Kd[full_Kd].sum() == 0


@settings(max_examples=100, deadline=None)
@given(n_d=CLASS_SIZES, K=st.integers(1, 25), alpha=st.floats(0.001, 500), seed=st.integers(0, 9))
def test_fedswitch_clients_are_equal_up_to_one_image(n_d, K, alpha, seed):
    for name in ("fedswitch", "fedswitch_at_once"):
        sizes_K = drawn(name, n_d, K, alpha, seed).sum(axis=1)
        assert sizes_K.max() - sizes_K.min() <= 1


def test_fedswitch_proportions_are_those_of_the_dirichlet_distribution():
    """A client's share of class c has mean p_c and variance p_c (1 - p_c) / (alpha + 1).

    alpha = 2, p = (1/2, 1/4, 1/4). Client 0 of 4 wants at most N/4 of a class, and there are N/4 or more, so none
    runs out. 2,000 seeds: the mean's standard error is below 0.007, the variance's about 2 % (the share's fourth
    moment is near a uniform's).
    """
    n_d = np.array([2000, 1000, 1000])
    shares_Sd = np.stack([drawn("fedswitch", n_d, 4, 2.0, seed)[0] for seed in range(2000)]) / 1000
    share_d = np.array([0.5, 0.25, 0.25])
    assert shares_Sd.mean(axis=0) == pytest.approx(share_d, abs=0.025)
    assert shares_Sd.var(axis=0) == pytest.approx(share_d * (1 - share_d) / 3, rel=0.1)


@settings(max_examples=100, deadline=None)
@given(
    n_d=st.lists(st.integers(20, 200), min_size=2, max_size=12).map(np.array),
    half=st.integers(1, 12),
    alpha=st.floats(0.02, 100),
    seed=st.integers(0, 9),
)
def test_sage_gives_every_image_once_and_all_clients_as_many(n_d, half, alpha, seed):
    counts_Kd = drawn("sage", n_d, 2 * half, alpha, seed)
    assert counts_Kd.shape == (2 * half, len(n_d)) and counts_Kd.min() >= 0
    np.testing.assert_array_equal(counts_Kd.sum(axis=0), n_d)
    assert np.ptp(counts_Kd.sum(axis=1)) <= 1


def shuffled_and_cut(n_d: np.ndarray, K: int, alpha: float, random: np.random.Generator) -> np.ndarray:
    """(K, d) counts of SAGE's rule on images: shuffle, cut into K/2 slices, share each out, string together, cut."""
    order_N = random.permutation(np.repeat(np.arange(len(n_d)), n_d))
    row: list[int] = []
    for slice_M in np.array_split(order_N, K // 2):
        held: list[list[int]] = []
        while not held or min(map(len, held)) < len(slice_M) // 4:
            held = [[], []]
            for label in range(len(n_d)):
                of_class = slice_M[slice_M == label].tolist()
                share_2 = random.dirichlet([alpha, alpha]) * [len(own) < len(slice_M) / 2 for own in held]
                cut = int(share_2[0] / share_2.sum() * len(of_class)) if share_2.any() else 0
                held[0] += of_class[:cut]
                held[1] += of_class[cut:]
        row += held[0] + held[1]
    return np.array([np.bincount(piece, minlength=len(n_d)) for piece in np.array_split(np.array(row), K)])


@pytest.mark.parametrize(("alpha", "measured"), [(0.1, 0.51), (0.5, 0.44), (1.0, 0.37)])
def test_sage_s_clients_differ_as_its_images_do(alpha, measured):
    """Mean total variation and classes of a client, 20 clients and ten equal classes, against a shuffle of images.

    20 seeds of each: means may differ by 4 standard errors of their difference. `measured`: by another simulation, to
    two digits. Every two clients hold all classes.
    """
    n_d = np.full(10, 1000)
    ours = [drawn("sage", n_d, 20, alpha, seed) for seed in range(20)]
    theirs = [shuffled_and_cut(n_d, 20, alpha, np.random.default_rng(seed)) for seed in range(20)]
    for statistic in (mean_total_variation, lambda counts_Kd: (counts_Kd > 0).sum(axis=1).mean()):
        means, spreads = zip(
            *(
                (np.mean(values), np.var(values, ddof=1) / 20)
                for values in ([*map(statistic, t)] for t in (ours, theirs))
            ),
            strict=True,
        )
        assert means[0] == pytest.approx(means[1], abs=4 * sum(spreads) ** 0.5)
        if statistic is mean_total_variation:
            assert means[0] == pytest.approx(measured, abs=0.005 + 4 * spreads[0] ** 0.5)
    assert all((counts_Kd.reshape(10, 2, 10).sum(axis=1) > 0).all() for counts_Kd in ours)


def test_sage_refuses_an_odd_number_of_clients():
    with pytest.raises(ConfigError, match="K=5 is odd; choose K=6"):
        Dirichlet(alpha=0.1, rule="sage").shares(np.full(10, 100), 5, 0)
