"""The arena's numbers: common seeds, costs, who is ranked and who stands apart, counted by hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pytest

from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Cell, Item
from benchmark.records.record import RunRecord
from reports.arena import NO_BETTER, Arena, arenas
from reports.arena_tables import arena_rows, arena_tables, order_text
from reports.exports import shown_of
from reports.item_results import ItemResults
from reports.tables import markdown_of
from tests.papers.conftest import item_of
from tests.reports.fakes import ONE_MORE_CLIENT, arena_cell, run_of, small

A, B, C, D = (arena_cell(name, "own", 900 + i) for i, name in enumerate("ABCD"))


def arena_of(cells: Sequence[Cell], *ends: tuple[Cell, Mapping[int, float]]) -> Arena:
    """Make the column of runs of one round, ten local steps and 1 MB up, with these accuracies by seed."""
    item = Item(name="arena/toy", title="Toy", profile="demo", cells=tuple(cells), seeds=5, rows=("method",))
    records: dict[str, dict[int, RunRecord]] = {}
    for cell, values in ends:
        records[cell.cell_key] = {seed: run_of(cell, seed, [value], 10, 1e6) for seed, value in values.items()}
    (column,) = arenas(ItemResults(item, records))
    return column


def test_a_column_is_over_common_seeds() -> None:
    """A has seeds 0 to 4, B 0 to 3: four are common, and A's mean leaves seed 4 out (1.0, which would have lifted
    it). A is .1 below B."""
    column = arena_of([A, B], (A, dict.fromkeys(range(4), 0.5) | {4: 1.0}), (B, dict.fromkeys(range(4), 0.6)))
    b, a = column.compared
    assert column.seeds == (0, 1, 2, 3) and (a.seen.mean, b.seen.mean) == (0.5, pytest.approx(0.6))
    assert [column.to_best(method) for method in (b, a)] == [None, pytest.approx(-0.1)]
    assert [method.result.status for method in (b, a)] == ["partial", "done"]


def test_the_table_says_what_the_numbers_say() -> None:
    """small(): A .91 and B .81 in the mean; B, C, D and the bound below; the second column waits. Two rounds of A cost
    20 steps and 2 MB, of B 40 and 1: at 1 MB A has one round behind it, which ended at .5."""
    item, records = small()
    own, tuned = arena_tables(ItemResults(item, records))
    text = markdown_of(own)
    assert "| A | 91.00 ±1.00 | best | 50.00 ±0.00 | 20 | 2 |" in text
    assert "| B | 81.00 ±1.00 | -10.00 n=3 | 81.00 ±1.00 | 40 | 1 |" in text
    assert "C | not run (0/3)" in text and "D | n=0/3, 1 diverged" in text and "S | 65.00 ±0.00" in text
    assert [row.section for row in own.rows] == ["compared", "compared", "apart", "apart", "bounds"]
    assert "Sorted by mean over 3 common seeds; the order may be chance." in own.caption
    assert own.columns[1].below == "2 rounds" and own.columns[3].below == "1 MB"
    assert "waits for trials" in markdown_of(tuned) and f"B/own: {ONE_MORE_CLIENT}" in tuned.notes
    frame = pd.DataFrame(own.data).set_index("label")
    assert frame.loc["A/own", "rounds_mean"] == pytest.approx(0.91)
    assert frame.loc["B/own", "rounds_to_best"] == pytest.approx(-0.1)
    assert frame.loc["A/own", "run_bytes"] == 2e6 and frame.loc["A/own", "bytes_mean"] == 0.5
    assert frame.loc["A/tuned", "status"] == "waits for trials"
    assert frame.loc["A/own", "run_wall_seconds"] == 61.5 and "| 20 | 2 | 1.0 |" in text
    assert pd.isna(frame.loc["A/own", "run_server_seconds"])  # records of earlier versions have no such time
    assert frame.loc["A/own", "trials"] == 0 and frame.loc["A/tuned", "trials"] == len(item.choices[0].trials)
    rows = arena_rows(ItemResults(item, records))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


@pytest.mark.parametrize(("ends_of_c", "ranked"), [([0.62, 0.9, 0.9], True), ([0.5, 0.6, 0.9], False)])
def test_what_is_typically_no_better_than_labels_alone_is_not_ranked(ends_of_c: list[float], ranked: bool) -> None:
    """Labels alone end at .6, .6 and .7, their median is .6. One bad run of three leaves C ranked; a median of .6 does
    not, although its mean is above theirs."""
    bound = replace(arena_cell("S", "own", 951, role="bound"), experiment=replace(A.experiment, method=ServerOnly()))
    ends = ((A, dict.fromkeys(range(3), 0.85)), (C, dict(enumerate(ends_of_c))), (bound, {0: 0.6, 1: 0.6, 2: 0.7}))
    column = arena_of([C, A, bound], *ends)
    assert [one.result.cell.label for one in column.compared if not one.not_ranked] == ["A/own", "C/own"][: 1 + ranked]
    assert (column.to_best(column.compared[1]) is not None) == ranked
    assert (f"Not ranked: 1 of 2 methods {NO_BETTER}" in order_text(column, 3)) == (not ranked)


def test_equal_bytes_pay_for_whole_evaluations_alone() -> None:
    """One byte less than A's second round: its first counts. One less than the first: nothing does."""
    cheap = arena_cell("B", "own", 905)
    item = Item(name="arena/toy", title="Toy", profile="demo", cells=(A, cheap), seeds=1, rows=("method",))
    for budget, expected in ((20.0, [0.9]), (19.0, [0.5]), (9.0, [])):
        runs = {
            A.cell_key: {0: run_of(A, 0, [0.5, 0.9], 1, 10)},
            cheap.cell_key: {0: run_of(cheap, 0, [0.4], 1, budget)},
        }
        (column,) = arenas(ItemResults(item, runs))
        (a,) = [method for method in column.compared if method.result.cell is A]
        assert (column.budget, list(a.at_bytes)) == (budget, expected)


def test_one_seed_ranks_nothing_and_a_method_with_too_few_does_not_shorten_the_comparison() -> None:
    """C has one seed, A and B have three: these two are compared over all three, C is apart. Alone with one seed each,
    A and B keep the item's order."""
    column = arena_of([A, B, C], (A, dict.fromkeys(range(3), 0.5)), (B, dict.fromkeys(range(3), 0.6)), (C, {0: 0.9}))
    assert [method.result.cell for method in column.compared] == [B, A] and column.seeds == (0, 1, 2)
    assert [result.cell for result in column.apart] == [C] and "Too few seeds: C." in order_text(column, 3)
    column = arena_of([A, B], (A, {0: 0.5}), (B, {0: 0.6}))
    assert [method.result.cell for method in column.compared] == [A, B] and column.ranked == ()


def test_the_best_is_marked_only_if_its_interval_to_the_second_lies_above_zero() -> None:
    """Five seeds: .1 +- .01 above the second is clear, and +-.2 is not."""
    second = dict.fromkeys(range(5), 0.5)
    for spread, clear in ((0.005, True), (0.1, False)):
        best = {seed: 0.6 + spread * (seed - 2) for seed in range(5)}
        column = arena_of([A, B], (A, best), (B, second))
        assert (column.clear_best is not None) == clear


def test_a_table_whose_rows_differ_in_more_than_the_method_shows_what_else_differs() -> None:
    tables = shown_of(ItemResults(item_of("semifl/svhn", "laptop"), {}))["tables"]
    text = "".join(markdown_of(table) for table in tables)
    assert all(text.count(partition) == 1 for partition in ("K = 2", "Dir(0.1)", "Dir(0.3)", "IID |"))
