"""The arena's numbers: budgets counted by hand, groups of ties walked by hand, ranks against scipy."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pytest

from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Cell, Item
from benchmark.verdicts.results import Records
from reports.arena import (
    Arena,
    arena_rows,
    arena_tables,
    arenas,
    at_budget,
    not_ranked_text,
)
from reports.reported import Reported
from reports.tables import markdown_of
from tests.reports.arena_fakes import ONE_MORE_CLIENT, arena_cell, line, run_of, small


def item_of(cells: Sequence[Cell], seeds: int = 3) -> Item:
    return Item(name="arena/toy", title="Toy", profile="demo", cells=tuple(cells), seeds=seeds, rows=("method",))


def ends(*values: tuple[Cell, Mapping[int, float]]) -> Records:
    """Runs of one round, ten local steps and 1 MB up, with these accuracies by seed."""
    return {
        cell.cell_key: {seed: run_of(cell, seed, [line(value, 10, 1e6)]) for seed, value in found.items()}
        for cell, found in values
    }


def by_method(column: Arena) -> dict[str, dict[str, float]]:
    """Method -> basis -> mean."""
    return {
        str(entry.result.cell.setting["method"]): {
            basis: means.mean for basis in entry.scores if (means := entry.summary(basis))
        }
        for entry in column.compared
    }


A, B, C, D = (arena_cell(name, "own", 900 + i) for i, name in enumerate("ABCD"))


@pytest.mark.parametrize(
    ("budget", "value"), [(9.0, None), (10.0, 0.5), (20.0, 0.5), (29.9, 0.5), (30.0, 0.9), (99.0, 0.9)]
)
def test_value_at_a_budget_is_the_last_evaluation_it_paid_for(budget: float, value: float | None) -> None:
    """Three rounds of ten steps, evaluated after the first (.5) and the third (.9)."""
    run = run_of(A, 0, [line(0.5, 10, 0), line(None, 10, 0), line(0.9, 10, 0)])
    assert at_budget(run, "steps", budget) == value


def two_costs() -> Records:
    """A: three rounds of 10 steps and 20 + 10 bytes. B: three rounds of 20 steps and 15 + 5 bytes."""
    a = run_of(A, 0, [line(v, 10, 20, 10) for v in (0.3, 0.4, 0.5)])
    b = run_of(B, 0, [line(v, 20, 15, 5) for v in (0.6, 0.7, 0.8)])
    return {A.cell_key: {0: a}, B.cell_key: {0: b}}


def test_budgets_are_the_least_totals_of_steps_and_of_bytes_up_and_down() -> None:
    """A spends 30 steps and 90 bytes, B 60 and 60. At 30 steps A has all its rounds, B one (20; two would be 40): .5
    and .6. At 60 bytes B has all its rounds, A two (60): .8 and .4."""
    (column,) = arenas(Reported(item_of([A, B]), two_costs()))
    assert column.budget == {"steps": 30.0, "bytes": 60.0}
    assert by_method(column) == {
        "B": {"rounds": 0.8, "steps": 0.6, "bytes": 0.8},
        "A": {"rounds": 0.5, "steps": 0.5, "bytes": 0.4},
    }
    assert [dict(entry.costs) for entry in column.compared] == [
        {"steps": 60.0, "bytes": 60.0},
        {"steps": 30.0, "bytes": 90.0},
    ]
    assert column.rounds == 3


def test_bounds_and_diverged_runs_set_no_budget() -> None:
    """The bound spends 5 steps, the diverged run 4; the budget stays A's 30."""
    bound = arena_cell("Bound", "own", 950, role="bound")
    records = dict(two_costs())
    records[bound.cell_key] = {0: run_of(bound, 0, [line(0.99, 5, 0)])}
    records[C.cell_key] = {0: run_of(C, 0, [line(0.1, 4, 1)], status="diverged")}
    (column,) = arenas(Reported(item_of([A, B, C, bound]), records))
    assert column.budget["steps"] == 30.0
    assert [result.cell.label for result in column.bounds] == ["Bound/own"]
    assert [(result.cell.label, result.status) for result in column.apart] == [("C/own", "diverged")]
    assert set(by_method(column)) == {"A", "B"}


def differences(column: Arena) -> list[float | None]:
    """To the best at equal rounds, best first."""
    return [column.to_best(method, "rounds") for method in column.compared]


def test_a_column_is_over_common_seeds() -> None:
    """A has seeds 0 to 4, B 0 to 3: four are common, and A's mean leaves seed 4 out (1.0, which would have lifted
    it). A is .1 below B."""
    records = ends((A, dict.fromkeys(range(4), 0.5) | {4: 1.0}), (B, dict.fromkeys(range(4), 0.6)))
    (column,) = arenas(Reported(item_of([A, B], seeds=5), records))
    assert column.seeds == (0, 1, 2, 3)
    assert by_method(column)["A"]["rounds"] == 0.5
    assert [entry.result.status for entry in column.compared] == ["partial", "done"]
    assert differences(column) == [None, pytest.approx(-0.1)]


def test_the_table_says_what_the_numbers_say() -> None:
    """small(): A .91 and B .81 in the mean; B, C, D and the bound below; the second column waits."""
    item, records = small()
    own, tuned = arena_tables(Reported(item, records))
    text = markdown_of(own)
    assert "| A | 91.00 ±1.00 | 91.00 ±1.00 |" in text and "| B | 81.00 ±1.00 |" in text
    assert "| -10.00 n=3 |" in text
    assert "C | not run (0/3)" in text and "D | n=0/3, 1 diverged" in text and "S | 65.00 ±0.00" in text
    assert "Sorted by mean over 3 common seeds; the order may be chance." in own.caption
    assert "The budget is what the cheapest method spends." in own.caption
    assert "waits for trials" in markdown_of(tuned) and f"B/own: {ONE_MORE_CLIENT}" in tuned.notes
    frame = pd.DataFrame(own.data).set_index("label")
    assert frame.loc["A/own", "rounds_mean"] == pytest.approx(0.91) and frame.loc[
        "B/own", "rounds_to_best"
    ] == pytest.approx(-0.1)
    assert frame.loc["A/own", "budget_steps"] == 20.0 and frame.loc["A/tuned", "status"] == "waits for trials"


@pytest.mark.parametrize(("ends_of_c", "ranked"), [([0.62, 0.9, 0.9], True), ([0.5, 0.6, 0.9], False)])
def test_what_is_typically_no_better_than_labels_alone_is_not_ranked(ends_of_c: list[float], ranked: bool) -> None:
    """Labels alone end at .6, .6 and .7, their median is .6. One bad run of three leaves C ranked; a median of .6 does
    not, although its mean is above theirs."""
    bound = replace(arena_cell("S", "own", 951, role="bound"), experiment=replace(A.experiment, method=ServerOnly()))
    records = ends(
        (A, dict.fromkeys(range(3), 0.85)), (C, dict(enumerate(ends_of_c))), (bound, {0: 0.6, 1: 0.6, 2: 0.7})
    )
    (column,) = arenas(Reported(item_of([C, A, bound]), records))
    assert [one.result.cell.label for one in column.compared if not one.not_ranked] == ["A/own", "C/own"][: 1 + ranked]
    assert (column.to_best(column.compared[1], "rounds") is not None) == ranked
    assert ("C" in not_ranked_text(column)) == (not ranked)


def test_json_has_every_place_in_fractions() -> None:
    item, records = small()
    found = arena_rows(Reported(item, records))
    first = found[0]
    costs = first["budget_steps"], first["budget_bytes"], first["run_steps"], first["run_bytes"]
    assert (first["label"], first["rounds_n"], first["rounds_to_best"], *costs) == (
        "A/own",
        3,
        None,
        20.0,
        1e6,
        20.0,
        2e6,
    )
    assert first["rounds_mean"] == pytest.approx(0.91)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
