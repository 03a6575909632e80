"""Decide which metrics are fractions, from 0 to 1. Pages show them in percent, and their differences in points."""

import re

_FRACTION = re.compile(
    r"(test|validation)/(accuracy|auroc|precision|recall|unknown_(auroc|fpr95))"
    r"|pseudo/(kept|accuracy|class_balance|unknown|candidates|unselected_accuracy)"
    r"|aggregation/labelled_(share|weight)"
)


def is_fraction(metric: str) -> bool:
    """Return whether all values of this metric are in [0, 1].

    The names are those of the suite: a metric that only a custom method reports may have any values.
    """
    return _FRACTION.fullmatch(metric) is not None
