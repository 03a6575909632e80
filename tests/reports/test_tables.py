"""The tables for other programs: results/summary.csv, and an item as CSV and LaTeX."""

import csv
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import CannotWrite, DataError
from benchmark.papers.item import Item, Printed
from benchmark.records.files import write_atomically
from benchmark.verdicts.results import Records
from reports.exports import table_csv, table_latex
from reports.files import slug
from reports.summary import COLUMNS, summary_csv, write_summary
from reports.words import csv_safe, latex, points, without_dollars
from tests.reports.fakes import accuracies, make_cell, make_record, pair


def two_cells() -> tuple[Item, Records]:
    """Two seeds wanted. a: seed 0 done with two metrics, seed 1 diverged with none. b: seed 0 killed, seed 1 absent."""
    item = replace(pair(), seeds=2)
    a, b = item.cells
    return item, {
        a.cell_key: {
            1: make_record(a, 1, {}, status="diverged", rounds=[{"round": 1}, {"round": 2}]),
            0: make_record(a, 0, {"test/loss": 0.25, "test/accuracy": 0.1 + 0.2}),
        },
        b.cell_key: {0: make_record(b, 0, status="unfinished", rounds=[])},
    }


def test_summary_has_a_row_for_what_is_absent_too() -> None:
    """0.1 + 0.2 is written as the double it is."""
    item, records = two_cells()
    a, b = (cell.cell_key for cell in item.cells)
    assert summary_csv([(item, records)]).splitlines() == [
        ",".join(COLUMNS),
        f"toy/tab1,demo,a,{a},0,test/accuracy,0.30000000000000004,1,done",
        f"toy/tab1,demo,a,{a},0,test/loss,0.25,1,done",
        f"toy/tab1,demo,a,{a},1,,,2,diverged",
        f"toy/tab1,demo,b,{b},0,,,0,unfinished",
        f"toy/tab1,demo,b,{b},1,,,0,missing",
    ]


def test_summary_does_not_depend_on_the_order_of_its_input(tmp_path: Path) -> None:
    item, records = two_cells()
    other = replace(item, profile="paper")
    turned = {key: dict(reversed(list(runs.items()))) for key, runs in reversed(list(records.items()))}
    write_summary([(item, records), (other, records)], tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_text() == summary_csv([(other, turned), (item, turned)])


def test_summary_keeps_the_lines_of_other_items(tmp_path: Path) -> None:
    """The other profile's stay; the item's own come anew: with seed 0 of b, then without it, and with 10 after 9."""
    item, records = two_cells()
    other = replace(item, profile="paper", seeds=11)
    path = tmp_path / "summary.csv"
    write_summary([(item, records), (other, records)], path)
    fewer = {key: runs for key, runs in records.items() if key == item.cells[0].cell_key}
    write_summary([(item, fewer)], path)
    assert path.read_text() == summary_csv([(item, fewer), (other, records)])
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="its columns are a, b; item, profile"):
        write_summary([(item, records)], path)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+1+cmd", "'+1+cmd"),
        ("\t=1", "'\t=1"),
        ("-0.5", "-0.5"),
        ("+1e-5", "+1e-5"),
        (-0.25, "-0.25"),
        ("R = 0.4", "R = 0.4"),
    ],
)
def test_no_field_is_a_formula(value: object, written: str) -> None:
    assert csv_safe(value) == written


@given(st.text())
def test_text_fields_never_begin_like_a_formula(text: str) -> None:
    field = csv_safe(text)
    if field[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"}:
        float(field)  # only numbers may
    assert field.removeprefix("'") == text.removeprefix("'")


def test_item_csv_reads_back() -> None:
    """Fractions for ours, percent for the published number, empty where there is nothing."""
    cells = (
        make_cell("=evil", {"method": "A", "C": 2}, 51, published={"test/accuracy": Printed(value=83.07)}),
        make_cell("b, quoted", {"method": "B", "C": 2}, 52),
    )
    item = replace(pair(), cells=cells, claims=())
    rows = list(csv.DictReader(io.StringIO(table_csv(item, accuracies([(cells[0], [0.5, 0.75])])))))
    assert rows[0]["label"] == "'=evil" and rows[1]["label"] == "b, quoted"
    assert (rows[0]["published_percent"], rows[0]["mean"], rows[0]["n"], rows[0]["status"]) == (
        "83.07", "0.625", "2", "partial",
    )  # fmt: skip
    assert (rows[1]["published_percent"], rows[1]["mean"], rows[1]["status"]) == ("", "", "missing")


def test_item_latex() -> None:
    """0.5 and 0.75: mean 62.50, std 25 / sqrt(2) = 17.68 points."""
    cells = (
        make_cell("a", {"method": "Fed_Avg & co", "C": 2}, 51, published={"test/accuracy": Printed(value=83.07)}),
        make_cell("b", {"method": "B", "C": 2}, 52),
    )
    item = replace(pair(), cells=cells, claims=())
    text = table_latex(item, accuracies([(cells[0], [0.5, 0.75])]))
    assert r" & Fed\_Avg \& co (published) & Fed\_Avg \& co & B & B - Fed\_Avg \& co \\" in text
    assert r" & 83.07 & 62.50 $\pm$17.68 (n=2/3) & not run (0/3) & -- \\" in text
    assert text.count("&") - text.count(r"\&") == 4 * text.count(r"\\")  # as many fields in each row


def test_latex_escapes_every_special_character() -> None:
    assert latex(r"\input{x} 5% $a_b^c$ #~") == (
        r"\textbackslash{}input\{x\} 5\% \$a\_b\textasciicircum{}c\$ \#\textasciitilde{}"
    )


def test_points_are_signed_and_zero_is_not_negative() -> None:
    assert [points(x) for x in (0.0136, -0.0136, -0.00001, None)] == ["+1.36", "-1.36", "+0.00", "-"]


def test_quotes_lose_the_dollars_of_symbols_only() -> None:
    assert without_dollars("a large $C$, $K = 47$") == "a large C, K = 47"
    assert without_dollars(r"$\frac{1}{2}$ of 5$") == r"$\frac{1}{2}$ of 5$"


@given(st.text())
def test_slug_cannot_leave_its_folder(name: str) -> None:
    file = slug(name)
    assert file and "/" not in file and ".." not in file and not file.startswith((".", "-"))
    assert file.isascii() and file == file.lower()
    assert slug(file) == file


def test_slugs_of_different_names_differ() -> None:
    names = ["a b", "a-b", "A b", "a/b", "..", "", "<script>", "fedavg"]
    assert len({slug(name) for name in names}) == len(names)
    assert slug("fedavg") == "fedavg"


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last step fails, the old file stays and no half file lies beside it."""
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CannotWrite, match="file.txt: cannot be written .Permission denied"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


def test_a_file_with_the_same_content_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"same")
    os.utime(path, (1, 1))
    write_atomically(path, b"same")
    assert path.stat().st_mtime == 1
