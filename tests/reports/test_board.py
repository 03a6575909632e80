"""The board: rows of this suite and of others in one table, what they are compared with, and what is in bold."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmark.papers.item import Cell, Item
from benchmark.papers.items import items
from benchmark.records.record import RunRecord
from benchmark.sharing.bundle import Bundle
from reports.board import (
    HEADS,
    BoardEnvironment,
    board_table,
    board_values,
    declared,
    environment_key,
    rows_of_environment,
    shown_environments,
)
from reports.item_results import ItemResults
from reports.rendering import page_file
from reports.submissions import Submission
from reports.tables import Table, TableEntry
from tests.reports.fakes import accuracies, make_record

REFERENCE, OTHER, BASELINE = "FedProx-FixMatch", "FedSwitch", "Server only"
LOW = [0.80, 0.82, 0.81, 0.83, 0.80]
PLACES = {head.name: place for place, head in enumerate(HEADS)}


@pytest.fixture(scope="module")
def item() -> Item:
    """Return the digits' comparison with five seeds."""
    (found,) = items(["arena/digits"], "demo")
    return replace(found, seeds=5)


@pytest.fixture(scope="module")
def environment() -> BoardEnvironment:
    (found,) = [environment for environment in declared()[0] if environment.name == "digits"]
    return found


def cell_of(item: Item, method: str) -> Cell:
    return item.cell(f"{method}/untuned")


def own(item: Item, ends: Mapping[str, Sequence[float]]) -> ItemResults:
    """Make this suite's records with these accuracies from seed 0 on."""
    return ItemResults(item, accuracies([(cell_of(item, method), values) for method, values in ends.items()]))


def sent(runs: Sequence[RunRecord], labels: Mapping[str, str], verified: Sequence[Any] = (), **card: Any) -> Submission:
    """Make an accepted submission, in the form that the site reads."""
    texts = {"title": "T", "by": "Ann", "note": "", **card}
    bundle = Bundle(card={**texts, "labels": labels}, records=runs, source={}, content=b"")
    again = [name for check in verified for name in check["runs"]]
    return Submission(name="t.zip", bundle=bundle, retrained=again, believed=[], verified=verified)


def strangers(item: Item, values: Sequence[float], **changes: Any) -> list[RunRecord]:
    """Runs of a method that this suite does not have, in the item's environment; `changes`: of its federation."""
    runs = []
    for seed, value in enumerate(values):
        run = make_record(cell_of(item, OTHER), seed, {"test/accuracy": value})
        experiment = {**run.experiment, "method": {"kind": "strangers_file:Mine", "threshold": 0.5}}
        experiment["federation"] = {**run.experiment["federation"], **changes}
        runs.append(replace(run, cell_key="ab" * 8, experiment=experiment))
    return runs


def entries(table: Table, column: str) -> dict[str, TableEntry]:
    return {row.entries[0].text: row.entries[PLACES[column]] for row in table.rows}


def test_rows_of_ours_and_of_others_are_compared_with_one_reference(item: Item, environment: BoardEnvironment) -> None:
    """The expected difference and interval are scipy's."""
    better = [0.85, 0.88, 0.86, 0.87, 0.88]
    check = {"by": "Bob", "hardware": "a CPU, 2 cores", "code": "x", "runs": [f"records/{'ab' * 8}/seed=1.json.gz"]}
    submission = sent(strangers(item, better), {"ab" * 8: "Mine <b>"}, [check], trials=6)
    rows = rows_of_environment(environment, own(item, {REFERENCE: LOW, BASELINE: [0.9] * 5}), [submission])
    table = board_table(environment, rows)
    assert [row.entries[0].text for row in table.rows] == ["Mine <b>", REFERENCE, BASELINE]  # a baseline comes last
    difference = np.array(better) - np.array(LOW)
    low, high = stats.t.interval(0.95, 4, difference.mean(), stats.sem(difference))
    entry = entries(table, "To the reference")["Mine <b>"]
    assert math.isclose(entry.sort or 0, difference.mean())
    assert f"{100 * low:+.2f}" in entry.below[0] and f"{100 * high:+.2f}" in entry.below[0] and "n=5" in entry.below[0]
    assert entries(table, "Trained by")["Mine <b>"].text == "Ann"
    assert entries(table, "Trained by")[REFERENCE].text == "this suite"
    again = entries(table, "Trained again by")["Mine <b>"].text
    assert "Bob" in again and "a CPU, 2 cores" in again and "1 run" in again
    assert entries(table, "Trials")["Mine <b>"].text == "6" and entries(table, "Trials")[REFERENCE].text == "0"
    assert "strangers_file" not in sys.modules
    values = {"environments": [{"name": "x", "title": "X", "about": "", "table": table}], "wanted": table}
    page = page_file("board.html", "board.html", **values)["board.html"].decode()
    assert "Mine &lt;b&gt;" in page and "Mine <b>" not in page


@pytest.mark.parametrize(
    ("gains", "is_bold"),
    [
        ([0.05, 0.06, 0.05, 0.04, 0.05], True),  # an interval above zero
        ([0.30, -0.05, 0.02, -0.04, 0.01], False),  # a better mean, and an interval around zero
        ([0.05, 0.06, 0.05, 0.04], False),  # four seeds
    ],
)
def test_the_best_is_bold_only_if_its_interval_says_so(
    item: Item, environment: BoardEnvironment, gains: Sequence[float], is_bold: bool
) -> None:
    better = [value + gain for value, gain in zip(LOW, gains, strict=False)]
    reported = own(item, {REFERENCE: LOW, "SemiFL": [0.5] * 5, BASELINE: [0.99] * 5})
    rows = rows_of_environment(environment, reported, [sent(strangers(item, better), {"ab" * 8: "Mine"})])
    bold = {name for name, entry in entries(board_table(environment, rows), "Accuracy (%)").items() if entry.best}
    expected = {"Mine"} if is_bold else set()
    if len(gains) < 5:  # it does not compete, and the best of the others is clear
        expected = {REFERENCE}
    assert bold == expected


def test_a_submission_of_another_environment_is_no_row(item: Item, environment: BoardEnvironment) -> None:
    reported = own(item, {REFERENCE: LOW})
    for changes in ({"T": 9}, {"K": 7}, {"rounds": 61}, {"K": "many"}):
        other = sent(strangers(item, LOW, **changes), {"ab" * 8: "Mine"})
        assert [row.by for row in rows_of_environment(environment, reported, [other])] == ["this suite"], changes


def test_who_has_the_labels_is_the_method_s_business(item: Item) -> None:
    """All methods of an environment have one key, and the environments of the board differ."""
    keys = {environment_key(make_record(cell, 0).experiment) for cell in item.cells}
    assert len(keys) == 1
    (others,) = items(["arena/digits"], "laptop")
    assert environment_key(make_record(others.cells[0], 0).experiment) not in keys


def test_environments_without_runs_or_without_a_table_are_left_out(item: Item) -> None:
    assert board_values([], [])["environments"] == []
    shown = board_values([own(item, {REFERENCE: LOW})], [])["environments"]
    assert [part["name"] for part in shown] == ["digits"]


def test_what_is_declared_fits_together() -> None:
    environments, wanted = declared()
    names = {"all", *(environment.name for environment in environments)}
    assert {entry["environment"] for entry in wanted} <= names
    assert all(entry.keys() == {"row", "environment", "needs", "why"} for entry in wanted)
    for environment in shown_environments():
        (found,) = items([environment.item], environment.profile)
        methods = [cell.setting["method"] for cell in found.cells if environment.has(cell)]
        assert environment.reference in methods, environment.name
