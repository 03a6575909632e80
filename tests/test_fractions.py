"""Which metrics are fractions: those of the suite that are counted as shares of images, clients or weights."""

import pytest

from benchmark.fractions import is_fraction


@pytest.mark.parametrize(
    "metric",
    [
        "test/accuracy",
        "validation/recall",
        "test/unknown_auroc",
        "validation/unknown_fpr95",
        "pseudo/kept",
        "pseudo/unselected_accuracy",
        "aggregation/labelled_weight",
    ],
)
def test_shares_are_fractions(metric):
    assert is_fraction(metric)


@pytest.mark.parametrize("metric", ["test/loss", "pseudo/kl_kept", "comm/sat_out", "local_steps", "test/accuracy/mean"])
def test_other_metrics_of_the_suite_are_not(metric):
    assert not is_fraction(metric)


@pytest.mark.parametrize("metric", ["mine/accuracy", "client/kept", "prototypes/recall"])
def test_a_custom_method_s_metric_may_have_any_values(metric):
    assert not is_fraction(metric)
