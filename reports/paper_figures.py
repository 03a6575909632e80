"""SSFL's figures in the paper's arrangement: which curves stand beside or below which, as its captions say.

Two things are added to it: bands over seeds (those of reports/drawing.py), and the share of pseudo-labels kept, without
which an accuracy curve does not tell whether clients learn at all. The control of ours is a line like the others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmark.papers.item import Item
from benchmark.papers.table import actual
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect
from benchmark.verdicts.statistics import summary
from reports.cells import grid
from reports.drawing import STYLE, draw_panel, laid_out, pdf, set_scale, svg
from reports.explained import GRADIENTS
from reports.figures import DIVERSITY, figure_of, line_styles
from reports.series import Series, seeds_series
from reports.style import MARKERS, MATPLOTLIB_MARKERS, PALETTE, looks, series_looks
from reports.words import is_fraction, metric_name

KEPT = "pseudo/kept"
POINTS = 120  # a line; a printed panel is two inches wide
SPARSE = 15  # points; fewer are marked one by one
EQUATIONS = {"l2/squared": "Eq. 1", "l2/plain": "Eq. 12", "l1/squared": "Eq. 13", "l1/plain": "Eq. 14"}
PAGE = 7.2  # inches between the margins of a page
Lines = Mapping[str, CellResult]
Layout = Callable[[Item, Records], Figure]


def variants(start: str) -> tuple[str, ...]:
    """Lines 1 to 5 of Figures D.1 to D.4: accuracy; both powers among the clients; both with the server."""
    members = ("clients", "with_server")
    return (ACCURACY, *(f"diversity/{start}/{power}/{who}" for who in members for power in ("squared", "plain")))


def paper_figure(item: Item, records: Records) -> Figure | None:
    """None for an item that is no figure of the paper, and where no run has begun."""
    layout = LAYOUTS.get(item.name)
    if layout is None or not any(records.values()):
        return None
    with matplotlib.rc_context(STYLE):
        return laid_out(layout(item, records))


def main_figure(item: Item, records: Records) -> Figure:
    """What is shown of an item beside its numbers: the paper's figure, or where it has none, its curves of accuracy and
    of the diversity of weight changes."""
    return paper_figure(item, records) or figure_of(item, records, (ACCURACY, DIVERSITY))


def paper_figure_files(item: Item, records: Records) -> dict[str, bytes]:
    """`figure.svg` and `figure.pdf`; empty where there is no such figure. The same records give the same bytes."""
    figure = paper_figure(item, records)
    return {} if figure is None else {"figure.svg": svg(figure).encode(), "figure.pdf": pdf(figure)}


def columns(item: Item, records: Records) -> list[tuple[str, Lines]]:
    """What stands side by side: one part a row of the table, lines being methods; lines are the rows where the table
    has one method."""
    found = grid(collect(item, records).values())
    assert found is not None  # the figures of the paper are grids: methods and what the rows vary
    if len(found.methods) == 1:
        return [("", {row.name: row.results[found.methods[0]] for row in found.rows})]
    return [(row.name if len(found.rows) > 1 else "", row.results) for row in found.rows]


def label(metric: str) -> str:
    if not metric.startswith("diversity/"):
        return metric_name(metric)
    _, gradient, norm, power, members = metric.split("/")
    of = {"gradient": "", "delta": ", Eq. 15"}[gradient]
    server = "\nclients and server" if members == "with_server" else ""
    return f"Gradient diversity\n{EQUATIONS[f'{norm}/{power}']}{of}{server}"


def stacked(item: Item, records: Records, metrics: Sequence[str]) -> Figure:
    """A line of panels a metric, a column a cohort size: Figures 6 and D.1 to D.4."""
    parts = columns(item, records)
    shown = [*metrics, KEPT]
    figure = Figure(figsize=(PAGE, 1.45 * len(shown) + 0.6), layout="constrained")
    axes = figure.subplots(len(shown), len(parts), squeeze=False, sharex="col", sharey="row")
    for row, metric in zip(axes, shown, strict=True):
        _row(list(row), metric, parts, records)
        row[0].set_ylabel(label(metric))
    for ax, (title, _) in zip(axes[0], parts, strict=True):
        ax.set_title(title, loc="left")
    for ax in axes[-1]:
        ax.set_xlabel("Round")
    figure.align_ylabels(axes[:, 0])
    _legend(figure, parts)
    return figure


def beside(item: Item, records: Records, metrics: Sequence[str], in_steps: bool = False) -> Figure:
    """A panel a metric, side by side: convergence left, gradient diversity right (Figures 3, 4, B.1 and C.1).

    `in_steps`: over local steps, where runs differ in how many a round has.
    """
    parts = columns(item, records)
    shown = [*metrics, KEPT]
    figure = Figure(figsize=(PAGE, PAGE / len(shown) * 0.82 + 0.45), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False, sharex=True)[0]
    for number, (ax, metric) in enumerate(zip(axes, shown, strict=True)):
        _row([ax], metric, parts, records, in_steps)
        ax.set_title(f"({'abcd'[number]})", loc="left")
        ax.set_ylabel(label(metric))
        ax.set_xlabel("Local steps of a client" if in_steps else "Round")
    _legend(figure, parts)
    return figure


def _row(
    axes: list[Axes], metric: str, parts: Sequence[tuple[str, Lines]], records: Records, in_steps: bool = False
) -> None:
    styles = _styles(parts)
    panels = [
        {name: _over(seeds_series(result, records, metric, POINTS), result, in_steps) for name, result in lines.items()}
        for _, lines in parts
    ]
    for ax, panel in zip(axes, panels, strict=True):
        draw_panel(ax, metric, panel, styles)
        for name, series in panel.items():
            _mark(ax, metric, series, styles[name])
    set_scale(axes, metric, [series for panel in panels for series in panel.values()])


def _over(series: Series, result: CellResult, in_steps: bool) -> Series:
    """The same lines over local steps: a round of T steps ends T further on."""
    if not in_steps:
        return series
    T = int(result.cell.experiment.federation.T or 1)
    rounds, low, high = series.band
    return Series(
        mean=[(x * T, y) for x, y in series.mean],
        band=([x * T for x in rounds], low, high),
        single=[[(x * T, y) for x, y in line] for line in series.single],
        diverged=[[(x * T, y) for x, y in line] for line in series.diverged],
        bin_size=series.bin_size,
    )


def _mark(ax: Axes, metric: str, series: Series, style: Mapping[str, Any]) -> None:
    """Dots where a line has few points: between them nobody measured."""
    scale = 100.0 if is_fraction(metric) else 1.0
    for line in [series.mean, *series.single]:
        if 0 < len(line) <= SPARSE:
            ax.plot(*zip(*((x, scale * y) for x, y in line), strict=True), "o", color=style["color"], markersize=2.6)


def _styles(parts: Sequence[tuple[str, Lines]]) -> dict[str, dict[str, Any]]:
    names = list(dict.fromkeys(name for _, lines in parts for name in lines))
    return line_styles(names, [(title, dict(lines)) for title, lines in parts])


def _legend(figure: Figure, parts: Sequence[tuple[str, Lines]]) -> None:
    styles = _styles(parts)
    handles = [Line2D([], [], **style, linewidth=1.8) for style in styles.values()]
    figure.legend(handles, list(styles), loc="outside upper center", ncols=min(len(styles), 6), handlelength=1.6)


def bars(item: Item, records: Records) -> Figure:
    """Accuracy after the last round by method, a panel a row of the table (Figure 2), and the share kept below it. A
    dot a seed, a bar the mean, a line its 95 % interval."""
    parts = columns(item, records)
    metrics = (ACCURACY, KEPT)
    figure = Figure(figsize=(PAGE, 4.3), layout="constrained")
    axes = figure.subplots(len(metrics), len(parts), squeeze=False, sharey="row", sharex="col", height_ratios=(2, 1))
    for row, metric in zip(axes, metrics, strict=True):
        results = collect(item, records, metric)
        for ax, (_, lines) in zip(row, parts, strict=True):
            _bar_panel(ax, {name: (results[result.cell.label], result.n > 0) for name, result in lines.items()})
        row[0].set_ylabel(label(metric))
    for ax, (title, lines) in zip(axes[0], parts, strict=True):
        ax.set_title(title, loc="left")
        ax.set_xticks(range(len(lines)))
    for ax, (_, lines) in zip(axes[-1], parts, strict=True):
        names = [name.replace(" with ", "\nwith ").replace("-", "-\n") for name in lines]
        ax.set_xticks(range(len(lines)), names, fontsize=7)
    return figure


def _bar_panel(ax: Axes, lines: Mapping[str, tuple[CellResult, bool]]) -> None:
    """`lines`: a metric's values, and whether there is a finished run at all."""
    chosen = looks(lines)
    ax.grid(visible=False, axis="x")
    ax.set_ylim(0, 100)
    ax.set_xlim(-0.6, len(lines) - 0.4)
    for place, (name, (result, finished)) in enumerate(lines.items()):
        values = [100 * value for value in result.values.values()]
        if not values:
            note = "none" if finished else "diverged" if result.diverged else "not run"
            ax.text(place, 3, note, rotation=90, ha="center", va="bottom", alpha=0.6)
            continue
        seen, colour = summary(values), PALETTE[chosen[name].colour]
        ax.bar(place, seen.mean, width=0.62, color=colour, alpha=0.35, linewidth=0)
        ax.plot([place] * len(values), values, "o", color=colour, markersize=2.6)
        if seen.interval is not None and seen.n >= 3:
            ax.vlines(place, max(seen.interval[0], 0), min(seen.interval[1], 100), color=colour, linewidth=1.4)


def against(item: Item, records: Records, factor: str) -> Figure:
    """Accuracy after the last round against an environmental factor, a line a data set (Figure 5), and the share kept
    beside it."""
    figure = Figure(figsize=(PAGE, 3.0), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    data = list(dict.fromkeys(str(cell.setting["data"]) for cell in item.cells))
    chosen = dict(zip(data, series_looks(len(data)), strict=True))
    for number, (ax, metric) in enumerate(zip(axes, (ACCURACY, KEPT), strict=True)):
        results = collect(item, records, metric).values()
        for name, look in chosen.items():
            found = [result for result in results if result.cell.setting["data"] == name and result.values]
            _factor_line(ax, factor, found, PALETTE[look.colour], MATPLOTLIB_MARKERS[MARKERS[look.marker]])
        if factor == "T":
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_title(f"({'ab'[number]})", loc="left")
        ax.set_xlabel({"R": "Heterogeneity R", "T": "Local steps a round T", "N_s": "Labels N_s"}[factor])
        ax.set_ylabel(label(metric))
        if not any(result.values for result in results):
            ax.text(0.5, 0.5, "not run", transform=ax.transAxes, ha="center", va="center", alpha=0.6)
    handles = [Line2D([], [], **look.line, marker=MATPLOTLIB_MARKERS[MARKERS[look.marker]]) for look in chosen.values()]
    figure.legend(handles, data, loc="outside upper center", ncols=max(1, len(data)), handlelength=2.2)
    return figure


def _factor_line(ax: Axes, factor: str, results: Sequence[CellResult], colour: str, marker: str) -> None:
    places = sorted(((actual(result.cell.experiment)[factor], result) for result in results), key=lambda pair: pair[0])
    means = [summary(100 * value for value in result.values.values()) for _, result in places]
    xs = [x for x, _ in places]
    ax.plot(xs, [seen.mean for seen in means], color=colour, marker=marker, markersize=4, linewidth=1.3)
    low = [seen.interval[0] if seen.interval and seen.n >= 3 else math.nan for seen in means]
    high = [seen.interval[1] if seen.interval and seen.n >= 3 else math.nan for seen in means]
    ax.fill_between(xs, low, high, color=colour, alpha=0.16, lw=0)
    for x, result in places:
        ax.plot(
            [x] * result.n,
            [100 * value for value in result.values.values()],
            ".",
            color=colour,
            markersize=3,
            alpha=0.6,
        )


LAYOUTS: Mapping[str, Layout] = {
    "ssfl/fig2": bars,
    "ssfl/fig3": partial(beside, metrics=(ACCURACY, GRADIENTS)),
    "ssfl/fig4": partial(beside, metrics=(ACCURACY, GRADIENTS)),
    "ssfl/fig5_left": partial(against, factor="R"),
    "ssfl/fig5_middle": partial(against, factor="T"),
    "ssfl/fig5_right": partial(against, factor="N_s"),
    "ssfl/fig6": partial(stacked, metrics=(ACCURACY, GRADIENTS)),
    "ssfl/figb1": partial(beside, metrics=(ACCURACY,), in_steps=True),
    "ssfl/figc1": partial(beside, metrics=(ACCURACY,)),
    "ssfl/figd1": partial(stacked, metrics=variants("gradient/l2")),
    "ssfl/figd2": partial(stacked, metrics=variants("gradient/l1")),
    "ssfl/figd3": partial(stacked, metrics=variants("delta/l2")),
    "ssfl/figd4": partial(stacked, metrics=variants("delta/l1")),
}
