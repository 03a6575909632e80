"""Curves over rounds as SVG and PNG: the same records always give the same bytes.

One column of panels a row of the item's table (SSFL: a cohort size), one line of panels a metric, one colour a method.
Lines and bands are those of reports/drawing.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmark.papers.item import Item
from benchmark.records.files import write_atomically
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect
from reports.arena.figures import learning_curves
from reports.cells import grid
from reports.drawing import STYLE, draw_panel, laid_out, png, set_scale, svg
from reports.series import seeds_series
from reports.style import looks, series_looks
from reports.words import metric_name

DIVERSITY = "diversity/delta/l2/squared/clients"
POWERS, MEMBERS = ("squared", "plain"), ("clients", "with_server")
Panel = tuple[str, dict[str, CellResult]]  # its title, and line name -> cell


def panels(item: Item, records: Records) -> list[Panel]:
    """One panel a row of the item's grid; an item without a grid has one panel with a line a cell."""
    results = collect(item, records)
    cells = grid(results.values())
    if cells is None:
        return [("", {label: result for label, result in results.items() if result.cell.role != "ladder"})]
    return [(row.name or cells.constant, dict(row.results)) for row in cells.rows]


def draw(columns: Sequence[Panel], records: Records, metrics: Sequence[str]) -> Figure:
    """The figure: len(metrics) lines of panels by len(columns). Metrics no run measured are said to be so."""
    names = list(dict.fromkeys(name for _, lines in columns for name in lines))
    styles = line_styles(names, columns)
    width, height = max(4.6, 2.9 * len(columns) + 0.5), 1.95 * len(metrics) + 0.75
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(len(metrics), len(columns), squeeze=False, sharex="col", sharey="row")
    for i, metric in enumerate(metrics):
        series = [
            {name: seeds_series(result, records, metric) for name, result in lines.items()} for _, lines in columns
        ]
        for ax, lines in zip(axes[i], series, strict=True):
            draw_panel(ax, metric, lines, styles)
        set_scale(list(axes[i]), metric, [line for lines in series for line in lines.values()])
        axes[i][0].set_ylabel(_y_label(metric))
    for ax, (title, _) in zip(axes[0], columns, strict=True):
        ax.set_title(title, loc="left")
    longest = max((line.bin_size for lines in series for line in lines.values()), default=1)
    for ax in axes[-1]:
        ax.set_xlabel("Round" if longest == 1 else f"Round (means of {longest})")
    if names != [""]:
        handles = [Line2D([], [], **styles[name], linewidth=2) for name in names]
        per_line = max(1, int(11 * width / (max(map(len, names)) + 7)))  # about 11 characters an inch
        # matplotlib drops legend entries that start with an underscore
        labels = [" " + name if name.startswith("_") else name for name in names]
        figure.legend(handles, labels, loc="outside upper left", ncols=min(len(names), per_line), handlelength=1.4)
    return figure


def line_styles(names: Sequence[str], columns: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """The methods' own where lines are methods, by place where they are settings."""
    known = {str(r.cell.setting.get("method")) for _, lines in columns for r in lines.values()}
    found = looks(names) if set(names) <= known else dict(zip(names, series_looks(len(names)), strict=True))
    return {name: look.line for name, look in found.items()}


def _y_label(metric: str) -> str:
    if not metric.startswith("diversity/"):
        return metric_name(metric).replace(" of kept pseudo-labels", "\nof pseudo-labels")
    return "\n".join(["Gradient diversity", *variant_words(metric).split(", ", 1)])


def variant_name(metric: str) -> str:
    """diversity/delta/l2/squared/with_server -> "l2 squared, with server"."""
    _, _, norm, power, members = metric.split("/")
    return f"{norm} {power}, {members.replace('_', ' ')}"


def variant_words(metric: str) -> str:
    """With what it is a diversity of: "of weight changes, l2 squared, with server"."""
    of = {"gradient": "of gradients", "delta": "of weight changes"}[metric.split("/")[1]]
    return f"{of}, {variant_name(metric)}"


def picture(figure: Figure, path: Path) -> tuple[Path, Path]:
    """`path`.svg and `path`.png; the same figure gives the same bytes. Raises CannotWrite."""
    names = path.with_name(path.name + ".svg"), path.with_name(path.name + ".png")
    write_atomically(names[0], svg(figure).encode())
    write_atomically(names[1], png(figure))
    return names


def figure_of(item: Item, records: Records, metrics: Sequence[str]) -> Figure:
    """The item's curves; where rows are methods, the arena's, which have room for them all."""
    if item.methods_are_rows:
        return learning_curves(item, records)
    with matplotlib.rc_context(STYLE):
        figure = draw(panels(item, records), records, metrics)
        return laid_out(figure)


def variant_metrics(records: Records) -> dict[str, list[str]]:
    """SSFL's figures D.1 to D.4, their name -> their metrics: a figure for each way of taking the gradient and each
    norm; in it accuracy, then Eq. 1 (or 13) and Eq. 12 (or 14) among clients, then both with the server. A figure of
    which no run measured anything is absent; a single variant that was not measured is a panel that says so."""
    found: dict[str, list[str]] = {}
    for gradient in ("gradient", "delta"):
        for norm in ("l2", "l1"):
            start = f"diversity/{gradient}/{norm}"
            variants = [f"{start}/{power}/{members}" for members in MEMBERS for power in POWERS]
            if any(measured(records, variant) for variant in variants):
                found[f"{gradient}-{norm}"] = [ACCURACY, *variants]
    return found


def measured(records: Records, metric: str) -> bool:
    """Whether any round of any run has the metric."""
    return any(metric in line for runs in records.values() for record in runs.values() for line in record.rounds)
