"""The arena's figures: every seed as a point, and learning curves with few enough lines a panel to read them.

A method has the look of reports/style.py in all of them; those of one colour differ in their dashes and markers.
"""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmark.papers.item import Item
from benchmark.verdicts.results import ACCURACY, CellResult, Records
from reports.arena.table import Column, columns, method_of, methods
from reports.arena.text import lines, title
from reports.drawing import GRID, INK, STYLE, draw_panel, laid_out, set_scale
from reports.series import seeds_series
from reports.style import MARKERS, MATPLOTLIB_MARKERS, PALETTE, Look, looks
from reports.words import csv_safe, metric_name

MOST_LINES = 8  # a panel; as many as there are colours that any eye tells apart
Row = tuple[str, str, str, list[float]]  # a label, a colour, a marker, and the runs' values in percent


def dots(item: Item, column: Column) -> Figure | None:
    """Accuracy at equal rounds: a line a method, best first, a dot a seed, a tick at the mean; bounds below a rule.
    None where no method has a finished run."""
    if not column.entries:
        return None
    chosen = looks(methods(item))
    shown = lines(item, column)
    compared = [(line.method, found.values) for line in shown if (found := line.place("rounds"))]
    beside = [(line.method, line.bound.values) for line in shown if line.bound]
    rows: list[Row] = [
        (method, PALETTE[chosen[method].colour], _marker(chosen[method]), [100 * v for v in values.values()])
        for method, values in compared
    ]
    bounds: list[Row] = [(method, INK, "o", [100 * v for v in values.values()]) for method, values in beside]
    with matplotlib.rc_context(STYLE):
        height = 0.235 * (len(rows) + len(bounds)) + 0.75
        figure = Figure(figsize=(7.4, height), layout="constrained")
        ax = figure.subplots()
        for number, row in enumerate([*rows, *bounds]):
            _dot_row(ax, number, row, faint=number >= len(rows))
        if bounds:
            ax.axhline(len(rows) - 0.5, color=GRID, linewidth=1)
        ax.set_yticks(range(len(rows) + len(bounds)), [label for label, *_ in [*rows, *bounds]])
        ax.set_ylim(len(rows) + len(bounds) - 0.4, -0.6)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(f"{metric_name(ACCURACY)} at equal rounds")
        ax.spines["left"].set_visible(False)
        return laid_out(figure)


def _marker(look: Look) -> str:
    return MATPLOTLIB_MARKERS[MARKERS[look.marker]]


def dots_csv(item: Item, column: Column) -> str:
    """The numbers behind `dots`, one line a run: method, kind, seed and accuracy (a fraction)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("method", "kind", "seed", "test/accuracy"))
    for line in lines(item, column):
        placing = line.place("rounds")
        values = placing.values if placing else line.bound.values if line.bound else {}
        writer.writerows((csv_safe(line.method), line.kind, seed, repr(value)) for seed, value in values.items())
    return text.getvalue()


def _dot_row(ax: Axes, number: int, row: Row, faint: bool) -> None:
    _, colour, marker, values = row
    ax.axhline(number, color=GRID, linewidth=0.5, zorder=0)
    ax.plot([sum(values) / len(values)], [number], "|", color=INK, markersize=11, markeredgewidth=1.6, zorder=3)
    face, edge = ("none", 1.0) if faint else (colour, 0.0)
    style: dict[str, Any] = {"color": colour, "markerfacecolor": face, "markeredgewidth": edge}
    ax.plot(values, [number] * len(values), marker, markersize=5.5, alpha=0.75, **style)


def learning_curves(item: Item, records: Records) -> Figure:
    """Accuracy over rounds: a column of panels a column of the table, methods shared out over lines of panels."""
    found, names = columns(item, records), methods(item)
    parts = _shared_out(names)
    with matplotlib.rc_context(STYLE):
        width = 2.7 if len(found) <= 2 else 2.0  # narrower ones keep the letters of a wide figure legible
        figure = Figure(figsize=(width * max(2, len(found)) + 1.5, 2.35 * len(parts) + 0.4), layout="constrained")
        axes = figure.subplots(len(parts), max(1, len(found)), squeeze=False, sharex=True, sharey=True)
        chosen = looks(methods(item))
        everything = []
        for line, part in zip(axes, parts, strict=True):
            for ax, column in zip(line, found, strict=False):
                shown = {method: seeds_series(result, records, ACCURACY) for method, result in _lines(column, part)}
                draw_panel(ax, ACCURACY, shown, {method: chosen[method].line for method in shown}, band_alpha=0.1)
                everything += list(shown.values())
            line[0].set_ylabel(metric_name(ACCURACY))
            handles = [Line2D([], [], **chosen[method].line, linewidth=2) for method in part]
            labels = [" " + method if method.startswith("_") else method for method in part]
            line[-1].legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=1.2)
        for ax, column in zip(axes[0], found, strict=False):
            ax.set_title(title(column), loc="left")
        for ax in axes[-1]:
            ax.set_xlabel("Round")
        set_scale([axes[0][0]], ACCURACY, everything)
        return laid_out(figure)


def _lines(column: Column, part: Sequence[str]) -> list[tuple[str, CellResult]]:
    """The part's methods that have a cell in the column, diverged ones too."""
    cells = {method_of(result.cell): result for result in (*(e.result for e in column.entries), *column.apart)}
    return [(method, cells[method]) for method in part if method in cells]


def _shared_out(names: Sequence[str]) -> list[Sequence[str]]:
    """As few parts as MOST_LINES allows, of sizes that differ by one at most; in order, so that no part has a colour
    twice. At least one part, if empty."""
    parts = max(1, math.ceil(len(names) / MOST_LINES))
    edges = [round(number * len(names) / parts) for number in range(parts + 1)]
    return [names[start:end] for start, end in zip(edges, edges[1:], strict=False)]
