"""Gradient diversity against accuracy, a dot a cell: as they are, and what is left with the server's weight held fixed.

Colour and marker tell the averaging, as everywhere; grouping is joined to its control, which has its server's weight.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.association import rank_residuals
from reports.drawing import GRID, STYLE, laid_out
from reports.explained import FEDAVG, Explained, Point
from reports.explained_words import NAMES, coefficient
from reports.style import MARKERS, MATPLOTLIB_MARKERS, PALETTE, looks

Place: TypeAlias = tuple[float, float]
WAYS = (FEDAVG[0], "Control", "Grouping")


def scatter(found: Explained) -> Figure | None:
    """Two panels; None with fewer than three cells."""
    if len(found.points) < 3:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        plain = {p.name: (p.diversity[found.measure], 100 * (1 - p.accuracy)) for p in found.points}
        _panel(left, found.points, plain.__getitem__, f"As measured: {coefficient(found.plain)}")
        left.set_yscale(
            "log"
        )  # accuracies crowd at the top: an error of 2 % and one of 4 % are as far apart as 40 and 80
        left.invert_yaxis()
        left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 - value:g}"))
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_xlabel(_start_upper(NAMES[found.measure]))
        left.set_ylabel("Accuracy, %")
        rest = _residuals(found)
        _panel(right, found.points, rest.__getitem__, f"Server's weight fixed: {coefficient(found.held)}")
        right.axhline(0, color=GRID, linewidth=0.8, zorder=0)
        right.axvline(0, color=GRID, linewidth=0.8, zorder=0)
        right.set_xlabel("Rank of the diversity, what is left")
        right.set_ylabel("Rank of the accuracy, what is left")
        chosen = looks(WAYS)
        handles = [
            Line2D(
                [], [], linestyle="", color=PALETTE[chosen[way].colour], marker=_marker(way), markersize=6, alpha=0.85
            )
            for way in WAYS
        ]
        figure.legend(handles, WAYS, loc="outside upper left", ncols=len(WAYS), handletextpad=0.2)
        return laid_out(figure)


def _start_upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _marker(way: str) -> str:
    return MATPLOTLIB_MARKERS[MARKERS[looks(WAYS)[way].marker]]


def _residuals(found: Explained) -> dict[str, Place]:
    columns = (
        np.asarray([point.diversity[found.measure] for point in found.points]),
        np.asarray([point.accuracy for point in found.points]),
    )
    weights = np.asarray([point.server_weight for point in found.points])
    x_N, y_N = (rank_residuals(column, weights) for column in columns)
    return {point.name: (float(x), float(y)) for point, x, y in zip(found.points, x_N, y_N, strict=True)}


def _panel(ax: Axes, points: Sequence[Point], place: Callable[[str], Place], title: str) -> None:
    ax.set_title(title, loc="left", fontsize=8.5)
    for setting in dict.fromkeys(point.setting for point in points):
        pair = [p for p in points if p.setting == setting and p.way in ("Grouping", "Control")]
        if {point.way for point in pair} == {"Grouping", "Control"}:
            ax.plot(*zip(*(place(point.name) for point in pair), strict=True), color=GRID, linewidth=0.9, zorder=1)
    chosen = looks(WAYS)
    for way in WAYS:
        places = [place(point.name) for point in points if point.way == way]
        if places:
            colour = PALETTE[chosen[way].colour]
            style: dict[str, Any] = {"color": colour, "marker": _marker(way), "markeredgewidth": 0.0, "alpha": 0.85}
            ax.plot(*zip(*places, strict=True), linestyle="", markersize=6, zorder=2, **style)
    ax.margins(0.07)
