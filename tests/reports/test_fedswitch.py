"""FedSwitch's Table 1 and Figures 2 and 3 as pages show them: values that no run writes, cells without runs."""

from dataclasses import replace

import pytest

from benchmark.papers.catalogue import items
from benchmark.records.record import RunRecord
from reports.item_figures import figure_csv
from reports.paper_table import item_tables
from reports.properties import property_tables
from reports.reported import Reported
from reports.results import runs_frame


def one(name, profile="demo"):
    (item,) = items([f"fedswitch/{name}"], profile)
    return replace(item, seeds=1)


def record(cell, **result) -> RunRecord:
    """Sixteen rounds, of which the last counts: half the divergence of the truth."""
    line = {"test/accuracy": 0.5, "pseudo/kl_uniform": 0.4, "pseudo/kl_true": 0.8}
    result = {"status": "done", "last": line, **result}
    rounds = [{"round": t, **line} for t in range(1, 17)]
    return RunRecord(
        cell_key=cell.cell_key, seed=0, experiment={"model": {"norm": "gn"}}, manifest={}, result=result, rounds=rounds
    )


def client(received, sent):
    found = {"received": received, "sent": sent, "kept": {}, "views": ["unlabelled/weak"], "trains": True}
    return {"training": "alternate", "pseudo_labels": True, "state": {"student": 4}, "holders": {"client": found}}


def test_table_1_has_what_was_handed_over_beside_the_print():
    item = one("tab1")
    cell = item.cell("FedSwitch")
    handed = client({"student": 4, "teacher": 4}, {"student": 4, "kl_student": 8})
    records = {cell.cell_key: {0: record(cell, exchange=handed)}}
    (table,) = item_tables(Reported(item, records))
    rows = {row.entries[0].text: [entry.text for entry in row.entries[1:]] for row in table.rows}
    assert rows["FedSwitch"] == ["no", "yes", "yes", "yes", "yes", "yes"]  # ours and print, property by property
    assert rows["FedMatch"][1::2] == ["no", "yes", "no"] and rows["FedSEAL"][1::2] == ["yes", "no", "no"]
    (found,) = property_tables(Reported(item, records))
    assert found.rows[0].entries[1].below == ("clients also send kl_student",)


def test_figure_2_has_columns_without_a_run():
    (table,) = item_tables(Reported(one("fig2"), {}))
    assert [column.name for column in table.columns] == ["alpha", "classes a client", "KL, nats"]
    assert "mean" not in table.caption and len(runs_frame([Reported(one("fig2"), {})])) == 0


def test_a_ratio_stands_in_table_and_file():
    item = one("fig3_right")
    cell = item.cells[0]
    records = {cell.cell_key: {0: record(cell)}}
    (table, *_) = item_tables(Reported(item, records))
    assert "0.5" in [entry.text for entry in table.rows[0].entries]
    frame = runs_frame([Reported(item, records)])
    assert frame[frame["metric"] == "pseudo/kl_ratio"]["value"].tolist() == [0.5]
    points = figure_csv(Reported(item, records))
    assert points[points["metric"] == "pseudo/kl_ratio"][["round", "value"]].to_numpy().tolist() == [
        [16, pytest.approx(0.5)]
    ]
