"""Verdicts in what other programs read, numbers set below each other, and whose margin it is."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmark.papers.item import Item, Printed
from benchmark.verdicts.results import Records
from benchmark.verdicts.statistics import summary
from reports.alone import table_files
from reports.claims import claims_csv, claims_latex, claims_markdown
from reports.exports import table_csv, table_latex, table_markdown
from reports.pages.item import margin_text
from reports.site import build, item_page
from reports.views import scale_of, whisker
from reports.words import FIGURE_SPACE, PUNCTUATION_SPACE, aligned
from tests.reports.fakes import accuracies, make_cell, pair
from tests.reports.test_site import words

HOSTILE = "=cmd() | <script> & 50%"


def compared(profile: str = "paper") -> tuple[Item, Records]:
    """One published number, 80.00, and runs of .79, .80 and .81: difference 0, s = 1 point, error s sqrt(1/3 + 1); at
    95 % t is 4.3027, so +-4.97 points, beyond the margin of one: undecided."""
    cell = make_cell("A/2", {"method": "A", "C": 2}, 71, published={"test/accuracy": Printed(value=80.0)})
    item = Item(name="toy/tab1", title="Toy", profile=profile, cells=(cell,), seeds=3, margin=0.01)
    return item, accuracies([(cell, [0.79, 0.80, 0.81])])


def test_every_export_has_the_verdict_on_profile_paper() -> None:
    item, records = compared()
    row = next(csv.DictReader(io.StringIO(table_csv(item, records))))
    half = 4.302653 * 0.01 * math.sqrt(4 / 3)
    assert row["verdict"] == "undecided" and abs(float(row["difference"])) < 1e-12
    assert abs(float(row["difference_high"]) - half) < 1e-6 and abs(float(row["difference_low"]) + half) < 1e-6
    assert abs(float(row["interval_high"]) - 0.8 - 4.302653 * 0.01 / math.sqrt(3)) < 1e-6
    assert r"A, to the paper & verdict \\" in table_latex(item, records)
    assert r"+0.00 [-5.0, +5.0] & undecided \\" in table_latex(item, records)
    assert r"| +0.00 \[-5.0, +5.0\] | undecided |" in table_markdown(item, records)


def test_no_other_profile_has_one() -> None:
    item, records = compared("laptop")
    row = next(csv.DictReader(io.StringIO(table_csv(item, records))))
    assert row["verdict"] == row["difference"] == "" and row["published_percent"] == "80.0"
    assert "verdict" not in table_latex(item, records) + table_markdown(item, records)
    assert margin_text(item) == ""


def test_page_says_whose_margin_it_is(tmp_path: Path) -> None:
    item, records = compared()
    build([(item, records)], tmp_path)
    assert "count as equal within ±1.0 points. That margin is our choice" in words(tmp_path / item_page(item))


def test_claims_stand_in_files_of_their_own() -> None:
    """a - b of .7, .8, .9 and .5, .6, .7: .2 in each seed, without spread: no interval, undecided."""
    item = pair(name=HOSTILE, quote="a is better $C$", contrast={"a": 1.0, "b": -0.5})
    records = accuracies([(item.cells[0], [0.7, 0.8, 0.9]), (item.cells[1], [0.5, 0.6, 0.7])])
    row = next(csv.DictReader(io.StringIO(claims_csv(item, records))))
    assert row["claim"] == f"'{HOSTILE}" and row["contrast"] == "'+1*a -0.5*b"
    # .7 - .25, .8 - .3, .9 - .35: mean .5, s = .05, half width 4.3027 x .05 / sqrt(3)
    assert abs(float(row["estimate"]) - 0.5) < 1e-12 and abs(float(row["high"]) - 0.5 - 0.124207) < 1e-5
    assert row["verdict"] == "holds" and row["n"] == "3"
    latex = claims_latex(item, records)
    assert r"=cmd() | \textless{}script\textgreater{} \& 50\% & above zero & +50.00" in latex
    assert "<script>" not in claims_markdown(item, records) and "“a is better C”" in claims_markdown(item, records)
    assert {"claims.csv", "claims.tex", "claims.md"} <= set(table_files(item, records))
    assert "claims.csv" not in table_files(replace(item, claims=()), records)


@given(
    st.lists(st.floats(-1e4, 1e4).map(lambda v: f"{v:.4g}") | st.sampled_from(["-", "", "7", "1,234.5"]), max_size=9)
)
def test_points_lie_below_each_other(texts: list[str]) -> None:
    """Counted from the right, where every character that is set flush right is as wide as a digit or a point."""
    found = aligned(texts)
    assert [text.replace(FIGURE_SPACE, "").replace(PUNCTUATION_SPACE, "") for text in found] == texts
    plain = [text for text in found if "e" not in text]
    points = {len(text) - text.rindex(mark) for text in plain for mark in (".", PUNCTUATION_SPACE) if mark in text}
    assert len(points) <= 1


def test_bars_share_a_scale_that_ends_at_0_and_1() -> None:
    """.98 and 1.0: mean .99, half width 12.706 x .014142 / sqrt(2) = .127: the bar would end at 1.117."""
    wide, narrow = summary([0.98, 1.0]), summary([0.5])
    scale = scale_of([wide, None, narrow])
    assert scale == (0.5, 1.0)
    assert whisker(narrow, scale) == {"low": "0.0", "length": "0.0", "at": "0.0"}
    seen = whisker(wide, scale)
    assert seen is not None and seen["at"] == "98.0" and float(seen["low"]) + float(seen["length"]) == 100.0
    assert scale_of([]) is None and whisker(narrow, (0.5, 0.5)) is None
