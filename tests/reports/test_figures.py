"""Curves: what becomes a mean, what stays a line, and that the same records give the same bytes."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.papers.item import Cell, Item
from benchmark.verdicts.results import ACCURACY, Records, cell_result
from benchmark.verdicts.statistics import summary
from reports.drawing import inline, svg
from reports.figures import (
    DIVERSITY,
    figure_of,
    measured,
    panels,
    picture,
    variant_metrics,
)
from reports.ink import Text
from reports.plate import plate
from reports.series import MOST_POINTS, Series, seeds_series
from reports.style import looks
from tests.reports.fakes import make_cell, make_record, pair

CELL = make_cell("a", {"method": "A", "C": 2}, 60)


def series(curves_by_seed: dict[int, list[float]], statuses: dict[int, str] | None = None, cell: Cell = CELL) -> Series:
    runs = {
        seed: make_record(
            cell,
            seed,
            {ACCURACY: values[-1]},
            status=(statuses or {}).get(seed, "done"),
            rounds=[{"round": t, ACCURACY: value} for t, value in enumerate(values, start=1)],
        )
        for seed, values in curves_by_seed.items()
    }
    records: Records = {cell.cell_key: runs}
    return seeds_series(cell_result(cell, records, 3), records, ACCURACY)


def test_three_seeds_are_a_mean_with_its_t_interval() -> None:
    """Round 1: 0.1, 0.2, 0.3; round 2: 0.4, 0.5, 0.9."""
    seen = series({0: [0.1, 0.4], 1: [0.2, 0.5], 2: [0.3, 0.9]})
    assert [x for x, _ in seen.mean] == [1, 2]
    assert [y for _, y in seen.mean] == pytest.approx([0.2, 0.6])
    rounds, low, high = seen.band
    expected = [summary([0.1, 0.2, 0.3]).interval, summary([0.4, 0.5, 0.9]).interval]
    assert rounds == [1, 2] and list(zip(low, high, strict=True)) == expected
    assert seen.single == [] and seen.diverged == []


def test_two_seeds_are_two_lines() -> None:
    seen = series({0: [0.1], 1: [0.2]})
    assert seen.mean == [] and seen.single == [[(1, 0.1)], [(1, 0.2)]]


def test_diverged_and_unfinished_runs_join_no_mean() -> None:
    """Seed 3 diverged in round 2 with NaN: its line ends at round 1. Seed 4 was killed after round 1."""
    runs = {0: [0.1, 0.4], 1: [0.2, 0.5], 2: [0.3, 0.9], 3: [0.9, float("nan")], 4: [0.8]}
    seen = series(runs, {3: "diverged", 4: "unfinished"})
    assert [y for _, y in seen.mean] == pytest.approx([0.2, 0.6])
    assert seen.diverged == [[(1, 0.9)]] and seen.single == [[(1, 0.8)]]


def test_long_runs_are_drawn_as_means_of_rounds() -> None:
    """2 x MOST_POINTS rounds with values 0, 1, 0, 1, ...: points at rounds 2, 4, ..., each 0.5."""
    seen = series({0: [0.0, 1.0] * MOST_POINTS})
    assert seen.bin_size == 2
    assert seen.single == [[(t, 0.5) for t in range(2, 2 * MOST_POINTS + 1, 2)]]


def test_one_panel_a_cohort_size(laptop_table: tuple[Item, Records]) -> None:
    assert [(title, list(lines)) for title, lines in panels(*laptop_table)] == [
        (title, ["FedAvg", "Grouping", "Control"]) for title in ("small, C = 10", "middle, C = 30", "full, C = 47")
    ]


def test_pictures_are_the_same_bytes_twice(laptop_table: tuple[Item, Records], tmp_path: Path) -> None:
    item, records = laptop_table
    first = picture(figure_of(item, records, [ACCURACY, DIVERSITY]), tmp_path / "one")
    second = picture(figure_of(item, records, [ACCURACY, DIVERSITY]), tmp_path / "two")
    assert [path.name for path in first] == ["one.svg", "one.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[1].read_bytes().startswith(b"\x89PNG")
    assert ">FedAvg</text>" in first[0].read_text()  # text stays text


def test_a_diversity_says_what_it_is_of(laptop_table: tuple[Item, Records]) -> None:
    item, records = laptop_table
    labels = [
        figure_of(item, records, [metric]).axes[0].get_ylabel()
        for metric in (DIVERSITY, DIVERSITY.replace("delta", "gradient"))
    ]
    assert labels == [
        "Gradient diversity\nof weight changes\nl2 squared, clients",
        "Gradient diversity\nof gradients\nl2 squared, clients",
    ]


@pytest.mark.parametrize(("values", "scale"), [((0.1, 20.0), "log"), ((0.1, 9.0), "linear"), ((0.0, 20.0), "linear")])
def test_diversity_is_logarithmic_beyond_two_decades(values: tuple[float, float], scale: str) -> None:
    """20 / 0.1 is more than 100, 9 / 0.1 is less; zero has no logarithm."""
    item = pair()
    rounds = [{"round": t, DIVERSITY: value} for t, value in enumerate(values, start=1)]
    records = {c.cell_key: {0: make_record(c, 0, {}, rounds=rounds)} for c in item.cells}
    assert figure_of(item, records, [DIVERSITY]).axes[0].get_yscale() == scale


def test_all_sixteen_variants_have_their_place(laptop_table: tuple[Item, Records]) -> None:
    """The fake runs measure local updates only: D.3 and D.4 have five metrics, D.1 and D.2 are absent."""
    _, records = laptop_table
    figures = variant_metrics(records)
    assert list(figures) == ["delta-l2", "delta-l1"]
    assert figures["delta-l1"] == [
        ACCURACY,
        "diversity/delta/l1/squared/clients",
        "diversity/delta/l1/plain/clients",
        "diversity/delta/l1/squared/with_server",
        "diversity/delta/l1/plain/with_server",
    ]


def test_a_variant_that_was_not_measured_says_so() -> None:
    item = pair()
    records = {
        c.cell_key: {0: make_record(c, 0, {}, rounds=[{"round": 1, DIVERSITY: 0.5}, {"round": 2, DIVERSITY: 0.4}])}
        for c in item.cells
    }
    (shown,) = variant_metrics(records).values()
    drawn = plate(panels(item, records), looks(["A", "B"]), shown, records)
    texts = [mark.text for mark in drawn.marks if isinstance(mark, Text)]
    assert texts.count("not measured") == 4  # accuracy and three of the four variants, both cells in one panel
    assert measured(records, DIVERSITY) and not measured(records, ACCURACY)


def test_hostile_names_stay_text() -> None:
    """Markup, dollars (matplotlib's mathematics) and a leading underscore (dropped from legends) in method names."""
    names = ["<script>alert(1)</script>", r"$\frac{", "_hidden", "\"quoted\" & 'co'"]
    cells = tuple(make_cell(name, {"method": name, "C": 2}, 70 + i) for i, name in enumerate(names))
    item = replace(pair(), cells=cells, claims=())
    text = svg(figure_of(item, {}, [ACCURACY]))
    shown = [element.text for element in ET.fromstring(text).iter() if element.tag.endswith("}text")]
    assert [name for name in names if name in shown or f" {name}" in shown] == names
    assert "<script>" not in inline(text, "x")


def test_inline_figures_share_a_page(laptop_table: tuple[Item, Records]) -> None:
    """Ids and the references to them get the prefix; colours become the page's variables; it is still XML."""
    text = inline(svg(figure_of(*laptop_table, [ACCURACY])), "one")
    root = ET.fromstring(text)
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert ids and all(name.startswith("one-") for name in ids)
    references = {value[1:] for e in root.iter() for key, value in e.attrib.items() if key.endswith("href")}
    assert references and references <= ids
    assert "var(--series-0)" in text and "#0072b2" not in text
