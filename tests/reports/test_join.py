"""The JSON object of `fssl reproduce --json` against the design's words, for cells of every status."""

import json
from dataclasses import replace

import pytest

from benchmark.papers.item import Item, Printed
from benchmark.verdicts.results import Records, collect
from reports.cells import grid
from reports.join import item_result
from tests.reports.fakes import accuracies, make_cell, make_record, pair


def four_statuses() -> tuple[Item, Records]:
    """Wanted are three seeds: a has three, b one, c none, d two and one that diverged, e one that never ended."""
    cells = [
        make_cell(n, {"method": n.upper(), "C": 2}, 20 + i, published={"test/accuracy": Printed(value=80.5)})
        for i, n in enumerate("abcde")
    ]
    a, b, c, d, e = cells
    records = {key: dict(runs) for key, runs in accuracies([(a, [0.7, 0.8, 0.9]), (b, [0.5]), (d, [0.6, 0.8])]).items()}
    records[d.cell_key][2] = make_record(d, 2, {"test/accuracy": 0.1}, status="diverged")
    records[e.cell_key] = {0: make_record(e, 0, status="unfinished")}
    return replace(pair(), cells=tuple(cells)), records


def test_every_status() -> None:
    """a: mean 0.8, std 0.1. d: the mean of those that ended, 0.7, std 0.2 / sqrt(2), and its status says diverged."""
    item, records = four_statuses()
    cells = {cell["label"]: cell for cell in item_result(item, records)["cells"]}
    assert {label: cell["status"] for label, cell in cells.items()} == {
        "a": "done",
        "b": "partial",
        "c": "missing",
        "d": "diverged",
        "e": "missing",
    }
    assert {label: cell["n"] for label, cell in cells.items()} == {"a": 3, "b": 1, "c": 0, "d": 2, "e": 0}
    assert (cells["a"]["mean"], cells["a"]["std"]) == (pytest.approx(0.8), pytest.approx(0.1))
    assert (cells["b"]["mean"], cells["b"]["std"]) == (0.5, None)
    assert (cells["c"]["mean"], cells["c"]["std"]) == (None, None)
    assert (cells["d"]["mean"], cells["d"]["std"]) == (pytest.approx(0.7), pytest.approx(0.2 / 2**0.5))
    assert cells["d"]["n_diverged"] == 1
    assert all(cell["published"] == 80.5 and cell["n_wanted"] == 3 for cell in cells.values())


def test_is_plain_json_with_the_keys_of_the_design(laptop_table: tuple[Item, Records]) -> None:
    item, records = laptop_table
    plain = json.loads(json.dumps(item_result(item, records, report="site/index.html"), allow_nan=False))
    assert {"item", "profile", "cells", "claims", "report"} <= set(plain)
    assert (plain["item"], plain["profile"], plain["report"]) == ("ssfl/tab2", "laptop", "site/index.html")
    wanted = {"cell_key", "setting", "label", "role", "published", "mean", "std", "n", "n_wanted", "status"}
    assert all(wanted <= set(cell) for cell in plain["cells"])
    assert all({"text", "verdict", "estimate", "interval", "n"} <= set(claim) for claim in plain["claims"])
    assert [cell["label"] for cell in plain["cells"]] == [cell.label for cell in item.cells]


def test_claims_without_runs_are_undecided_and_null() -> None:
    claim = item_result(pair(), {})["claims"][0]
    assert (claim["verdict"], claim["estimate"], claim["interval"], claim["n"]) == ("undecided", None, None, 0)


def test_grid_puts_methods_in_columns_and_the_rest_in_rows(laptop_table: tuple[Item, Records]) -> None:
    item, records = laptop_table
    table = grid(collect(item, records).values())
    assert table is not None
    assert (table.methods, table.baseline) == (("FedAvg", "Grouping", "Control"), "FedAvg")
    assert [row.name for row in table.rows] == ["small, C = 10", "middle, C = 30", "full, C = 47"]
    assert table.published_methods == ("FedAvg", "Grouping")
    difference = table.rows[2].difference("Grouping", "FedAvg")
    assert difference is not None and difference.seeds == (0, 1)  # seed 2 of FedAvg diverged


def test_what_all_rows_share_stands_outside_the_grid() -> None:
    cells = [make_cell(f"{m}{C}", {"method": m, "K": 47, "C": C}, 30 + C + ord(m)) for C in (2, 5) for m in "AB"]
    table = grid(collect(replace(pair(), cells=tuple(cells), claims=()), {}).values())
    assert table is not None
    assert (table.constant, table.corner, [row.name for row in table.rows]) == ("K = 47", "C", ["C = 2", "C = 5"])


@pytest.mark.parametrize("setting", [{"C": 2}, {"method": "A", "C": 2}])
def test_no_grid_without_methods_or_with_two_cells_in_one_place(setting: dict[str, str | int | float]) -> None:
    """The second cell has no method, or falls on the first one's place."""
    cells = (make_cell("a", {"method": "A", "C": 2}, 41), make_cell("b", setting, 42))
    assert grid(collect(replace(pair(), cells=cells, claims=()), {}).values()) is None
