"""Whose round counts: the last one, or where a paper chose it on the test set, that one, and every view says so."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import Records, cell_result
from reports.cells import SELECTED_ON_TEST
from reports.exports import table_csv, table_latex
from reports.join import item_result
from reports.site import build
from reports.summary import summary_csv
from tests.reports.fakes import make_record, pair
from tests.reports.test_site import words
from tests.reports.test_terminal import printed

ITEM = pair()
A, B = ITEM.cells
BEST = {"round": 3, "test/accuracy": 0.9, "test/loss": 0.2}


def run_with(cell: Any = A, seed: int = 0, **result: Any) -> RunRecord:
    """.8 and a loss of .5 after the last round; the best round was the third, .9 and .2."""
    record = make_record(cell, seed, {"test/accuracy": 0.8, "test/loss": 0.5, "pseudo/kept": 0.6})
    return replace(record, result={**record.result, "best": BEST, **result})


@pytest.mark.parametrize(
    ("rule", "metric", "value"),
    [
        ("last", "test/accuracy", 0.8),
        ("best_on_test", "test/accuracy", 0.9),
        ("best_on_test", "test/loss", 0.2),
        ("best_on_test", "pseudo/kept", 0.6),
        ("best_on_test", "test/auroc", None),
    ],
)
def test_selected_follows_the_rule_for_what_is_measured_on_the_test_set(
    rule: str, metric: str, value: float | None
) -> None:
    assert run_with(selection=rule).selected(metric) == value


def test_a_run_without_a_result_has_no_value() -> None:
    record = make_record(A, 0, status="unfinished")
    assert record.selected("test/accuracy") is None
    assert replace(record, result={"selection": "best_on_test", "best": None}).selected("test/accuracy") is None


def one_of_each() -> tuple[Item, Records]:
    """a was selected on the test set, b was not."""
    a = {seed: run_with(A, seed, selection="best_on_test") for seed in range(3)}
    return ITEM, {A.cell_key: a, B.cell_key: {seed: run_with(B, seed) for seed in range(3)}}


def test_values_and_their_note_come_together() -> None:
    _, records = one_of_each()
    a, b = cell_result(A, records, 3), cell_result(B, records, 3)
    assert (set(a.values.values()), a.selected_on_test) == ({0.9}, True)
    assert (set(b.values.values()), b.selected_on_test) == ({0.8}, False)
    assert cell_result(A, records, 3, "pseudo/kept").selected_on_test is False


def test_every_view_says_which_cells_test_data_chose(tmp_path: Path) -> None:
    """Of two cells one: named; a table of "last" alone says nothing of it."""
    item, records = one_of_each()
    sentence = f"{SELECTED_ON_TEST} (a)"
    assert f"note: {sentence}" in printed(item, records)
    assert sentence in item_result(item, records)["notes"]
    assert f"% {SELECTED_ON_TEST}: a" in table_latex(item, records)
    rows = csv.DictReader(io.StringIO(table_csv(item, records)))
    assert [row["selection"] for row in rows] == [SELECTED_ON_TEST, ""]
    assert ",test/accuracy,0.9,1,done" in summary_csv([(item, records)])
    build([(item, records)], tmp_path)
    assert sentence in words(tmp_path / "toy/tab1/demo/index.html")
    page = tmp_path / "toy/tab1/demo/cell-a.html"
    assert SELECTED_ON_TEST.capitalize() in words(page) and "90.00" in words(page)
    plain = {B.cell_key: records[B.cell_key]}
    assert SELECTED_ON_TEST not in printed(item, plain) + table_latex(item, plain) + table_csv(item, plain)


def test_a_table_chosen_on_the_test_set_throughout_says_so_above_it() -> None:
    """Not "after the last round"."""
    item, records = one_of_each()
    text = " ".join(printed(item, {A.cell_key: records[A.cell_key]}).split())
    assert f"test accuracy, {SELECTED_ON_TEST}, in percent" in text and "last round" not in text
