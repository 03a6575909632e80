"""Means, spread and intervals of a sample: by hand, and against SciPy's confidence interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmark.verdicts.statistics import contrast, paired, summary

FRACTION = st.floats(0, 1, allow_nan=False)


def test_three_values() -> None:
    """1, 2, 3: mean 2, std sqrt((1 + 0 + 1) / 2) = 1."""
    seen = summary([1.0, 2.0, 3.0])
    assert (seen.mean, seen.std, seen.n, seen.interval) == (2.0, 1.0, 3, None)  # three seeds are too few


def test_one_value_has_no_spread() -> None:
    seen = summary([0.5])
    assert (seen.std, seen.interval, seen.has_spread) == (None, None, False)


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_nothing_and_divergence_are_refused(values: list[float]) -> None:
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


def test_paired_uses_common_seeds_only() -> None:
    """Seeds 1 and 2 are common: differences 0.1 and 0.3, mean 0.2; seeds 0 and 5 say nothing about a difference."""
    seen = paired({0: 0.9, 1: 0.8, 2: 0.8}, {1: 0.7, 2: 0.5, 5: 0.1})
    assert seen is not None
    assert seen.n == 2
    assert seen.mean == pytest.approx(0.2)
    assert paired({0: 0.9}, {1: 0.7}) is None


@given(st.dictionaries(st.integers(0, 9), FRACTION, min_size=2), FRACTION)
def test_a_shift_of_every_seed_alike_has_no_width(values: dict[int, float], shift: float) -> None:
    """What a seed does to both cells cancels: b = a + shift gives -shift with no spread, however a spreads."""
    seen = paired(values, {seed: value + shift for seed, value in values.items()})
    assert seen is not None and seen.std is not None
    assert seen.mean == pytest.approx(-shift, abs=1e-12)
    assert seen.std < 1e-12


def test_contrast_of_three_cells() -> None:
    """Seed 0: 1 x 0.9 - 0.5 x 0.8 - 0.5 x 0.6 = 0.2; seed 1 lacks c and drops out."""
    values = {"a": {0: 0.9, 1: 0.9}, "b": {0: 0.8, 1: 0.8}, "c": {0: 0.6}}
    assert contrast({"a": 1.0, "b": -0.5, "c": -0.5}, values) == {0: pytest.approx(0.2)}
    assert contrast({"a": 1.0, "d": -1.0}, values) == {}
    assert contrast({}, values) == {}
