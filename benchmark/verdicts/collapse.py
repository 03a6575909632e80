"""Decide which runs have collapsed, and which cells end below their supervised baseline.

A run has collapsed if it ends at least 5 points below its supervised baseline, if it ends at least
20 points below its own best, or if it diverged. A diverged run counts with the worst possible
accuracy. The supervised baseline has the same data and labels, the same number of steps on them and
the same seed. In a contrast with its own baseline, a cell is only compared with its own best,
because the contrast measures whether it ends below that baseline. A cell is below its baseline if
its median run ends below it.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

from benchmark.papers.bounds import bound_of
from benchmark.papers.item import ACCURACY, Cell, Item
from benchmark.records.record import Records, RunRecord
from benchmark.verdicts.cell_results import cell_result
from benchmark.verdicts.metrics import before_clients, end
from benchmark.verdicts.rule import BELOW_BOUND, FALL

ROUNDING = 1e-9

Runs: TypeAlias = Mapping[str, Mapping[int, bool]]  # cell -> seed -> whether that run has collapsed
Ends: TypeAlias = Mapping[int, tuple[float, float]]  # seed -> accuracy at the end of its run and of its baseline's run


def cells_below_baseline(item: Item, records: Records) -> frozenset[str]:
    """Return the cells with a median run that ends below the supervised baseline.

    If the baseline has not run, the comparison is with the server's accuracy before clients join.
    """
    labels = set()
    for cell in item.cells:
        ends = ends_and_bound(item, records, cell) or _ends_and_start(item, records, cell)
        if typically_below(ends):
            labels.add(cell.label)
    return frozenset(labels)


def collapsed_runs(
    item: Item, records: Records, cells: Mapping[str, float], ends: Mapping[str, Ends], seeds: Sequence[int]
) -> Runs:
    """Return which of these seeds' runs have collapsed, for each cell of a contrast."""
    collapsed: dict[str, dict[int, bool]] = {}
    for label in cells:
        bound = bound_of(item.cell(label), item.cells)
        within = bound is not None and bound.label in cells
        runs = records.get(item.cell(label).cell_key, {})
        far_below = {seed for seed, (last, alone) in ends[label].items() if last <= alone - BELOW_BOUND + ROUNDING}
        collapsed[label] = {
            seed: runs[seed].status == "diverged"
            or _fell_from_its_best(runs[seed])
            or (not within and seed in far_below)
            for seed in seeds
        }
    return collapsed


def uncollapsed(collapsed: Runs) -> dict[str, dict[int, float]]:
    """Return the value of each run in a claim about collapse: 0 if it has collapsed, and 1 if not."""
    values: dict[str, dict[int, float]] = {}
    for label, runs in collapsed.items():
        values[label] = {seed: float(not fell) for seed, fell in runs.items()}
    return values


def ends_and_bound(item: Item, records: Records, cell: Cell) -> dict[int, tuple[float, float]]:
    """Return per seed the accuracy at the end of the run and of its baseline, with 0 for a diverged
    run. Return nothing without a baseline.
    """
    bound = bound_of(cell, item.cells)
    if bound is None:
        return {}
    ended = _ends(item, records, cell)
    least = cell_result(bound, records, item.seeds, ACCURACY, "end")
    return {seed: (ended[seed], least.values[seed]) for seed in sorted(ended.keys() & least.values.keys())}


def typically_below(ends: Ends) -> bool:
    """Return whether the median of the runs' ends is below the median of the baselines' ends; False without runs."""
    if not ends:
        return False
    typical_end = median(mine for mine, _ in ends.values())
    typical_bound = median(alone for _, alone in ends.values())
    return typical_end < typical_bound


def _fell_from_its_best(record: RunRecord) -> bool:
    """Return whether the run ends at least `FALL` below its best evaluation."""
    best = max((line[ACCURACY] for line in record.rounds if ACCURACY in line), default=0.0)
    last = end(record, ACCURACY)
    return last is not None and bool(last <= best - FALL + ROUNDING)


def _ends_and_start(item: Item, records: Records, cell: Cell) -> dict[int, tuple[float, float]]:
    runs = records.get(cell.cell_key, {})
    both = {}
    for seed, ended in _ends(item, records, cell).items():
        start = before_clients(runs[seed], ACCURACY)
        if start is not None:
            both[seed] = (ended, start)
    return both


def _ends(item: Item, records: Records, cell: Cell) -> dict[int, float]:
    """Return the accuracy at the end of each seed's run, with 0 for a diverged run."""
    result = cell_result(cell, records, item.seeds, ACCURACY, "end")
    return {**result.values, **dict.fromkeys(result.diverged, 0.0)}
