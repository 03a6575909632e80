"""The columns of open-set comparisons, by hand; other tables have none."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmark.methods.fedavg_fixmatch import FedAvgFixMatch
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Cell, Item
from benchmark.records.record import RunRecord
from reports.arena import reference_arena
from reports.arena_tables import arena_rows, arena_tables
from reports.item_results import ItemResults
from reports.tables import markdown_of
from tests.methods.watch import tiny_with
from tests.reports.fakes import arena_cell, make_record, small

KEPT = {"pseudo/kept": 0.5}


def ends(accuracy: float, auroc: float, fpr95: float) -> dict[str, float]:
    return {"test/accuracy": accuracy, "test/unknown_auroc": auroc, "test/unknown_fpr95": fpr95, **KEPT}


def open_cell(name: str, key: int, **more) -> Cell:
    cell = arena_cell(name, "untuned", key, **more)
    return replace(cell, experiment=replace(cell.experiment, method=FedAvgFixMatch(), data=OPEN))


OPEN = tiny_with(FedAvgFixMatch(), "open").data
A, B, BOUND = open_cell("A", 960), open_cell("B", 961), open_cell("S", 962, role="bound")
BOUND = replace(BOUND, experiment=replace(BOUND.experiment, method=ServerOnly()))


def reported(*runs: tuple[Cell, Mapping[int, Mapping[str, float]]]) -> ItemResults:
    item = Item(name="arena/toy", title="Toy", profile="demo", cells=(A, B, BOUND), seeds=3, rows=("method",))
    records: dict[str, dict[int, RunRecord]] = {}
    for cell, last in runs:
        records[cell.cell_key] = {seed: make_record(cell, seed, values) for seed, values in last.items()}
    return ItemResults(item, records)


def test_means_over_common_seeds_stand_after_the_accuracy():
    """A has the seeds 0 to 3, B 0 to 2: A's AUROC is the mean of .7, .8 and .9, without seed 3. The bound has one seed,
    whose run measured no FPR95."""
    of_a = {seed: ends(0.9, auroc, 0.2) for seed, auroc in enumerate([0.7, 0.8, 0.9, 0.1])}
    of_b = {seed: ends(0.8, 0.6, fpr95) for seed, fpr95 in enumerate([0.4, 0.5, 0.6])}
    told = reported((A, of_a), (B, of_b), (BOUND, {0: {"test/accuracy": 0.5, "test/unknown_auroc": 0.55}}))
    (table,) = arena_tables(told)
    assert table.heads()[:5] == ["Method", "Known accuracy", "AUROC", "FPR95", "To the best"]
    text = markdown_of(table)
    assert "| A | 90.00 ±0.00 | 80.00 ±10.00 | 20.00 ±0.00 | best |" in text
    assert "| B | 80.00 ±0.00 | 60.00 ±0.00 | 50.00 ±10.00 | -10.00" in text
    assert "| S | 50.00 n=1 | 55.00 |  |" in text
    assert all(len(row.entries) == len(table.columns) for row in table.rows)
    rows = {row["label"]: row for row in arena_rows(told)}
    assert rows["A/untuned"]["unknown_auroc_mean"] == pytest.approx(0.8)
    assert rows["B/untuned"]["unknown_fpr95_mean"] == pytest.approx(0.5)
    assert rows["S/untuned"]["unknown_auroc_mean"] is None  # means of bounds are in no row


def test_other_comparisons_have_no_such_column():
    item, records = small()
    table, *_ = arena_tables(ItemResults(item, records))
    assert not {"AUROC", "FPR95"} & set(table.heads())
    assert not any("unknown" in name for row in arena_rows(ItemResults(item, records)) for name in row)


def test_methods_are_not_listed_by_their_accuracy_on_known_classes():
    values = {seed: ends(0.9, 0.8, 0.2) for seed in range(5)}
    assert reference_arena([reported((A, values), (B, values))]) is None
    closed = ItemResults(*small())
    found = reference_arena([reported((A, values), (B, values)), closed])
    assert found is not None and found[0] is closed
