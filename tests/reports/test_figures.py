"""Pictures: what is drawn equals the records, bands are intervals by hand, and methods can be told apart."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from benchmark.experiment import Federation
from benchmark.papers.item import Cell, Drawing, Item
from benchmark.verdicts.cell_results import cell_result
from benchmark.verdicts.statistics import summary
from reports.costs_and_curves import Series, curve_rows, series_of
from reports.figures import DARK, LOOKS, PALETTE, Picture, looks
from reports.item_figures import DIVERSITY, caption_of, clip, item_picture, panels_of
from reports.item_results import ItemResults
from tests.conftest import ROOT
from tests.reports.fakes import COHORTS, ENDS, accuracies, alone, make_cell, make_record, table2


@pytest.fixture(scope="module")
def drawn() -> Picture:
    picture = item_picture(ItemResults(*table2()))
    assert picture is not None
    return picture


def test_what_is_drawn_equals_the_records(drawn: Picture) -> None:
    """First panel: accuracy of the small cohort. Grouping's line and its data are the mean of its three seeds."""
    band = series_of(ItemResults(*table2()).results["Grouping/small"], "test/accuracy", 120).band
    panel = drawn.data[0]
    line = next(one for one in panel["lines"] if one["name"] == "Grouping")
    assert [point[0] for point in line["points"]] == list(band.index)
    assert [point[1] for point in line["points"]] == pytest.approx(band["mean"].tolist(), rel=1e-4)
    assert [point[3] for point in line["points"]] == pytest.approx(band["high"].tolist(), rel=1e-4)
    seeds = [one["name"] for one in panel["lines"] if one["name"].startswith("Grouping")]
    assert seeds == ["Grouping", "Grouping, seed 0", "Grouping, seed 1", "Grouping, seed 2"]


def test_lines_are_named_by_what_their_panel_does_not_say() -> None:
    """A cohort has one C: a line is its method, in the method's look. Over panels by method a line is its cohort."""
    item, _ = table2()
    by_cohort = panels_of(item, Drawing(panels=("cohort",)))
    assert {tuple(lines) for lines in by_cohort.values()} == {tuple(ENDS)} and list(by_cohort) == list(COHORTS)
    by_method = panels_of(item, Drawing(panels=("method",)))
    assert list(by_method["FedAvg"]) == [f"{s}, C = {COHORTS[s][0]}" for s in COHORTS]


def test_svg_follows_the_page_and_the_reader(drawn: Picture) -> None:
    """No colour of its own; ids prefixed; data that ends no script; the file has both themes."""
    page, file = str(drawn.inline("fig")), drawn.svg()
    assert "var(--series-0)" in page and not re.search(r"#(?:0072b2|1f2933)", page)
    assert 'id="fig-axes_1"' in page
    data = page.split('<script type="application/json" id="fig-data">')[1].split("</script>")[0]
    assert len(json.loads(data)) == len(drawn.data)
    assert "prefers-color-scheme:dark" in file and DARK[0] in file and "<script" not in file
    assert file == drawn.svg() and drawn.saved("pdf") == drawn.saved("pdf") and drawn.saved("pdf").startswith(b"%PDF")


def test_names_and_data_cannot_leave_their_place() -> None:
    cells = [make_cell(f"{n}", {"method": n}, i) for i, n in enumerate(("<b>$x$</b></script>", "B"), start=1)]
    records = {c.cell_key: {0: make_record(c, 0, {"test/accuracy": 0.5})} for c in cells}
    item = Item(name="toy/tab1", title="T", profile="demo", cells=tuple(cells))
    picture = item_picture(ItemResults(item, records))
    assert picture is not None and "&lt;b&gt;$x$" in picture.inline("x")
    assert "<b>" not in picture.inline("x") and picture.inline("x").count("</script>") == 1


def test_against_a_factor_the_points_are_means_in_order() -> None:
    """T = 2, 8, 32 on a logarithmic axis: .54 .60 .84 in percent, with scipy's intervals."""
    cells = [make_cell(f"A/{T}", {"method": "A", "T": T}, T) for T in (32, 2, 8)]
    ends = []
    for cell in cells:
        at_first_seed = 0.5 + float(cell.setting["T"]) / 100
        ends.append((cell, [at_first_seed + seed / 100 for seed in range(5)]))
    drawing = Drawing(kind="against", x="T", log_x=True)
    item = Item(name="toy/fig", title="T", profile="demo", cells=tuple(cells), seeds=5, drawing=drawing)
    picture = item_picture(ItemResults(item, accuracies(ends)))
    assert picture is not None
    (panel,) = picture.data
    points = [point for line in panel["lines"] for point in line["points"]]
    assert [(x, y) for x, y, *_ in points] == [(2, 54.0), (8, 60.0), (32, 84.0)] and panel["x"][2] is True
    low, high = summary([52.0, 53.0, 54.0, 55.0, 56.0]).interval or (0, 0)
    assert points[0][2:] == pytest.approx([low, high], rel=1e-4)


def alone_against(values: Sequence[int]) -> tuple[list[Cell], Cell]:
    """Return a cell for each Q, and their common supervised baseline with the setting of the first one."""
    cells = []
    for K, Q in enumerate(values, 4):
        cell = make_cell(f"A/{Q}", {"method": "A", "Q": Q}, 5)
        cells.append(replace(cell, experiment=replace(cell.experiment, federation=Federation(rounds=5, K=K, C=2))))
    return cells, replace(alone(cells[0]), setting={"method": "Labels alone", "Q": values[0]})


def drawn_against(ends: Sequence[tuple[Cell, list[float]]], drawing: Drawing) -> dict[str, list[tuple[float, float]]]:
    """Return the named points of the first panel: x and y (percent), by line."""
    item = Item(name="toy/fig", title="T", profile="demo", cells=tuple(cell for cell, _ in ends), drawing=drawing)
    picture = item_picture(ItemResults(item, accuracies(ends)))
    assert picture is not None
    found: dict[str, list[tuple[float, float]]] = {}
    for line in picture.data[0]["lines"]:
        found.setdefault(line["name"], []).extend((point[0], point[1]) for point in line["points"])
    return found


def test_methods_at_the_same_x_are_lines_of_their_own_if_lines_are_data_sets() -> None:
    """Both methods of one data set have N = 1 and 2; if the lines were only data sets, one would hide the other."""
    ends = []
    for key, (method, N, value) in enumerate([("A", 1, 0.5), ("A", 2, 0.6), ("B", 1, 0.7), ("B", 2, 0.8)], 1):
        ends.append((make_cell(f"{method}/{N}", {"data": "d", "method": method, "N": N}, key), [value]))
    found = drawn_against(ends, Drawing(kind="against", x="N", lines=("data",)))
    assert found == {"d, A": [(1, 50.0), (2, 60.0)], "d, B": [(1, 70.0), (2, 80.0)]}
    assert drawn_against(ends[:2], Drawing(kind="against", x="N", lines=("data",))).keys() == {"d"}


def test_a_cell_without_a_place_on_the_x_axis_is_a_level_line() -> None:
    """All labels: the same value at each N of its data set, and not of a different one."""
    ends = []
    for key, (data, N, value) in enumerate([("d", 1, 0.5), ("d", 3, 0.6), ("e", 2, 0.4)], 1):
        ends.append((make_cell(f"{data}/{N}", {"data": data, "method": "A", "N": N}, key), [value]))
    added = make_cell("d/all", {"data": "d", "method": "All"}, 9)
    ends.append((replace(added, role="control"), [0.9]))
    found = drawn_against(ends, Drawing(kind="against", x="N", lines=("data",)))
    assert found["d, All"] == [(1, 90.0), (3, 90.0)] and found["d, A"] == [(1, 50.0), (3, 60.0)]


def test_a_supervised_baseline_of_several_x_is_a_level_line() -> None:
    """The same run is the baseline of all cells, although its setting has the x of the first one."""
    cells, bound = alone_against((0, 10, 100))
    found = drawn_against([(cell, [0.9]) for cell in cells] + [(bound, [0.8])], Drawing(kind="against", x="Q"))
    assert found["Labels alone"] == [(0, 80.0), (10, 80.0), (100, 80.0)]


def test_a_legend_names_only_lines_that_are_drawn() -> None:
    """B has no run; its colour stays reserved, so that A and C keep theirs when it gets one."""
    cells = [make_cell(name, {"method": name}, key) for key, name in enumerate("ABC", 1)]

    def legend(ends: Sequence[tuple[Cell, list[float]]]) -> dict[str, str]:
        item = Item(name="toy/tab1", title="T", profile="demo", cells=tuple(cells))
        picture = item_picture(ItemResults(item, accuracies(ends)))
        assert picture is not None
        (of_figure,) = picture.figure.legends
        return {
            text.get_text(): str(line.get_color())
            for text, line in zip(of_figure.get_texts(), of_figure.get_lines(), strict=True)
        }

    without, every = legend([(cells[0], [0.5]), (cells[2], [0.6])]), legend([(cell, [0.5]) for cell in cells])
    assert list(without) == ["A", "C"] and list(every) == ["A", "B", "C"]
    assert without["A"] == every["A"] and without["C"] == every["C"]


def test_a_metric_that_no_run_measured_has_no_panel() -> None:
    cell = make_cell("A", {"method": "A"}, 1)
    records = {cell.cell_key: {0: make_record(cell, 0, rounds=[{"round": 1, "pseudo/kept": 0.5}])}}
    drawing = Drawing(metrics=("pseudo/accuracy", "pseudo/kept"))
    item = Item(name="toy/fig", title="T", profile="demo", cells=(cell,), drawing=drawing)
    picture = item_picture(ItemResults(item, records))
    assert picture is not None and [ax.get_ylabel() for ax in picture.figure.axes] == ["Selected pseudo-labels (%)"]
    nothing = {cell.cell_key: {0: make_record(cell, 0, rounds=[{"round": 1, "client/loss": 0.5}])}}
    empty = item_picture(ItemResults(item, nothing))
    assert empty is not None and "not measured" in [text.get_text() for text in empty.figure.axes[0].texts]


def test_a_drawing_chooses_metrics_panels_and_truth() -> None:
    cells = [
        make_cell(f"{m}/{d}", {"method": m, "data": d}, i) for i, (m, d) in enumerate(itertools.product("AB", "xy"), 1)
    ]
    lines = [{"round": t, "pseudo/kl_uniform": 0.1 * t, "pseudo/kl_true": 0.2} for t in (1, 2)]
    records = {c.cell_key: {0: make_record(c, 0, {"test/accuracy": 0.5}, rounds=lines)} for c in cells}
    drawing = Drawing(metrics=("pseudo/kl_uniform",), panels=("data",), truth={"pseudo/kl_uniform": "pseudo/kl_true"})
    item = Item(name="toy/fig", title="T", profile="demo", cells=tuple(cells), drawing=drawing)
    picture = item_picture(ItemResults(item, records))
    assert picture is not None and len(picture.data) == 2
    assert [ax.get_title(loc="left") for ax in picture.figure.axes] == ["x", "y"]
    truth = [line for line in picture.figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert list(np.asarray(truth[0].get_ydata())) == [0.2, 0.2]
    assert caption_of(item).endswith("Dotted, in a line's colour: KL of true labels from uniform, mean over seeds.")
    assert "Dotted, in" not in caption_of(replace(item, drawing=None))


CELL = make_cell("a", {"method": "A"}, 5)


def rounds(*values: float | None) -> list[dict[str, float]]:
    return [
        {"round": t, **({} if value is None else {"test/accuracy": value})} for t, value in enumerate(values, start=1)
    ]


def test_a_diversity_over_two_decades_has_a_logarithmic_axis_of_plain_numbers() -> None:
    cell = make_cell("A", {"method": "A"}, 1)
    rounds = [{"round": n, "test/accuracy": 0.5, DIVERSITY: value} for n, value in enumerate((0.1, 1.0, 300.0), 1)]
    item = Item(name="toy/tab1", title="T", profile="demo", cells=(cell,))
    picture = item_picture(ItemResults(item, {cell.cell_key: {0: make_record(cell, 0, rounds=rounds)}}))
    assert picture is not None and picture.figure.axes[1].get_yscale() == "log"
    assert ">100<" in picture.svg() and "mathdefault" not in picture.svg()


def test_a_band_is_the_t_interval_of_each_round() -> None:
    """In percent. Round 1: 10 20 30 20 20, mean 20, std 7.07, t(.975, 4) / sqrt 5 = 1.2417. Round 2 has three values:
    a mean, and no width. Round 3 has two: nothing. Round 4: 99 to 100, and no interval goes beyond."""
    lines = [
        (0.1, 0.5, 0.1, 1),
        (0.2, 0.7, 0.1, 1),
        (0.3, 0.6, None, 1),
        (0.2, *[None] * 2, 1),
        (0.2, *[None] * 2, 0.99),
    ]
    records = {
        CELL.cell_key: {s: make_record(CELL, s, {"test/accuracy": 0.5}, rounds=rounds(*v)) for s, v in enumerate(lines)}
    }
    series = series_of(cell_result(CELL, records, 5), "test/accuracy", 300)
    assert list(series.band.index) == [1, 2, 4] and series.band.loc[1, "mean"] == pytest.approx(20)
    assert series.band.loc[1, "high"] == pytest.approx(20 + 1.2417 * 7.07, abs=1e-2)
    assert series.band.loc[2].tolist() == pytest.approx([60, 60, 60, 3]) and series.band.loc[4, "high"] == 100
    assert series.runs[2].dropna().tolist() == [30, 60, 100]


def test_unfinished_and_diverged_runs_join_no_mean() -> None:
    made = {s: make_record(CELL, s, {"test/accuracy": 0.5}, rounds=rounds(0.5)) for s in range(2)}
    made[2] = make_record(CELL, 2, status="unfinished", rounds=rounds(0.9))
    made[3] = make_record(CELL, 3, status="diverged", rounds=rounds(0.1, math.nan))
    records = {CELL.cell_key: made}
    series = series_of(cell_result(CELL, records, 4), "test/accuracy", 300)
    assert series.band.empty and series.finished == [0, 1] and list(series.diverged) == [3]
    assert series.runs[2].tolist() == [90] and series.runs[3].tolist() == [10]


def test_curves_have_every_measured_value() -> None:
    made = make_record(CELL, 0, {"test/accuracy": 0.9}, rounds=rounds(0.5, None, 0.9))
    rows = curve_rows(cell_result(CELL, {CELL.cell_key: {0: made}}, 1), ["test/accuracy"])
    assert [(row["label"], row["round"], row["test/accuracy"]) for row in rows] == [("a", 1, 0.5), ("a", 3, 0.9)]


def test_methods_keep_their_look_and_no_two_share_a_line() -> None:
    alone, beside = looks(["Mine"])["Mine"], looks(["Mine", "FedAvg", "Other"])
    assert beside["Mine"] == alone and beside["FedAvg"] == LOOKS["FedAvg"]
    assert len({(look.colour, look.dash) for look in beside.values()}) == 3


def test_arena_methods_are_told_apart_with_any_colour_vision() -> None:
    """CIE76 distances under normal vision, deuteranopia and protanopia (Machado et al., 2009): all above 12."""
    arena = ["SSFL, FedAvg", "SSFL, grouping", "SemiFL", "RSCFed", "Fed-Consist", "FedProx-FixMatch", "TS-Server EMA"]
    arena += ["TS-Client EMA", "FedSwitch"]
    for palette, vision in itertools.product((PALETTE, DARK), VISION):
        seen = [_lab(palette[LOOKS[name].colour], vision) for name in arena]
        assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 12


VISION = (
    np.eye(3),
    np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
)
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def _lab(colour: str, vision: np.ndarray) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    t = XYZ @ np.clip(vision @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


DRAWS = """
import sys

from reports.figures import INK, Picture, canvas, plot, styled, titled


@styled
def draw():
    figure, axes = canvas(1, 1, {}, width=2, height=2)
    plot(axes[0][0], [1, 2], [3, 4], "x", color=INK)
    titled(axes[0][0], "x", "y", "a title")
    return Picture(figure=figure)


sys.stdout.buffer.write(draw().svg().encode() + draw().saved("pdf"))
"""


@pytest.mark.parametrize(
    "settings", ["text.usetex: True", "axes.linewidth: 3\nlines.antialiased: False", "savefig.dpi: 20\nfont.size: 20"]
)
def test_a_user_s_matplotlibrc_changes_no_figure(tmp_path: Path, settings: str) -> None:
    (tmp_path / "matplotlibrc").write_text(settings + "\n")

    def drawn_with(**variables: str) -> bytes:
        command = [sys.executable, "-c", DRAWS]
        return subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, stdout=PIPE, check=True).stdout

    assert drawn_with(MATPLOTLIBRC=str(tmp_path / "matplotlibrc")) == drawn_with()


def test_curves_begin_at_the_supervised_baseline_and_say_what_is_clipped() -> None:
    """The baseline ends at 80 %, A at 90 % after 20 %, and B at 10 %, lower than the baseline by more than A gains."""
    curves_of = {"A": (0.2, 0.9), "B": (0.2, 0.1), "alone": (0.2, 0.8)}
    cells = [make_cell(name, {"method": name}, 30 + place) for place, name in enumerate(("A", "B"))]
    cells.append(alone(cells[0]))
    records = {}
    for cell in cells:
        records[cell.cell_key] = {
            0: make_record(cell, 0, {"test/accuracy": curves_of[cell.label][-1]}, rounds=rounds(*curves_of[cell.label]))
        }
    item = Item(name="toy/tab1", title="T", profile="demo", cells=tuple(cells))
    picture = item_picture(ItemResults(item, records))
    assert picture is not None
    low, high = picture.figure.axes[0].get_ylim()
    assert 70 < low < 80 and high > 90
    assert f"{low:.1f} %" in picture.caption and picture.caption.rstrip(".").endswith("B")
    without = replace(item, cells=item.cells[:2])
    drawn = item_picture(ItemResults(without, records))
    assert drawn is not None and drawn.figure.axes[0].get_ylim()[0] < 10


def test_from_five_seeds_on_no_single_run_is_drawn() -> None:
    """With four seeds: their mean and four lines; with five: their mean with a band."""
    for n, lines in ((4, 5), (5, 1)):
        runs = {
            seed: make_record(CELL, seed, {"test/accuracy": 0.5}, rounds=rounds(0.4, 0.5 + seed / 100))
            for seed in range(n)
        }
        item = Item(name="toy/tab1", title="T", profile="demo", cells=(CELL,), seeds=5)
        picture = item_picture(ItemResults(item, {CELL.cell_key: runs}))
        assert picture is not None and len(picture.data[0]["lines"]) == lines


def test_no_two_methods_of_a_figure_share_a_colour_while_others_are_free() -> None:
    names = ["FedAvg", "Grouping", "Control", "Own group", "One", "Two", "Three", "Four"]
    colours = [look.colour for look in looks(names).values()]
    assert len(set(colours)) == len(names)


def test_the_clipped_axis_shows_the_ends_of_all_runs_and_bands():
    """Three runs end at 50, 52 and 57, and their interval at 60; without a band the best run is the highest line."""
    runs = pd.DataFrame({0: [10.0, 50.0], 1: [10.0, 52.0], 2: [10.0, 57.0]}, index=[1, 2])
    band = pd.DataFrame({"mean": [10.0, 53.0], "low": [10.0, 46.0], "high": [10.0, 60.0], "n": [3, 3]}, index=[1, 2])
    for drawn, top in ((band, 60.0), (band.iloc[:0], 57.0)):
        series = Series(runs=runs, finished=[0, 1, 2], diverged=(), band=drawn)
        axes = plt.figure().subplots()
        assert clip(axes, {"": {"a": series}}, 49.3)
        low, high = axes.get_ylim()
        assert 10.0 < low < 49.3 and top < high < 1.1 * top
    plt.close("all")


def test_an_axis_that_would_hide_most_lines_stays():
    """The baseline ends at 47 %; one line ends above it, and then one or two end far below it."""

    def ending(value: float) -> Series:
        runs = pd.DataFrame({0: [10.0, value]}, index=[1, 2])
        return Series(runs=runs, finished=[0], diverged=(), band=runs.iloc[:0])

    lines = {"best": ending(50.0), "low": ending(27.0)}
    axes = plt.figure().subplots()
    assert clip(axes, {"": lines}, 47.0) and not clip(axes, {"": {**lines, "lower": ending(20.0)}}, 47.0)
    plt.close("all")
