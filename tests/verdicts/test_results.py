"""Cells against labels alone: which have collapsed, and what that keeps them out of."""

from dataclasses import replace

import pytest

from benchmark.experiment import Experiment
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Cell
from benchmark.verdicts.results import ACCURACY, Records, Results, collapsed
from tests.reports.fakes import accuracies, make_record, pair


def collapsed_against(a: list[float], alone: list[float]) -> frozenset[str]:
    """Whether cell "a" has collapsed, by runs of these accuracies."""
    item = pair()
    cell = item.cells[0]
    bound = replace(cell, label="alone", role="bound", experiment=_alone(cell))
    item = replace(item, cells=(*item.cells, bound))
    records: Records = accuracies([(cell, a), (bound, alone)])
    below = collapsed(item, records)
    assert {label for label, result in Results(item, records)[ACCURACY].items() if result.collapsed} == below
    return below


def test_the_typical_run_counts_over_common_seeds():
    """Medians .5 and .6; one fallen run of three is not typical; a seed that a has not run does not count."""
    assert collapsed_against([0.5, 0.9, 0.4], [0.6, 0.6, 0.6]) == {"a"}
    assert collapsed_against([0.1, 0.9, 0.7], [0.6, 0.6, 0.6]) == frozenset()
    assert collapsed_against([0.5, 0.5], [0.4, 0.4, 0.9]) == frozenset()
    assert collapsed_against([], [0.6]) == frozenset()


def _alone(cell: Cell) -> Experiment:
    """The cell's bound."""
    method = ServerOnly(batch_size=cell.experiment.method.batch_size)
    return replace(cell.experiment, method=method)


@pytest.mark.parametrize(("status", "below"), [("diverged", {"a"}), ("failed", set())])
def test_a_diverged_run_ends_at_nothing(status: str, below: set[str]):
    item = pair()
    cell = item.cells[0]
    bound = replace(cell, label="alone", role="bound", experiment=_alone(cell))
    records = accuracies([(bound, [0.6])]) | {cell.cell_key: {0: make_record(cell, 0, {}, status=status)}}  # type: ignore[operator]
    assert collapsed(replace(item, cells=(*item.cells, bound)), records) == below


def test_without_a_run_of_labels_alone_a_run_is_held_against_its_own_start():
    """The server alone trains for 20 rounds and comes to .8. What ends at .7 has lost by its clients; the bound, where
    it has run, decides alone."""
    item = pair()
    method = replace(item.cells[0].experiment.method, warm_start_rounds=20)
    cell = replace(item.cells[0], experiment=replace(item.cells[0].experiment, method=method))
    bound = replace(cell, label="alone", role="bound", experiment=_alone(cell))
    item = replace(item, cells=(cell, bound))

    def run(end: float) -> Records:
        rounds = [{"round": t, "test/accuracy": a} for t, a in ((10, 0.5), (20, 0.8), (30, 0.1), (40, end))]
        return {cell.cell_key: {0: make_record(cell, 0, {"test/accuracy": end}, rounds=rounds)}}

    assert collapsed(item, run(0.7)) == {"a"}
    assert collapsed(item, run(0.85)) == frozenset()
    assert collapsed(item, {**run(0.7), **accuracies([(bound, [0.6])])}) == frozenset()
