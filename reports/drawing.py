"""What all figures share: colours, the lines of one panel, and SVG and PNG with the same bytes for the same records.

With three finished seeds or more a line is the mean and the band its 95 % t interval; with fewer, every run is a thin
line of its own. A diverged run is a dotted line up to its last round, and never part of a mean.
"""

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.series import Series
from reports.style import PALETTE
from reports.words import is_fraction

INK, GRID = "#1f2933", "#c3ccd5"
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


def draw_panel(
    ax: Axes,
    metric: str,
    lines: dict[str, Series],
    styles: dict[str, dict[str, Any]],
    band_alpha: float = 0.16,
) -> None:
    """One metric's lines with their bands; says so where nothing was measured."""
    scale = 100.0 if is_fraction(metric) else 1.0
    for name, line in lines.items():
        style = styles[name]
        colour = style["color"]
        if line.mean:
            rounds, low, high = line.band
            lower, upper = ([scale * v for v in edge] for edge in (low, high))
            ax.fill_between(rounds, lower, upper, color=colour, alpha=band_alpha, lw=0)
            ax.plot(*xy(line.mean, scale), **style, linewidth=1.6)
        for run in line.single:
            ax.plot(*xy(run, scale), **style, linewidth=0.9, alpha=0.9)
        for run in line.diverged:
            ax.plot(*xy(run, scale), color=colour, linewidth=0.9, linestyle=":")
            ax.plot(*xy(run[-1:], scale), color=colour, marker="x", markersize=5)
    if not any(line.mean or line.single or line.diverged for line in lines.values()):
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", alpha=0.6)
    ax.margins(x=0.02)


def xy(points: Sequence[tuple[int, float]], scale: float) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [scale * y for _, y in points]


def set_scale(row: list[Axes], metric: str, lines: list[Series]) -> None:
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


def svg(figure: Figure) -> str:
    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, facecolor="none")
    # a hundredth of a point is finer than any screen: half of the bytes
    return re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]), text.getvalue())


def pdf(figure: Figure) -> bytes:
    """Letters stay letters, in fonts of the file's own; no date, no program's name."""
    with matplotlib.rc_context({**STYLE, "pdf.fonttype": 42}):
        page = io.BytesIO()
        figure.savefig(page, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return page.getvalue()


def png(figure: Figure) -> bytes:
    with matplotlib.rc_context(STYLE):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=160, metadata={"Software": None}, facecolor="white")
    return picture.getvalue()


def laid_out(figure: Figure) -> Figure:
    """Finds the layout once, so that SVG and PNG do not each find it again."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


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
