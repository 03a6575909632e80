"""Charts and plates of our own writing: ticks, places that turn back into values, and files that readers accept."""

import json
import re
import xml.etree.ElementTree as ET
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.papers.item import Item
from benchmark.verdicts.results import ACCURACY, Records
from reports.chart import Axis, axes, chart, legend, nice
from reports.figures import DIVERSITY, panels
from reports.ink import Plate, Stroke, Text, pdf, svg, text_width
from reports.pages.run import is_web
from reports.plate import plate
from reports.series import Series
from reports.style import LOOKS, looks

HOSTILE = "\"><script>alert('x')</script>&"


def series(points: list[tuple[int, float]], diverged: bool = False) -> Series:
    ended = [] if diverged else [points]
    return Series(
        mean=[],
        band=([], [], []),
        single=ended,
        diverged=[points] if diverged else [],
        bin_size=1,
        runs={0: points},
    )


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 9))
def test_ticks_are_round_few_and_inside(low: float, width: float, most: int) -> None:
    """At most `most` + 1 of them, equally far apart, by 1, 2 or 5 times a power of ten."""
    high = low + width
    found = nice(low, high, most)
    assert 1 <= len(found) <= most + 1
    assert all(low - 1e-6 * width <= tick <= high + 1e-6 * width for tick in found)
    if len(found) > 1:
        step = (found[-1] - found[0]) / (len(found) - 1)
        assert float(f"{step:.3e}".split("e")[0]) in (1, 2, 5)


@given(st.floats(0.01, 1e5), st.floats(0.1, 1e5), st.booleans(), st.floats(0, 1))
def test_places_turn_back_into_values(low: float, width: float, log: bool, at: float) -> None:
    """As the pages' script does: start + unit x place, or ten to the power of that."""
    value = low + at * width
    axis = axes(
        "diversity/delta/l2/squared/clients" if log else "test/loss",
        [(1, low), (2, low + width)],
        (0, 100),
        (200, 10),
    )[1]
    start, unit, is_log = json.loads(axis.data)
    found = start + unit * axis.place(value)
    assert (10**found if is_log else found) == pytest.approx(value, rel=1e-5, abs=1e-5 * width)
    assert bool(is_log) == (log and (low + width) / low > 100)


def test_chart_says_in_words_what_it_shows() -> None:
    look = LOOKS["FedAvg"]
    text = chart(ACCURACY, {HOSTILE: (series([(1, 0.5), (9, 0.75)]), look)})
    root = ET.fromstring(text)
    assert root.attrib["aria-label"].endswith(f"{HOSTILE}: 50 in round 1, 75 in round 9")
    assert [p.attrib["data-n"] for p in root.iter() if "data-n" in p.attrib] == [f"{HOSTILE}, seed 0"]
    assert "not measured" in chart(ACCURACY, {"": (series([]), look)})
    assert "<script>" not in legend({HOSTILE: look}) + text


def test_diverged_run_ends_in_a_cross_and_is_no_line() -> None:
    root = ET.fromstring(chart(ACCURACY, {"a": (series([(1, 0.5), (4, 0.2)], diverged=True), LOOKS["FedAvg"])}))
    classes = [element.attrib.get("class", "").split()[0] for element in root.iter() if "class" in element.attrib]
    assert classes.count("d") == 1 and classes.count("x") == 1 and not {"l", "r"} & set(classes)


def test_no_two_methods_look_the_same() -> None:
    names = [*LOOKS, *(f"mine {i}" for i in range(12))]
    same = {"FedAvg", "CRL with GN", "SSFL, FedAvg", "Grouping", "SSFL, grouping", "Supervised", "Supervised FedAvg"}
    found = looks([name for name in names if name not in same | {"FixMatch"}])
    assert len(set(found.values())) == len(found)


def test_axis_of_one_value_has_a_width() -> None:
    x, y = axes("test/loss", [(5, 0.0)], (0, 1), (1, 0))
    assert isinstance(x, Axis) and x.high > x.low and y.high > y.low


def test_pdf_objects_lie_where_its_table_says() -> None:
    """Text with parentheses, a backslash, accents and Greek: escaped, kept in Western European, "?" beyond."""
    drawn = Plate(
        width=100,
        height=50,
        marks=[
            Text(x=1, y=2, text="(a\\b) \u00b1\u00e9\u03b1\n", anchor=1.0),
            Stroke(lines=[[(0, 0), (10, 20)]], colour="#ff0000", width=1, dash=(1, 2), alpha=0.5),
        ],
    )
    content = pdf(drawn)
    start = int(content.rsplit(b"startxref\n", 1)[1].split(b"\n")[0])
    assert content[start:].startswith(b"xref\n0 5\n")
    for number, place in enumerate(re.findall(rb"(\d{10}) 00000 n", content), start=1):
        assert content[int(place) :].startswith(f"{number} 0 obj".encode())
    stream = zlib.decompress(content.split(b"stream\n", 1)[1].rsplit(b"\nendstream", 1)[0]).decode("cp1252")
    assert "(\\(a\\\\b\\) \u00b1\u00e9?) Tj" in stream
    assert "1.000 0.000 0.000 RG 1 w" in stream and "0.00 50.00 m 10.00 30.00 l S Q" in stream
    assert pdf(drawn) == content


def test_text_width_of_digits() -> None:
    """Helvetica's digits are 556 thousandths wide, its full stop 278 (here 265): 2 x 5.56 + 2.65 at 10 points."""
    assert text_width("9.9", 10) == pytest.approx(2 * 5.56 + 2.65)


def test_plate_has_a_panel_a_column_and_metric(laptop_table: tuple[Item, Records]) -> None:
    item, records = laptop_table
    columns = panels(item, records)
    styles = looks(["FedAvg", "Grouping", "Control"])
    drawn = plate([(HOSTILE, columns[0][1]), *columns[1:]], styles, [ACCURACY, DIVERSITY], records)
    texts = [mark.text for mark in drawn.marks if isinstance(mark, Text)]
    assert texts.count(HOSTILE) == 1 and texts.count("Test accuracy (%)") == 1 == texts.count("Gradient diversity")
    root = ET.fromstring(svg(drawn))
    assert HOSTILE in [element.text for element in root.iter()] and b"<script>" not in svg(drawn)
    nothing = plate([("", {"FedAvg": columns[0][1]["FedAvg"]})], {"FedAvg": LOOKS["FedAvg"]}, ["none"], {})
    assert "not measured" in [mark.text for mark in nothing.marks if isinstance(mark, Text)]


@pytest.mark.parametrize(
    ("url", "web"),
    [
        ("https://wandb.ai/lab/fssl/runs/1a2b", True),
        ("javascript:alert(1)", False),
        ("JavaScript:alert(1)", False),
        ("data:text/html,x", False),
        ("http://wandb.ai/x", False),
        ("https://", False),
        ("https://wandb.ai@evil.example/", False),
        ('https://wandb.ai/"onclick=', False),
        ("https://wandb.ai/\nx", False),
        ("https://[", False),
    ],
)
def test_only_plain_addresses_of_the_web_are_links(url: str, web: bool) -> None:
    assert is_web(url) == web
