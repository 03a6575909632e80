"""Cells against labels alone: which have collapsed, and what that keeps them out of."""

from dataclasses import replace

from benchmark.verdicts.cell_results import ACCURACY, Records
from benchmark.verdicts.collapse import collapsed_cells
from tests.reports.fakes import accuracies, alone, make_record, pair


def collapsed_against(a: list[float], labels_alone: list[float], status: str = "done") -> bool:
    """Return whether cell "a" has collapsed, by runs of these accuracies."""
    item = pair()
    cell, bound = item.cells[0], alone(item.cells[0])
    item = replace(item, cells=(*item.cells, bound))
    runs = {seed: make_record(cell, seed, {ACCURACY: end}, status=status) for seed, end in enumerate(a)}
    records: Records = {cell.cell_key: runs, **accuracies([(bound, labels_alone)])}
    return collapsed_cells(item, records) == {"a"}


def test_the_typical_run_counts_over_common_seeds():
    """Medians .5 and .6; one fallen run of three is not typical; a seed that a has not run does not count; a diverged
    run ends at nothing, and one that has not ended says nothing."""
    assert collapsed_against([0.5, 0.9, 0.4], [0.6, 0.6, 0.6])
    assert not collapsed_against([0.1, 0.9, 0.7], [0.6, 0.6, 0.6])
    assert not collapsed_against([0.5, 0.5], [0.4, 0.4, 0.9])
    assert not collapsed_against([], [0.6])
    assert collapsed_against([0.9], [0.6], "diverged") and not collapsed_against([0.1], [0.6], "unfinished")


def test_without_a_run_of_labels_alone_a_run_is_held_against_its_own_start():
    """The server alone trains for 20 rounds and comes to .8. What ends at .7 has lost by its clients; the bound, where
    it has run, decides alone."""
    item = pair()
    method = replace(item.cells[0].experiment.method, warm_start_rounds=20)
    cell = replace(item.cells[0], experiment=replace(item.cells[0].experiment, method=method))
    bound = alone(cell)
    item = replace(item, cells=(cell, bound))

    def run(end: float) -> Records:
        rounds = [{"round": t, "test/accuracy": a} for t, a in ((10, 0.5), (20, 0.8), (30, 0.1), (40, end))]
        return {cell.cell_key: {0: make_record(cell, 0, {"test/accuracy": end}, rounds=rounds)}}

    assert collapsed_cells(item, run(0.7)) == {"a"}
    assert collapsed_cells(item, run(0.85)) == frozenset()
    assert collapsed_cells(item, {**run(0.7), **accuracies([(bound, [0.6])])}) == frozenset()
