"""Curves over rounds as SVG and PNG: the same records always give the same bytes.

One column of panels a row of the item's table (SSFL: a cohort size), one line of panels a metric, one colour a method.
With three finished seeds or more a line is the mean and the band its 95 % t interval; with fewer, every run is a thin
line of its own. A diverged run is a dotted line up to its last round, and never part of a mean.
"""

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmark.papers.item import Item
from benchmark.tracking.files import write_atomically
from reports.cells import ACCURACY, CellResult, Records, collect, grid
from reports.series import Series, seeds_series
from reports.words import is_fraction, metric_name

DIVERSITY = "diversity/delta/l2/squared/clients"
# Okabe and Ito's colours, told apart with any colour vision and in print.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f", "#6a51a3")
INK, GRID = "#1f2933", "#c3ccd5"
POWERS, MEMBERS = ("squared", "plain"), ("clients", "with_server")
LOG_SPAN = 100.0  # two decades
STYLE: Any = {
    "svg.hashsalt": "fssl",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a "$" in a name is a dollar
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "text.color": INK,
    "legend.frameon": False,
}
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
    styles = {name: _line_style(i) for i, name in enumerate(names)}
    width, height = max(4.6, 2.9 * len(columns) + 0.5), 1.95 * len(metrics) + 0.75
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(len(metrics), len(columns), squeeze=False, sharex="col", sharey="row")
    for i, metric in enumerate(metrics):
        series = [
            {name: seeds_series(result, records, metric) for name, result in lines.items()} for _, lines in columns
        ]
        for ax, lines in zip(axes[i], series, strict=True):
            _draw_panel(ax, metric, lines, styles)
        _scale(list(axes[i]), metric, [line for lines in series for line in lines.values()])
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


def _line_style(index: int) -> dict[str, Any]:
    """A colour of the palette; where that is used up, again with dashes."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": ("-", "--", "-.")[index // len(PALETTE) % 3]}


def _draw_panel(ax: Axes, metric: str, lines: dict[str, Series], styles: dict[str, dict[str, Any]]) -> None:
    scale = 100.0 if is_fraction(metric) else 1.0
    for name, line in lines.items():
        style = styles[name]
        colour = style["color"]
        if line.mean:
            rounds, low, high = line.band
            ax.fill_between(rounds, [scale * v for v in low], [scale * v for v in high], color=colour, alpha=0.16, lw=0)
            ax.plot(*_xy(line.mean, scale), **style, linewidth=1.6)
        for run in line.single:
            ax.plot(*_xy(run, scale), **style, linewidth=0.9, alpha=0.9)
        for run in line.diverged:
            ax.plot(*_xy(run, scale), color=colour, linewidth=0.9, linestyle=":")
            ax.plot(*_xy(run[-1:], scale), color=colour, marker="x", markersize=5)
    if not any(line.mean or line.single or line.diverged for line in lines.values()):
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", alpha=0.6)
    ax.margins(x=0.02)


def _xy(points: Sequence[tuple[int, float]], scale: float) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [scale * y for _, y in points]


def _scale(row: list[Axes], metric: str, lines: list[Series]) -> None:
    """Shared by a metric's panels. The limits follow the lines, not the bands: a band of three seeds can be wide."""
    scale = 100.0 if is_fraction(metric) else 1.0
    values = [scale * y for line in lines for run in (line.mean, *line.single, *line.diverged) for _, y in run]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return
    low, high = min(values), max(values)
    if metric.startswith("diversity/") and low > 0 and high / low > LOG_SPAN:
        row[0].set_yscale("log")
        row[0].set_ylim(low / 1.3, high * 1.3)
        return
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    row[0].set_ylim(low - pad, min(high + pad, 101.0) if is_fraction(metric) else high + pad)


def _y_label(metric: str) -> str:
    if not metric.startswith("diversity/"):
        return metric_name(metric).replace(" of kept pseudo-labels", "\nof pseudo-labels")
    return "\n".join(["Gradient diversity", variant_name(metric)])


def variant_name(metric: str) -> str:
    """diversity/delta/l2/squared/with_server -> "l2 squared, with server"."""
    _, _, norm, power, members = metric.split("/")
    return f"{norm} {power}, {members.replace('_', ' ')}"


def svg(figure: Figure) -> str:
    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, facecolor="none")
    # a hundredth of a point is finer than any screen: half of the bytes
    return re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]), text.getvalue())


def png(figure: Figure) -> bytes:
    with matplotlib.rc_context(STYLE):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=160, metadata={"Software": None}, facecolor="white")
    return picture.getvalue()


def curves(
    item: Item, records: Records, metrics: Sequence[str] = (ACCURACY, DIVERSITY), path: Path = Path("curves")
) -> tuple[Path, Path]:
    """Accuracy (top) and gradient diversity (bottom) per round, or any other metrics, as `path`.svg and `path`.png.
    Raises CannotWrite."""
    figure = figure_of(item, records, metrics)
    names = path.with_name(path.name + ".svg"), path.with_name(path.name + ".png")
    write_atomically(names[0], svg(figure).encode())
    write_atomically(names[1], png(figure))
    return names


def figure_of(item: Item, records: Records, metrics: Sequence[str]) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = draw(panels(item, records), records, metrics)
        return _laid_out(figure)


def cell_figure(result: CellResult, records: Records, metrics: Sequence[str]) -> Figure:
    """One cell alone, a panel a metric, two beside each other. Margins are fixed, which is faster than finding them."""
    with matplotlib.rc_context(STYLE):
        lines = math.ceil(len(metrics) / 2)
        width, height = 7.4, 2.1 * lines + 0.4
        figure = Figure(figsize=(width, height))
        axes = figure.subplots(lines, 2, squeeze=False).flatten()
        for ax, metric in zip(axes, metrics, strict=False):
            series = seeds_series(result, records, metric)
            _draw_panel(ax, metric, {"": series}, {"": _line_style(0)})
            _scale([ax], metric, [series])
            ax.set_title(_y_label(metric).replace("\n", " "), loc="left", fontsize=8.5)
        for ax in axes[len(metrics) :]:
            ax.set_visible(False)
        for ax in axes[max(0, len(metrics) - 2) : len(metrics)]:
            ax.set_xlabel("Round")
        figure.subplots_adjust(
            left=0.4 / width,
            right=1 - 0.1 / width,
            bottom=0.45 / height,
            top=1 - 0.3 / height,
            hspace=0.32,
            wspace=0.14,
        )
        return figure


def _laid_out(figure: Figure) -> Figure:
    """Finds the layout once, so that SVG and PNG do not each find it again."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def diversity_panels(item: Item, records: Records) -> dict[str, Figure | None]:
    """The 16 variants as SSFL's figures D.1 to D.4 arrange them: a figure for each way of taking the gradient and each
    norm; in it accuracy, then Eq. 1 (or 13) and Eq. 12 (or 14) among clients, then both with the server. None for a
    figure of which no run measured anything; a single variant that was not measured is a panel that says so."""
    figures: dict[str, Figure | None] = {}
    for gradient in ("gradient", "delta"):
        for norm in ("l2", "l1"):
            start = f"diversity/{gradient}/{norm}"
            variants = [f"{start}/{power}/{members}" for members in MEMBERS for power in POWERS]
            some = any(measured(records, variant) for variant in variants)
            figures[f"{gradient}-{norm}"] = figure_of(item, records, [ACCURACY, *variants]) if some else None
    return figures


def measured(records: Records, metric: str) -> bool:
    """Whether any round of any run has the metric."""
    return any(metric in line for runs in records.values() for record in runs.values() for line in record.rounds)


def inline(text: str, prefix: str) -> str:
    """An SVG made part of a page: no XML prologue, ids of its own, and colours taken from the page, so that it follows
    the page's light or dark theme. `prefix` must be unique in the page."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", body)
    body = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', r'\1 style="--w: \2px"', body, count=1)
    body = body.replace("*{stroke-linejoin", ".figure svg *{stroke-linejoin").replace("'DejaVu Sans'", "var(--sans)")
    variables: dict[str, Any] = {INK: "var(--ink)", GRID: "var(--grid)"}
    variables |= {colour: f"var(--series-{i})" for i, colour in enumerate(PALETTE)}
    for colour, variable in variables.items():
        body = body.replace(colour, variable)
    return body
