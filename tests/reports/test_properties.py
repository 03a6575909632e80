"""Tables of properties: what the summaries of runs say, and nothing that they do not."""

from dataclasses import replace

import pytest

from benchmark.methods.semifl import SemiFL
from benchmark.records.record import RunRecord, run_folder
from benchmark.records.run import run
from reports.properties import Mark, fedswitch_table1, seen_by_method, semifl_table2
from tests.conftest import record_of, tiny_experiment

STUDENT = {"student": 4}


def holder(received=STUDENT, sent=STUDENT, kept=None, views=("unlabelled/weak",)):
    return {"received": received, "sent": sent, "kept": kept or {}, "views": list(views), "trains": True}


def record(method: str, norm: str = "gn", **changes) -> RunRecord:
    exchange = {
        "training": "parallel",
        "pseudo_labels": True,
        "state": {"student": 4},
        "holders": {"server": holder(views=["labelled/weak"]), "client": holder()},
        **changes,
    }
    return RunRecord(
        cell_key="c",
        seed=0,
        experiment={"method": {"kind": method}, "model": {"norm": norm}},
        manifest={},
        result={"status": "done", "exchange": exchange},
        rounds=[],
    )


def clients(**changes):
    return {"server": holder(views=["labelled/weak"]), "client": holder(**changes)}


def column(table, method):
    return {name: marks[table.columns.index(method)] for name, marks in table.rows.items()}


def test_clients_that_send_more_than_updates_lose_privacy_by_name():
    """FedSwitch: students and teachers come, students and two numbers go."""
    fedswitch = record(
        "fedswitch",
        holders=clients(received={"student": 4, "teacher": 4}, sent={"student": 4, "kl_teacher": 8, "kl_student": 8}),
    )
    found = column(fedswitch_table1([fedswitch]), "fedswitch")
    assert found["Privacy"] == Mark(text="no", seen="clients also send kl_student, kl_teacher")
    assert found["Statelessness"] == Mark(text="yes") and found["EMA smoothing"] == Mark(text="yes")


def test_each_property_by_itself():
    table = fedswitch_table1(
        [
            record("plain"),
            record("keeper", holders=clients(kept={"momentum": 4})),
            record("server teacher", state={"teacher": 4}),
            record("central", holders={"central": holder(kept=STUDENT)}),
        ]
    )
    assert table.columns == ("central", "keeper", "plain", "server teacher")
    assert column(table, "plain") == {
        "Privacy": Mark(text="yes", seen="clients send student; receive student"),
        "Statelessness": Mark(text="yes"),
        "EMA smoothing": Mark(text="no"),
    }
    assert column(table, "keeper")["Statelessness"] == Mark(text="no", seen="clients keep momentum")
    assert column(table, "server teacher")["EMA smoothing"].text == "yes"
    assert [column(table, "central")[name].text for name in ("Privacy", "Statelessness")] == ["-", "-"]


def test_one_run_that_keeps_something_is_enough():
    """Two runs of one method stand in one column: a property holds where it holds in all of them."""
    table = fedswitch_table1([record("m"), record("m", holders=clients(kept={"momentum": 4}))])
    assert column(table, "m")["Statelessness"].text == "no"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("yes", "no", "Weak", "Parallel", "GN")),
        (
            {"holders": clients(views=["fix/strong", "fix/weak", "mix/weak"]), "training": "alternate"},
            ("yes", "yes", "Strong + Mixup", "Alternate", "GN"),
        ),
        (
            {"pseudo_labels": False, "holders": {"server": holder(views=["labelled/strong"])}, "training": "none"},
            ("no", "no", "Strong", "None", "GN"),
        ),
        ({"holders": clients(views=["unlabelled/weak", "unlabelled/weak2"])}, ("yes", "no", "Weak", "Parallel", "GN")),
        ({"holders": clients(views=["unlabelled/plain"])}, ("yes", "no", "None", "Parallel", "GN")),
    ],
)
def test_the_row_of_a_method(changes, expected):
    assert tuple(mark.text for mark in semifl_table2([record("m", **changes)]).rows["m"]) == expected


def test_runs_with_several_norms_name_them():
    table = semifl_table2([record("m", norm="sbn"), record("m", norm="none")])
    assert str(table.rows["m"][-1]) == "None or sBN"


def test_records_without_an_exchange_are_passed_over():
    """Records of before it was noted, and unfinished ones."""
    old = replace(record("old"), result={"status": "done"})
    assert list(seen_by_method([old, replace(old, result={}), record("new")])) == ["new"]


def test_markdown_has_a_line_a_row():
    lines = fedswitch_table1([record("a"), record("b")]).markdown().splitlines()
    assert lines[:2] == ["| Property | a | b |", "| --- | --- | --- |"]
    assert lines[3] == "| Statelessness | yes | yes |" and len(lines) == 5


def test_the_published_row_of_semifl_comes_from_its_run(tmp_path):
    """SemiFL Table 2: pseudo-labels, consistency, "Strong + Mixup", "Alternate", "sBN"; from a run of three rounds."""
    tiny = tiny_experiment()
    semifl = replace(tiny, method=SemiFL(threshold=0.0), model=replace(tiny.model, norm="sbn"))
    for experiment in (tiny, semifl):
        run(experiment, tmp_path)
    records = [record_of(run_folder(tmp_path, experiment)) for experiment in (tiny, semifl)]
    rows = semifl_table2(records).rows
    assert [mark.text for mark in rows["semifl"]] == ["yes", "yes", "Strong + Mixup", "Alternate", "sBN"]
    assert [mark.text for mark in rows["ssfl"]] == ["yes", "yes", "Strong", "Parallel", "GN"]
    properties = column(fedswitch_table1(records), "semifl")
    assert properties["Privacy"].seen == "clients also send batches, statistics"
