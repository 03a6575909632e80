"""Partial rank correlations and ratios against closed forms and an independent way of computing them."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from reports.association import Association, associated, partial_spearman, rank_residuals, ratio_interval, spearman

LISTS = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=5, max_size=30)


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return [np.asarray(column, dtype=float) for column in zip(*rows, strict=True)]


@given(LISTS)
def test_ranks_correlate_as_in_scipy(rows):
    x, y, _ = columns(rows)
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@given(LISTS)
def test_partial_is_the_correlation_of_the_residuals(rows):
    """Independent way: scipy's regression of the ranks on the ranks held fixed, then Pearson of what is left."""
    x, y, z = columns(rows)
    assume(min(len(set(c)) for c in (x, y, z)) > 1)
    ranks = [stats.rankdata(c) for c in (x, y, z)]
    left = []
    for values in ranks[:2]:
        line = stats.linregress(ranks[2], values)
        left.append(values - line.intercept - line.slope * ranks[2])
    assume(min(np.std(part) for part in left) > 1e-3)
    assert partial_spearman(x, y, z) == pytest.approx(stats.pearsonr(*left).statistic, abs=1e-9)
    assert rank_residuals(x, z) == pytest.approx(left[0], abs=1e-9)


def test_closed_forms():
    """x = (1 2 3 4), y = (2 1 4 3), z = (1 1 2 2): r_xy = .6, r_xz = r_yz = 2 / sqrt 5 = .8944, so that the partial one
    is (.6 - .8) / (1 - .8) = -1: what is left of x rises where what is left of y falls."""
    x, y, z = (np.asarray(c, dtype=float) for c in ([1, 2, 3, 4], [2, 1, 4, 3], [1, 1, 2, 2]))
    assert spearman(x, y) == pytest.approx(0.6)
    assert spearman(x, z) == pytest.approx(2 / math.sqrt(5))
    assert partial_spearman(x, y, z) == pytest.approx(-1.0)


def test_limits():
    """Nothing to hold fixed is plain Spearman; nothing left of x once its own ranks are held is no correlation."""
    x, y, same = np.arange(6.0), np.asarray([1.0, 0, 2, 5, 4, 3]), np.ones(6)
    assert partial_spearman(x, y, same) == spearman(x, y)
    assert partial_spearman(x, y, 7 * x) is None and partial_spearman(same, y, x) is None


@given(LISTS, st.permutations(range(5)))
def test_only_order_counts_and_not_that_of_the_cells(rows, start):
    x, y, z = columns(rows)
    order = np.asarray([*start, *range(5, len(x))])
    before = partial_spearman(x, y, z)
    after = partial_spearman(np.exp(x)[order], 2 * y[order] - 5, z[order] ** 3)
    assert (before is None) == (after is None) and (before is None or after == pytest.approx(before, abs=1e-9))


def limits(found: Association) -> tuple[float, float]:
    assert found.interval is not None
    return found.interval


def partial(table):
    return partial_spearman(table["x"], table["y"], table["z"])


def test_a_confounder_explains_what_it_explains():
    """x = z + noise, y = z + noise: correlated, but not once z is held fixed. y = x + noise: also then."""
    draw = np.random.default_rng(1)
    z, e, f = draw.normal(size=(3, 300))
    confounded = {name: list(c) for name, c in {"x": z + 0.5 * e, "y": z + 0.5 * f, "z": z}.items()}
    direct = confounded | {"y": list(z + e + 0.2 * f)}
    assert (spearman(z + 0.5 * e, z + 0.5 * f) or 0) > 0.7
    clusters = [i // 3 for i in range(300)]
    first, second = (associated(c, clusters, partial, samples=150) for c in (confounded, direct))
    assert limits(first)[0] < 0 < limits(first)[1] and (first.n, first.clusters) == (300, 100)
    assert limits(second)[0] > 0.5 > limits(first)[1]


def test_copies_of_a_cell_make_the_interval_no_narrower():
    """Every cell three times in its cluster: what the bootstrap draws is the cluster, so that nothing changes."""
    draw = np.random.default_rng(2)
    once = {name: draw.normal(size=24).tolist() for name in ("x", "y")}
    thrice = {name: np.repeat(values, 3).tolist() for name, values in once.items()}

    def plain(table):
        return spearman(table["x"], table["y"])

    a = associated(once, range(24), plain, samples=200)
    b = associated(thrice, np.repeat(np.arange(24), 3).tolist(), plain, samples=200)
    assert b.estimate == pytest.approx(a.estimate) and limits(b) == pytest.approx(limits(a))
    wrong = associated(thrice, range(72), plain, samples=200)
    assert np.diff(limits(wrong)) < 0.75 * np.diff(limits(a))


def test_the_interval_covers_as_often_as_it_says():
    """Independent x and y in 20 clusters of 3 that share a part: a 90 % interval holds zero in 90 % of 50 samples
    (a binomial of mean 45 and deviation 2.1; a percentile interval is known to fall a little short)."""
    draw, held = np.random.default_rng(3), 0
    clusters = np.repeat(np.arange(20), 3).tolist()
    for _ in range(50):
        shared = np.repeat(draw.normal(size=(2, 20)), 3, axis=1)
        x, y = shared + 0.7 * draw.normal(size=(2, 60))
        found = associated(
            {"x": list(x), "y": list(y)}, clusters, lambda t: spearman(t["x"], t["y"]), samples=100, level=0.9
        )
        low, high = limits(found)
        held += low <= 0 <= high
    assert 37 <= held <= 50


def test_too_few_clusters_have_no_interval():
    x = np.arange(21.0).tolist()
    found = associated({"x": x, "y": x}, [i // 3 for i in range(21)], lambda t: spearman(t["x"], t["y"]))
    assert found.estimate == pytest.approx(1.0) and found.interval is None and found.clusters == 7


def test_fieller_s_limits_are_where_the_t_test_turns():
    """By its definition: at each limit r the paired t test of top - r bottom has p = .05; between them it is larger."""
    top, bottom = [2.1, 2.6, 1.9, 2.4, 2.2], [4.0, 4.9, 4.2, 4.4, 4.6]
    found = ratio_interval(top, bottom)
    assert found is not None
    ratio, (low, high) = found
    assert ratio == pytest.approx(sum(top) / sum(bottom)) and low < ratio < high

    def p(r):
        return stats.ttest_1samp(np.asarray(top) - r * np.asarray(bottom), 0.0).pvalue

    assert [p(low), p(high)] == pytest.approx([0.05, 0.05], abs=1e-6) and p(ratio) > 0.9
    assert ratio_interval(top, [1.0, -1.2, 0.4, -0.3, 0.2]) is None  # the gain is not told from zero
    assert ratio_interval(top[:2], bottom[:2]) is None
