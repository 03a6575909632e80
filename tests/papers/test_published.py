"""What the papers print: every number stands in the paper's text and in an independent transcription."""

import math
import re

import pytest

from benchmark.papers.published import PUBLISHED, claims_of, read_published
from tests.conftest import ROOT

SHARED = ROOT.parent / "shared"
SSFL = sorted(path.stem for path in (PUBLISHED / "ssfl").glob("*.toml") if path.stem != "departures")  # ours
RESULTS = [name for name in SSFL if read_published(f"ssfl/{name}").get("kind", "table") != "settings"]
YAML_NAMES = {"cifar10": "CIFAR10", "svhn": "SVHN", "emnist_balanced": "EMNIST", "stl10": "STL10"}
# Where the text is printed: after the caption of a table; for a figure, in the section that speaks of it.
FIGURE_TEXT = {
    "fig5_left": r"# 4\.1 Impact of.*# 4\.2 Impact",
    "figc1": r"# 4\.2 Impact of.*# 4\.3 Comparing",
}


@pytest.fixture(scope="module")
def paper_text() -> str:
    path = SHARED / "papers" / "ssfl_gradient_diversity.md"
    if not path.exists():
        pytest.skip("the paper's text is not here")
    return path.read_text()


def test_every_table_and_figure_with_numbers_is_transcribed(transcribed):
    """All ids of the paper but Figure 1, a drawing; both panels of Figure 2 are one file."""
    ids = {name.removeprefix("ssfl.") for name in transcribed if name.startswith("ssfl.")}
    assert ids - {"fig1", "fig2_left", "fig2_right"} | {"fig2"} == set(SSFL)


@pytest.mark.parametrize("name", SSFL)
def test_files_name_themselves_and_their_source(name):
    published = read_published(f"ssfl/{name}")
    assert (published["paper"], published["item"]) == ("ssfl", name)
    assert published["source"].startswith("arXiv:2008.11364, ") and published["title"]


@pytest.mark.parametrize("name", RESULTS)
def test_every_value_is_printed_where_the_file_says(name, paper_text):
    """A table's values follow its caption or stand between its caption and the next; a figure's are in the text."""
    published = read_published(f"ssfl/{name}")
    values = [c for c in published["cells"] if "value" in c and not str(c.get("source", "")).startswith("Table ")]
    if "cells_of" in published or not values:
        assert "printed" in published
        return
    if name in FIGURE_TEXT:
        found = re.search(FIGURE_TEXT[name], paper_text, re.DOTALL)
        assert found is not None
        region = found.group()
    else:
        number = name.removeprefix("tab")
        number = number if number.isdigit() else f"{number[0].upper()}.{number[1:]}"
        caption = f"**Table {number}:**"
        assert paper_text.count(caption) == 1
        region = paper_text.split(caption)[1][:1400]
    for value in [cell["value"] for cell in values]:
        assert re.search(rf"(?<![\d.]){re.escape(f'{value:g}')}0?\\?%", region), value


@pytest.mark.parametrize("name", [name for name in RESULTS if name not in ("fig2", "tabd1")])
def test_values_and_settings_equal_the_independent_transcription(name, transcribed):
    """Cell by cell in its order; cells without a value there (dashes, bars, curves) have none here.

    Left out: Figure 2, which is two documents there, and Table D.1, which is missing and has other tables' values.
    """
    theirs = [cell for cell in transcribed[f"ssfl.{name}"]["cells"] if cell.get("mean") is not None]
    file = read_published(f"ssfl/{name}")
    ours = [c for c in file["cells"] if "value" in c and c.get("source") != "Table 2" and "cells_of" not in file]
    if name == "tab2":  # it lists FedAvg first, as the table does
        assert sorted(c["value"] for c in ours) == sorted(c["mean"] for c in theirs)
        return
    assert [cell["value"] for cell in ours] == [cell["mean"] for cell in theirs]
    names = {"R": "R", "T": "T", "Ns": "N_s", "K": "K", "C": "C", "S": "S", "E": "E"}
    for mine, other in zip(ours, theirs, strict=True):
        if "dataset" in other:
            assert YAML_NAMES[mine["data"]] == other["dataset"]
        same = {names[key]: value for key, value in other.items() if key in names and value is not None}
        assert {key: mine[key] for key in same} == same
        assert ("copied_from" in other) == mine.get("quoted", False)


def test_figure_2_has_the_transcribed_methods(transcribed):
    assert len(read_published("ssfl/fig2")["cells"]) == sum(
        len(transcribed[f"ssfl.fig2_{side}"]["cells"]) for side in ("left", "right")
    )


def numbers(field: str) -> list[float]:
    """The numbers of a LaTeX field: "$\\{10^3, 2 \\times 10^3\\}$" -> [1000, 2000]; powers and products multiplied."""
    found = []
    for part in re.sub(r"[${}\\]", "", field).replace("times", "*").split(","):
        factors = [re.sub(r"\s", "", factor) for factor in part.split("*")]
        if all(re.fullmatch(r"[\d.]+(\^\d+)?", factor) for factor in factors):
            found.append(math.prod(float(b) ** float(e or 1) for b, _, e in (f.partition("^") for f in factors)))
    return found


def test_table_a2_is_the_paper_s(paper_text):
    """Row by row: data set, method, and all numbers that are printed (the dots between them left out)."""
    lines = [line.split("\t") for line in paper_text.splitlines() if line.count("\t") == 9]
    short = {"Cifar10": "cifar10", "SVHN": "svhn", "EMNIST": "emnist_balanced", "STL-10": "stl10"}
    printed = {int(fields[1]): fields for fields in lines if fields[2] in short}
    rows = {row["row"]: row for row in read_published("ssfl/taba2")["cells"]}
    assert sorted(printed) == sorted(rows) == list(range(1, 51))
    for row, (_, _, data, method, *fields) in printed.items():
        ours = rows[row]
        assert (ours["data"], ours["method"]) == (short[data], method)
        for key, field in zip(("R", "T", "N_s", "C", "K", "S"), fields, strict=True):
            found = numbers(field.removeprefix("-/"))
            assert found == [value for value in ours[key] if value in found], (row, key)
            assert ("dots" in field) or len(found) == len(ours[key]), (row, key)


def test_dots_in_table_a2_stand_for_even_steps():
    rows = {row["row"]: row for row in read_published("ssfl/taba2")["cells"]}
    assert rows[1]["R"] == pytest.approx([i / 10 for i in range(11)])
    assert rows[4]["T"] == [2**i for i in range(1, 6)]
    assert rows[7]["N_s"] == [1000 * i for i in range(1, 6)]


@pytest.mark.parametrize("name", RESULTS)
def test_cells_have_the_settings_of_their_rows(name):
    """Every number of a cell is among those of its row of Table A.2, or the cell says in what it departs."""
    rows = {row["row"]: row for row in read_published("ssfl/taba2")["cells"]}
    for cell in read_published(f"ssfl/{name}")["cells"]:
        if "row" not in cell:
            continue
        row = rows[cell["row"]]
        departs = cell.get("departs", "").split(":")[0].split(", ")
        assert row["data"] == cell["data"]
        for key in ("R", "T", "N_s", "K", "C", "S"):
            if key in cell and row[key] and key not in departs:
                assert cell[key] in row[key], (cell, key)


CLAIM = {
    "name": "More is better",
    "quote": "",
    "source": "ours",
    "data": ["a", "b"],
    "contrast": {"{data}/x": 1.0, "{data}/y": -1.0},
    "form": "improves",
    "least": 0.01,
}


def test_a_claim_over_data_sets_is_one_for_each():
    claims = claims_of({"claims": [CLAIM]}, {"a": "A", "b": "B"})
    assert [claim.name for claim in claims] == ["More is better (A)", "More is better (B)"]
    assert [dict(claim.contrast) for claim in claims] == [{"A/x": 1.0, "A/y": -1.0}, {"B/x": 1.0, "B/y": -1.0}]


def test_a_claim_over_one_stand_in_is_judged_once():
    """Two claims that the stand-in makes the same contrast are one, so that it is not corrected for twice."""
    again = CLAIM | {"name": "Again", "data": ["b"]}
    (claim,) = claims_of({"claims": [CLAIM, again]}, {"a": "MNIST", "b": "MNIST"})
    assert (claim.name, dict(claim.contrast)) == ("More is better", {"MNIST/x": 1.0, "MNIST/y": -1.0})
    within = CLAIM | {"name": "Within", "form": "comparable"}
    assert len(claims_of({"claims": [CLAIM, within]}, {"a": "MNIST", "b": "MNIST"})) == 2


def test_a_claim_has_the_hour_and_commit_of_its_file_or_both_of_its_own(monkeypatch, tmp_path):
    """One with an hour of its own has not the file's commit; a day without its hour in UTC is refused."""
    (tmp_path / "ssfl").mkdir()
    file = (PUBLISHED / "ssfl" / "tabf1.toml").read_text()
    monkeypatch.setattr("benchmark.papers.published.PUBLISHED", tmp_path)

    def read(made: str) -> list[tuple[str, str]]:
        own = file.replace("[[claims]]\n", f"[[claims]]\n{made}\n", 1)
        own = re.sub("claims_made.*", "claims_made = 2026-11-22T10:42:44Z", own)
        (tmp_path / "ssfl" / "tabf1.toml").write_text(re.sub("claims_commit.*", 'claims_commit = "1938163"', own))
        return [(f"{c['made']:%d %H:%M}", c.get("commit", "")) for c in read_published("ssfl/tabf1")["claims"]]

    file = re.sub("\nmade .*\ncommit .*", "", file)
    assert set(read("")) == {("22 10:42", "1938163")}
    assert read("made = 2026-11-25T14:05:00Z")[:2] == [("25 14:05", ""), ("22 10:42", "1938163")]
    assert read('made = 2026-11-25T14:05:00Z\ncommit = "abc1234"')[0] == ("25 14:05", "abc1234")
