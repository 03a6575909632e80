"""The signed-rank interval against SciPy's exact test and by hand, and the looks' levels against published bounds."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm, wilcoxon

from benchmark.verdicts.looks import errors, smallest_look
from benchmark.verdicts.signed_ranks import cumulative, interval, median_interval, sign_test, typical


def test_the_typical_difference_and_its_distribution_by_hand():
    """Walsh averages of 0, 1, 5: 0, .5, 1, 2.5, 3, 5; their median is 1.75. One far value moves it little. Ranks 1, 2,
    3: of eight sign patterns the sums are 0, 1, 2, 3, 3, 4, 5, 6. In floating point .3 - .2 - .1 is -3e-17: a tie."""
    assert typical([5.0, 0.0, 1.0]) == 1.75
    assert typical([0.0] * 9 + [-30.0]) == 0.0
    assert cumulative(3) * 8 == pytest.approx([1, 2, 3, 5, 6, 7, 8])
    assert interval([0.3 - 0.2 - 0.1] * 9, 0.05) == (0.0, 0.0)


@pytest.mark.parametrize("n", [9, 16, 24, 32])
def test_intervals_end_where_scipy_s_tests_stop_rejecting(n: int):
    """p of the test that the typical difference or the median is an end, a little inside and outside of it."""
    values = np.random.default_rng(n).standard_t(3, n)

    def signed_ranks(difference: float) -> float:
        return float(wilcoxon(values - difference, method="exact").pvalue)

    def signs(difference: float) -> float:
        return float(binomtest(int((values > difference).sum()), n).pvalue)

    cases = ((interval, signed_ranks, 0.05), (median_interval, signs, 0.05), (median_interval, signs, 0.0005))
    for made, p_value, error in cases:
        ends = made(list(values), error)
        assert (ends is None) == (2 * 0.5**n > error)
        for end, outwards in zip(ends or (), (-1e-9, 1e-9), strict=False):
            assert p_value(end + outwards) <= error < p_value(end - outwards)
    for better in range(n + 1):
        assert sign_test(better, n - better) == pytest.approx(binomtest(better, n).pvalue, abs=1e-12)


def test_few_seeds_reject_nothing_and_no_interval_leaves_the_differences():
    """The least p of n differences is 2 / 2^n: .0625 at five, .03125 at six."""
    assert interval([1.0, 2, 3, 4, 5], 0.05) is None
    assert interval([1.0, 2, 3, 4, 5, 6], 0.05) == (1.0, 6.0)
    assert interval([0.5] * 9, 0.05) == (0.5, 0.5)


def test_levels_of_looks_are_those_of_lan_and_demets():
    """Bounds of the Pocock-like spending function at five equal looks, two-sided .05: Lan and DeMets (1983), as printed
    in the tables of their programs: 2.438, 2.427, 2.410, 2.397, 2.386."""
    bounds = norm.isf(np.array(errors(0.05, (1, 2, 3, 4, 5))) / 2)
    assert bounds == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=5e-4)
    assert errors(0.05, (7,)) == pytest.approx((0.05,))
    assert all(less < more for less, more in zip(errors(0.01), errors(0.05), strict=True))


def test_the_smallest_look_that_can_decide():
    """Nine seeds have 2 / 2^9 = .0039, sixteen .00003. Of .05 the first look has .0197, of .005 .0020."""
    assert errors(0.005)[0] < 2 * 0.5**9 < errors(0.05)[0]
    assert (smallest_look(0.05), smallest_look(0.005), smallest_look(0.05, looks_had=1)) == (9, 16, 16)
    assert (smallest_look(0.05, alike=True), smallest_look(0.05, looks_had=4), smallest_look(1e-12)) == (24, 0, 0)
