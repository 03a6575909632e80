"""SSFL's figures: each has a layout with the panels that its caption names, and the same bytes for the same runs."""

import math
import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmark.papers.catalogue import ITEMS, items
from benchmark.papers.item import Item
from benchmark.verdicts.results import Records
from reports.alone import FIGURES, figure_files
from reports.drawing import STYLE
from reports.paper_figures import LAYOUTS, main_figure, paper_figure, paper_figure_files, variants
from tests.conftest import ROOT
from tests.reports.fakes import make_record

VARIANTS = [*variants("gradient/l2"), *variants("gradient/l1"), *variants("delta/l2"), *variants("delta/l1")]


def filled(name: str, seeds: int = 3) -> tuple[Item, Records]:
    """The item with runs of 20 rounds: accuracy 50 % and a point more a round, cell by cell and seed by seed a tenth
    more; diversities 1 + round / 100."""
    (item,) = items([name], "laptop")
    found: dict[str, dict] = {}
    for number, cell in enumerate(item.cells):
        for seed in range(seeds):
            shift = 0.001 * number + 0.01 * seed
            rounds: list[dict[str, float]] = [
                {"round": t, "test/accuracy": 0.5 + t / 100 + shift, "pseudo/kept": 0.8}
                | {v: 1 + t / 100 for v in VARIANTS if v.startswith("diversity")}
                for t in range(1, 21)
            ]
            last = {"test/accuracy": 0.7 + shift, "pseudo/kept": 0.8}
            found.setdefault(cell.cell_key, {})[seed] = make_record(cell, seed, last, rounds=rounds)
    return replace(item, seeds=seeds), found


def drawn(name: str, seeds: int = 3) -> Figure:
    figure = paper_figure(*filled(name, seeds))
    assert figure is not None
    return figure


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_figure_of_the_paper_has_a_layout_and_no_table():
    figures = {name for name in ITEMS if name.startswith("ssfl/fig")}
    assert set(LAYOUTS) == figures and len(figures) == 13
    (tab2,) = items(["ssfl/tab2"], "demo")
    assert paper_figure(tab2, {}) is None and paper_figure_files(tab2, {}) == {}


def test_the_picture_of_an_item_is_the_papers_figure_where_it_has_one():
    """Figures 6 and D.1 to D.4 share their curves of accuracy; what tells them apart is which diversity they show."""
    shown = {name: main_figure(*filled(name)).axes[3].get_ylabel() for name in ("ssfl/fig6", "ssfl/figd2", "ssfl/tab2")}
    assert shown == {
        "ssfl/fig6": "Gradient diversity\nEq. 1",
        "ssfl/figd2": "Gradient diversity\nEq. 13",
        "ssfl/tab2": "Gradient diversity\nof weight changes\nl2 squared, clients",
    }


def test_captions_of_the_appendix_are_the_lines_of_panels():
    """Figure D.2: (Line 2) Eq. 13 (3) Eq. 14 (4) Eq. 13 with the server (5) Eq. 14 with the server; and, beyond the
    caption, the share kept. Columns are C = 10, 30 and 47, here 2, 6 and 10."""
    axes = drawn("ssfl/figd2").axes
    assert len(axes) == 6 * 3
    labels = [ax.get_ylabel() for ax in axes[::3]]
    told = [re.findall(r"Eq\. \d+", label) for label in labels]
    assert told == [[], ["Eq. 13"], ["Eq. 14"], ["Eq. 13"], ["Eq. 14"], []]
    assert ["server" in label for label in labels] == [False, False, False, True, True, False]
    assert labels[0].startswith("Test accuracy") and labels[-1].startswith("Pseudo-labels kept")
    assert [ax.get_title(loc="left") for ax in axes[:3]] == ["small, C = 2", "middle, C = 6", "full, C = 10"]
    path = ROOT.parent / "shared" / "papers" / "ssfl_gradient_diversity.md"
    if path.exists():
        caption = path.read_text().split("**Figure D.2:**")[1].split("\n")[0]
        assert [f"Eq. {number}" for number in re.findall(r"defined in Eq\. (\d+)", caption)] == [
            t[0] for t in told[1:5]
        ]
    assert "Eq. 15" in drawn("ssfl/figd4").axes[3].get_ylabel()


@pytest.mark.parametrize(("name", "panels"), [("ssfl/fig3", 3), ("ssfl/fig4", 3), ("ssfl/figb1", 2), ("ssfl/figc1", 2)])
def test_convergence_and_diversity_side_by_side(name, panels):
    figure = drawn(name)
    axes = figure.axes
    assert len({round(ax.get_position().y0, 3) for ax in axes}) == 1 and len(axes) == panels
    assert axes[0].get_ylabel().startswith("Test accuracy") and axes[-1].get_ylabel().startswith("Pseudo-labels kept")
    if panels == 3:
        assert axes[1].get_ylabel() == "Gradient diversity\nEq. 1"
        assert legend(figure) == ["Self-training", "CRL with BN", "CRL with GN", "Grouping", "Supervised", "Control"]


def test_runs_of_different_t_are_drawn_over_local_steps():
    """20 rounds of T = 2 end at step 40, of T = 32 at step 640."""
    figure = drawn("ssfl/figb1")
    ends = {np.max(np.asarray(line.get_xdata())) for line in figure.axes[0].get_lines()}
    assert ends == {20 * T for T in (2, 4, 8, 16, 32)} and figure.axes[0].get_xlabel() == "Local steps of a client"
    assert legend(figure) == [f"T = {T}" for T in (2, 4, 8, 16, 32)]


def test_bars_are_means_over_seeds():
    """Cell 0's runs end at 70, 71 and 72 %: the bar is 71 high, the line above and below it t_2(.975) / sqrt 3 = 2.484
    points long; with two seeds there is a bar and no line."""
    figure = drawn("ssfl/fig2")
    left = figure.axes[0]
    bar, line = left.patches[0], left.collections[0]
    assert isinstance(bar, Rectangle) and isinstance(line, LineCollection)
    assert bar.get_height() == pytest.approx(71.0)
    low, high = np.asarray(line.get_segments()[0])[:, 1]
    assert (high - low) / 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-4)
    assert len(left.patches) == 6 and not drawn("ssfl/fig2", seeds=2).axes[0].collections
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == ["R = 0.0", "R = 0.4"]


@pytest.mark.parametrize(
    ("name", "xs"),
    [
        ("ssfl/fig5_left", [i / 10 for i in range(11)]),
        ("ssfl/fig5_middle", [2, 4, 8, 16, 32]),
        ("ssfl/fig5_right", [100, 200, 300, 400, 500]),
    ],
)
def test_factors_are_those_of_the_runs(name, xs):
    """One line for the stand-in; at the paper profile three, a data set each."""
    figure = drawn(name)
    assert np.asarray(figure.axes[0].get_lines()[0].get_xdata()).tolist() == pytest.approx(xs)
    assert legend(figure) == ["MNIST"]
    (full,) = items([name], "paper")
    one = full.cells[0]
    with_one = paper_figure(full, {one.cell_key: {0: make_record(one, 0, {"test/accuracy": 0.9})}})
    assert with_one is not None and legend(with_one) == ["CIFAR-10", "SVHN", "EMNIST"]


def test_the_same_records_give_the_same_bytes_and_the_page_has_them():
    item, records = filled("ssfl/fig6")
    first = paper_figure_files(item, records)
    turned = {key: dict(reversed(list(runs.items()))) for key, runs in reversed(list(records.items()))}
    with matplotlib.rc_context({"font.size": 20}):  # what a user set elsewhere does not matter
        assert paper_figure_files(item, turned) == first
    assert first["figure.pdf"].startswith(b"%PDF") and b"CreationDate" not in first["figure.pdf"]
    assert b"<dc:date>" not in first["figure.svg"]
    assert set(first) <= set(figure_files(item, records)) and FIGURES[0][0] == "figure"
    assert STYLE["font.size"] < 10


def test_what_was_not_measured_or_run_is_said():
    """No gradients measured: Figure 6's second line of panels says so; no run of a method: its bar says so."""
    item, records = filled("ssfl/fig6")
    bare = {
        key: {
            seed: replace(r, rounds=[{k: v for k, v in line.items() if "gradient" not in k} for line in r.rounds])
            for seed, r in runs.items()
        }
        for key, runs in records.items()
    }
    figure = paper_figure(item, bare)
    assert figure is not None
    assert [[text.get_text() for text in ax.texts] for ax in figure.axes[3:6]] == [["not measured"]] * 3
    item, records = filled("ssfl/fig2")
    missing = {key: runs for key, runs in records.items() if key != item.cells[0].cell_key}
    figure = paper_figure(item, missing)
    assert figure is not None and [text.get_text() for text in figure.axes[0].texts] == ["not run"]
