"""Differences with their unit: percentage points for fractions, else plain numbers."""

import math

FRACTIONS = (
    "test/accuracy",
    "test/auroc",
    "test/precision",
    "test/recall",
    "pseudo/kept",
    "pseudo/accuracy",
    "pseudo/class_balance",
    "aggregation/labelled_share",
    "aggregation/labelled_weight",
)


def is_fraction(metric: str) -> bool:
    return metric in FRACTIONS


def number(value: float) -> str:
    """Four significant digits, without a sign for zero."""
    return "-" if not math.isfinite(value) else f"{value + 0.0:.4g}"


def in_unit(metric: str, value: float) -> str:
    """A difference of `metric` with its unit: "1.0 points" for fractions, else four digits."""
    return f"{100 * value:.1f} points" if is_fraction(metric) else number(value)
