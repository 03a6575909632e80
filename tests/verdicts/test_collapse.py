"""Cells compared with their supervised baseline: which end below it."""

from dataclasses import replace

from benchmark.verdicts.cell_results import ACCURACY, Records
from benchmark.verdicts.collapse import cells_below_baseline
from tests.reports.fakes import accuracies, alone, make_record, pair


def is_below(a: list[float], labels_alone: list[float], status: str = "done") -> bool:
    """Return whether cell "a" is below its baseline, by runs of these accuracies."""
    item = pair()
    cell, bound = item.cells[0], alone(item.cells[0])
    item = replace(item, cells=(*item.cells, bound))
    runs = {seed: make_record(cell, seed, {ACCURACY: end}, status=status) for seed, end in enumerate(a)}
    records: Records = {cell.cell_key: runs, **accuracies([(bound, labels_alone)])}
    return cells_below_baseline(item, records) == {"a"}


def test_the_typical_run_counts_over_common_seeds():
    """Medians .5 and .6; one fallen run of three is not typical; a seed that a has not run does not count; a diverged
    run ends at nothing, and one that has not ended says nothing."""
    assert is_below([0.5, 0.9, 0.4], [0.6, 0.6, 0.6])
    assert not is_below([0.1, 0.9, 0.7], [0.6, 0.6, 0.6])
    assert not is_below([0.5, 0.5], [0.4, 0.4, 0.9])
    assert not is_below([], [0.6])
    assert is_below([0.9], [0.6], "diverged") and not is_below([0.1], [0.6], "unfinished")


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

    assert cells_below_baseline(item, run(0.7)) == {"a"}
    assert cells_below_baseline(item, run(0.85)) == frozenset()
    assert cells_below_baseline(item, {**run(0.7), **accuracies([(bound, [0.6])])}) == frozenset()
