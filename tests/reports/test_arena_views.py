"""The arena as people and programs see it: the terminal character by character, the page, the exports, the figures."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records
from reports.arena.exports import arena_csv, arena_latex, arena_markdown
from reports.arena.text import megabytes
from reports.join import item_result
from reports.site import build
from tests.reports.arena_fakes import ONE_MORE_CLIENT, arena, arena_records, line, run_of, small, two_rounds
from tests.reports.test_site import HOSTILE, Page, words
from tests.reports.test_terminal import printed

SMALL = """\
arena/toy  Toy
profile demo; test accuracy in percent at equal rounds, at equal local steps, at equal bytes

own hyperparameters: compared at 2 rounds; 20 local steps; 1 MB up + down
3 common seeds, below the 5 that ranks need. Letters are groups of ties: a new one begins where the
difference to the group's first method has a 95 % interval (paired by seed, Bonferroni over 1
comparison) without zero

                 equal                       equal    equal     steps        MB
 method         rounds         every seed    steps    bytes  of a run  of a run
 ──────────────────────────────────────────────────────────────────────────────
 A       91.00 ±1.00 a     90.0 91.0 92.0  91.00 a  50.00 b        20         2
 B [1]   81.00 ±1.00 b     80.0 82.0 81.0  70.00 b  81.00 a        40         1
 C                          not run (0/3)
 D                      n=0/3, 1 diverged
 ──────────────────────────────────────────────────────────────────────────────
 S [2]     65.00 ±0.00     65.0 65.0 65.0


tuned hyperparameters
no finished run yet

                    equal                    equal  equal     steps        MB
 method            rounds        every seed  steps  bytes  of a run  of a run
 ────────────────────────────────────────────────────────────────────────────
 A                         waits for trials
 ────────────────────────────────────────────────────────────────────────────
 S (own) [2]  65.00 ±0.00    65.0 65.0 65.0

[1] the server's labels are one more client's
[2] labels alone
note: Six settings a method.
report: site/index.html
"""


def test_terminal_character_by_character() -> None:
    """A - B: .10 .09 .11, +-2.48 std: b. Of 20 steps B had one round (70); of 1 MB A had one (50): B leads there."""
    assert printed(*small(), report="site/index.html") == SMALL


def test_a_bound_with_a_diverged_run_shows_no_mean() -> None:
    item, records = small()
    s = item.cells[4]
    runs = {**records[s.cell_key], 2: two_rounds(s, 2, 0.1, 0.1, 10, 0, status="diverged")}
    text = printed(item, {**records, s.cell_key: runs})
    assert text.count("n=2/3, 1 diverged") == 2 and "65.0" not in text  # the bound stands in both columns


def test_one_seed_is_one_group_and_says_so() -> None:
    item, records = small(1)
    text = printed(replace(item, seeds=1), records)
    assert "1 common seed: no interval, so all methods are one group of ties" in text
    assert "90.00 a" in text and "80.00 a" in text


@pytest.mark.parametrize(("seeds", "encoding"), [(1, "utf-8"), (4, "utf-8"), (5, "utf-8"), (5, "ascii")])
def test_fits_100_columns(seeds: int, encoding: str) -> None:
    item = arena(seeds)
    text = printed(item, arena_records(item), encoding)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert ("5 common seeds: ranks by mean" in text) == (seeds == 5)


def test_ranks_stand_before_values_and_intervals_beside_them() -> None:
    item = arena(5)
    rows = [text.split() for text in printed(item, arena_records(item)).splitlines()]
    first = next(row for row in rows if "best" in row and "1." in row)
    second = next(row for row in rows if row[1:2] == ["2."])
    assert first[1] == "1." and second[4].startswith("-") and second[5].startswith("[")


def test_no_value_is_a_dash_and_sorts_last(tmp_path: Path) -> None:
    """B's first evaluation comes after A's whole budget of steps."""
    item, records = small()
    b = item.cells[1]
    late = {i: run_of(b, i, [line(None, 50, 1e5), line(0.8 + 0.01 * i, 50, 1e5)]) for i in range(3)}
    records = {**records, b.cell_key: late}
    row = next(text.split() for text in printed(item, records).splitlines() if text.startswith(" B"))
    assert row[8] == "-"  # after the name, its mark, mean, spread, group and three seeds
    build([(item, records)], tmp_path)
    page = (tmp_path / "arena/toy/demo/index.html").read_text()
    assert '<td data-value="-1" class="none">-</td>' in page


def test_json_has_values_budgets_and_groups() -> None:
    plain = json.loads(json.dumps(item_result(*small()), allow_nan=False))
    assert {"cells", "claims", "notes", "report"} <= set(plain) and len(plain["cells"]) == 5
    own, tuned = plain["arena"]["columns"]
    assert (own["value"], own["seeds"], own["ranked"]) == ("own", [0, 1, 2], False)
    assert own["budget"] == {"rounds": 2, "steps": 20.0, "bytes": 1e6}
    a, b = own["methods"]
    assert (a["label"], a["cost"]) == ("A/own", {"steps": 20.0, "bytes": 2e6})
    assert a["rounds"]["values"] == {"0": 0.9, "1": 0.91, "2": 0.92}
    assert (a["bytes"]["mean"], a["bytes"]["group"], a["bytes"]["rank"]) == (0.5, "b", None)
    assert (b["steps"]["mean"], b["steps"]["group"]) == (pytest.approx(0.7), "b")
    assert [(one["label"], one["status"]) for one in own["not_compared"]] == [
        ("C/own", "missing"),
        ("D/own", "diverged"),
    ]
    assert own["bounds"][0]["mean"] == pytest.approx(0.65)
    assert tuned["waiting"] == ["A/tuned"] and tuned["budget"] == {"rounds": None, "steps": None, "bytes": None}


def test_json_has_ranks_and_intervals_from_five_seeds_on() -> None:
    """Nine methods: the level of each interval is 1 - .05 / 8."""
    item = arena(5)
    (own, _) = item_result(item, arena_records(item))["arena"]["columns"]
    first, second, *_ = own["methods"]
    assert (own["ranked"], first["rounds"]["rank"], first["rounds"]["to_best"]) == (True, 1, None)
    assert second["rounds"]["to_best"]["level"] == 1 - 0.05 / 8 and second["rounds"]["group"] is None


def test_other_items_have_no_arena(laptop_table: tuple[Item, Records]) -> None:
    assert "arena" not in item_result(*laptop_table)


def test_csv_has_a_line_a_cell_and_one_for_what_waits() -> None:
    rows = list(csv.DictReader(io.StringIO(arena_csv(*small()))))
    assert [row["label"] for row in rows] == ["A/own", "B/own", "C/own", "D/own", "S/own", "A/tuned"]
    a, b, c, d, s, waits = rows
    assert (float(a["rounds_mean"]), a["rounds_group"], float(a["bytes_mean"])) == (pytest.approx(0.91), "a", 0.5)
    assert (float(b["local_steps"]), float(b["budget_local_steps"]), b["note"]) == (40.0, 20.0, ONE_MORE_CLIENT)
    assert (c["status"], d["status"], c["rounds_mean"], d["rounds_mean"]) == ("missing", "diverged", "", "")
    assert (s["role"], s["rounds_mean"], float(s["mean"])) == ("bound", "", pytest.approx(0.65))
    assert (waits["status"], waits["cell_key"], waits["hyperparameters"]) == ("waits for trials", "", "tuned")


def test_latex_and_markdown_rows_have_as_many_fields_as_their_head() -> None:
    for seeds in (3, 5):
        item = arena(seeds)
        records = arena_records(item)
        fields = 6 + (seeds == 5)
        latex = [text for text in arena_latex(item, records).splitlines() if text.endswith(r"\\")]
        assert {text.count(" & ") for text in latex} == {fields - 1}
        markdown = [text for text in arena_markdown(item, records).splitlines() if text.startswith("|")]
        assert {text.count("|") for text in markdown} == {fields + 1}
        assert len(latex) == 2 * (1 + 14) and len(markdown) == 2 * (2 + 14)


def hostile() -> tuple[Item, Records]:
    """Names and notes that are markup somewhere, all of it escaped."""
    item, records = small()
    names = [HOSTILE, "a|b", "x\ny", "=1+1", "_z"]
    cells = [
        replace(c, setting={**c.setting, "method": name}, note=f"{name} note")
        for c, name in zip(item.cells, names, strict=True)
    ]
    return replace(item, cells=tuple(cells)), records


def test_exports_escape_names() -> None:
    item, records = hostile()
    assert r"a\|b" in arena_markdown(item, records) and "<script>" not in arena_markdown(item, records)
    assert all(
        text.startswith(("|", "**", "1", "2", "3", "4", "5", "Toy"))
        for text in arena_markdown(item, records).splitlines()
        if text
    )
    assert "'=1+1" in arena_csv(item, records)
    assert all(text.startswith("%") or "note" not in text for text in arena_latex(item, records).splitlines())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("arena")
    item, records = hostile()
    build([small(), (replace(item, name="arena/hostile"), records)], out)
    return out / "arena"


def test_pages_are_well_formed_and_their_links_lead_somewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    # the arena's own and its departures; two items of five cells each
    assert len([path for path in pages if path.parent.parent.name != "runs"]) == 2 + 2 * (1 + 5)
    for path in pages:
        page = Page(path)
        assert page.open == [], path
        assert [link for link in page.files() if not (path.parent / link).resolve().is_file()] == [], path
    hostile_page = Page(site / "hostile/demo/index.html")
    assert [tag for tag, _ in hostile_page.tags].count("script") == 2


def test_page_says_what_is_compared_and_how_sure_it_is(site: Path) -> None:
    text = words(site / "toy/demo/index.html")
    assert "Own hyperparameters 3 common seeds, below the 5 that ranks need." in text
    assert "Equal rounds 2 rounds Equal local steps 20 local steps Equal bytes 1 MB" in text
    # t of 2 degrees of freedom is 4.303: 91 +- 4.303 / sqrt(3)
    assert "A 91.00 ±1.00 a [88.5, 93.5] 90.0 91.0 92.0" in text and "n=0/3, 1 diverged" in text
    assert "waits for trials" in text and "bounds, not in the ranking" in text
    assert "2/6 cells done" not in text and "3/6 cells done" in text  # A, B and the bound; what waits counts
    assert "Six settings a method." in text


def test_only_compared_methods_are_sorted(site: Path) -> None:
    """site.js sorts the first body of a table with data-sort by its single head row's buttons."""
    page = (site / "toy/demo/index.html").read_text()
    own = page[page.index("Own hyperparameters") : page.index("Tuned hyperparameters")]
    head, first, *others = own.split("<tbody")
    assert "data-sort" in head and head.count("<tr") == 1 and head.count("<button>") == 6
    assert [float(found) for found in re.findall(r'data-value="([^"]+)"', first)] == [
        *(pytest.approx(value) for value in (0.91, 0.91, 0.5, 20, 2e6)),  # A: three means, its steps and bytes
        *(pytest.approx(value) for value in (0.81, 0.7, 0.81, 40, 1e6)),
    ]
    assert ">A</a>" in first and ">C</a>" not in first and ">S</a>" not in first
    assert len(others) == 2


def test_cell_pages_show_their_note(site: Path) -> None:
    (path,) = site.glob("toy/demo/cell-b-own-*.html")
    assert f"Note: {ONE_MORE_CLIENT}." in words(path)


def test_files_stand_beside_the_page(site: Path) -> None:
    CURVES = ("curves.svg", "curves.pdf", "curves.csv")
    names = {path.name for path in (site / "toy/demo").iterdir() if not path.name.startswith("cell")}
    assert names == {
        "index.html",
        "table.csv",
        "table.tex",
        "table.md",
        *(f"dots-own.{end}" for end in ("svg", "pdf", "csv")),
        *CURVES,
    }


@pytest.mark.parametrize(("number", "text"), [(1.84e6, "1.84"), (5.04e8, "504"), (1.008e9, "1,008"), (0.0, "0")])
def test_megabytes(number: float, text: str) -> None:
    assert megabytes(number) == text
