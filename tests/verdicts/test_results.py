"""Cells against labels alone: which have collapsed, and what that keeps them out of."""

from dataclasses import replace

import pytest

from benchmark.methods.server_only import ServerOnly
from benchmark.verdicts.results import Records, collapsed, collect
from tests.reports.fakes import accuracies, make_record, pair


def beside_bound(a: list[float], alone: list[float]) -> frozenset[str]:
    """Whether cell "a" has collapsed, by runs of these accuracies."""
    item = pair()
    cell = item.cells[0]
    method = ServerOnly(batch_size=cell.experiment.method.batch_size)
    bound = replace(cell, label="alone", role="bound", experiment=replace(cell.experiment, method=method))
    item = replace(item, cells=(*item.cells, bound))
    records: Records = accuracies([(cell, a), (bound, alone)])
    below = collapsed(item, records)
    assert {label for label, result in collect(item, records).items() if result.collapsed} == below
    return below


def test_the_typical_run_counts_over_common_seeds():
    """Medians .5 and .6; one fallen run of three is not typical; a seed that a has not run does not count."""
    assert beside_bound([0.5, 0.9, 0.4], [0.6, 0.6, 0.6]) == {"a"}
    assert beside_bound([0.1, 0.9, 0.7], [0.6, 0.6, 0.6]) == frozenset()
    assert beside_bound([0.5, 0.5], [0.4, 0.4, 0.9]) == frozenset()
    assert beside_bound([], [0.6]) == frozenset()


@pytest.mark.parametrize(("status", "below"), [("diverged", {"a"}), ("failed", set())])
def test_a_diverged_run_ends_at_nothing(status: str, below: set[str]):
    item = pair()
    cell = item.cells[0]
    method = ServerOnly(batch_size=cell.experiment.method.batch_size)
    bound = replace(cell, label="alone", role="bound", experiment=replace(cell.experiment, method=method))
    records = accuracies([(bound, [0.6])]) | {cell.cell_key: {0: make_record(cell, 0, {}, status=status)}}  # type: ignore[operator]
    assert collapsed(replace(item, cells=(*item.cells, bound)), records) == below
