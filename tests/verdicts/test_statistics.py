"""Means, spread and intervals of a sample: by hand, and against SciPy's confidence interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmark.verdicts.statistics import contrast, paired, summary


def test_few_values_have_no_interval_and_one_has_no_spread() -> None:
    """1, 2, 3: mean 2, std sqrt((1 + 0 + 1) / 2) = 1."""
    seen = summary([1.0, 2.0, 3.0])
    assert (seen.mean, seen.std, seen.n, seen.interval) == (2.0, 1.0, 3, None)
    assert (summary([0.5]).std, summary([0.5]).has_spread) == (None, False)
    for values in ([], [0.5, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="finite"):
            summary(values)


@given(st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=5, max_size=8, unique=True))
def test_agrees_with_scipy(values: list[float]) -> None:
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert summary(values).interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_rounding_is_no_spread() -> None:
    """0.4 - 0.3 and 0.9 - 0.8 differ in the last bit; that is rounding, not a measured spread."""
    assert 0.4 - 0.3 != 0.9 - 0.8
    assert not summary([0.4 - 0.3, 0.9 - 0.8]).has_spread
    assert summary([0.1, 0.1001]).has_spread


def test_differences_are_of_common_seeds_only() -> None:
    """Seeds 1 and 2 are common: .1 and .3, mean .2, variance .02. Of three cells, .9 - .4 - .3 = .2 at seed 0."""
    seen = paired({0: 0.9, 1: 0.8, 2: 0.8}, {1: 0.7, 2: 0.5, 5: 0.1})
    assert seen is not None and seen.n == 2 and (seen.mean, seen.std) == pytest.approx((0.2, 0.02**0.5))
    assert paired({0: 0.9}, {1: 0.7}) is None
    values = {"a": {0: 0.9, 1: 0.9}, "b": {0: 0.8, 1: 0.8}, "c": {0: 0.6}}
    assert contrast({"a": 1.0, "b": -0.5, "c": -0.5}, values) == {0: pytest.approx(0.2)}
    assert contrast({"a": 1.0, "d": -1.0}, values) == contrast({}, values) == {}
