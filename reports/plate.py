"""Curves for print: panels in rows and columns, on a plate of their own, as the page shows them.

With three finished seeds or more a line is the mean and the band its 95 % t interval; with fewer, every run is a line
of its own. A diverged run is dotted to a cross.
"""

import math
from collections.abc import Mapping, Sequence

from benchmark.verdicts.results import CellResult, Records
from reports.chart import Axis, axes, on_axes, scaled
from reports.figures import variant_name
from reports.ink import Plate, Point, Stroke, Text, text_width
from reports.series import Series, seeds_series
from reports.style import DASHES, MARKERS, PALETTE, Look
from reports.words import metric_name

Panel = tuple[str, Mapping[str, CellResult]]
GRID, MUTED = "#d4dae0", "#5c6670"
WIDTH, HEIGHT = 172.0, 122.0  # of a panel with its labels
LEFT, RIGHT, TOP, BOTTOM = 30.0, 6.0, 16.0, 18.0
EDGE, LEGEND = 14.0, 13.0
CELL_COLUMNS = 3
OUTLINES: Mapping[str, Sequence[Point]] = {
    "circle": [(2.2 * math.cos(math.pi * i / 6), 2.2 * math.sin(math.pi * i / 6)) for i in range(12)],
    "square": [(-2, -2), (2, -2), (2, 2), (-2, 2)],
    "triangle": [(0, -2.6), (2.4, 1.8), (-2.4, 1.8)],
    "diamond": [(0, -2.8), (2.8, 0), (0, 2.8), (-2.8, 0)],
    "down": [(0, 2.6), (2.4, -1.8), (-2.4, -1.8)],
    "plus": [(-0.8, -2.5), (0.8, -2.5), (0.8, -0.8), (2.5, -0.8), (2.5, 0.8), (0.8, 0.8), (0.8, 2.5), (-0.8, 2.5),
             (-0.8, 0.8), (-2.5, 0.8), (-2.5, -0.8), (-0.8, -0.8)],
    "cross": [(0, -1.2), (1.7, -2.9), (2.9, -1.7), (1.2, 0), (2.9, 1.7), (1.7, 2.9), (0, 1.2), (-1.7, 2.9),
              (-2.9, 1.7), (-1.2, 0), (-2.9, -1.7), (-1.7, -2.9)],
}  # fmt: skip


def plate(columns: Sequence[Panel], styles: Mapping[str, Look], metrics: Sequence[str], records: Records) -> Plate:
    """A row of panels a metric, a panel a column; the axes of a row are shared, so that its panels compare."""
    names = [name for name in styles if name]
    width = EDGE + max(1, len(columns)) * WIDTH + 4
    rows = _legend_rows(names, width)
    top = 8 + LEGEND * len(rows)
    found = Plate(width=width, height=top + len(metrics) * HEIGHT + 4)
    for number, row in enumerate(rows):
        _legend(found, row, styles, 14 + LEGEND * number)
    for number, metric in enumerate(metrics):
        y = top + number * HEIGHT
        series = [
            {name: scaled(seeds_series(r, records, metric), metric) for name, r in lines.items()}
            for _, lines in columns
        ]
        points = [
            p for panel in series for s in panel.values() for run in (s.mean, *s.single, *s.diverged) for p in run
        ]
        middle = y + TOP + (HEIGHT - TOP - BOTTOM) / 2
        found.marks.append(Text(x=10, y=middle, text=metric_name(metric), size=7.5, anchor=0.5, turned=True))
        if metric.startswith("diversity/"):
            found.marks.append(Text(x=18, y=middle, text=variant_name(metric), size=6.5, anchor=0.5, turned=True))
        for place, ((title, _), panel) in enumerate(zip(columns, series, strict=True)):
            frame = (EDGE + place * WIDTH, y)
            if title and number == 0:
                found.marks.append(Text(x=frame[0] + LEFT, y=y + 10, text=title, size=8.5, bold=True))
            _panel(found, frame, metric, panel, points, styles)
    return found


def cell_plate(label: str, look: Look, series: Mapping[str, Series]) -> Plate:
    """A cell's metrics, three panels a row, each on axes of its own; every run thin, their mean over it. `series`: by
    metric, in the record's unit."""
    across = min(CELL_COLUMNS, max(1, len(series)))
    found = Plate(width=EDGE + across * WIDTH + 4, height=22 + math.ceil(len(series) / across) * HEIGHT + 4)
    found.marks.append(Text(x=EDGE, y=14, text=label, size=9, bold=True))
    for number, (metric, line) in enumerate(series.items()):
        drawn = scaled(line, metric)
        points = [p for run in (drawn.mean, *drawn.runs.values()) for p in run]
        x, y = EDGE + number % across * WIDTH, 22 + number // across * HEIGHT
        name = metric_name(metric)
        if metric.startswith("diversity/"):
            name = f"{name}, {variant_name(metric)}"
        found.marks.append(Text(x=x + LEFT, y=y + 10, text=name, size=7.5))
        _panel(found, (x, y), metric, {"": drawn}, points, {"": look}, every=True)
    return found


def _legend_rows(names: Sequence[str], width: float) -> list[list[str]]:
    rows: list[list[str]] = []
    used = width
    for name in names:
        wide = 34 + text_width(name, 8)
        if used + wide > width - 20:
            rows.append([])
            used = 0.0
        rows[-1].append(name)
        used += wide
    return rows


def _legend(found: Plate, names: Sequence[str], styles: Mapping[str, Look], y: float) -> None:
    x = EDGE + LEFT
    for name in names:
        look = styles[name]
        found.marks.append(
            Stroke(lines=[[(x, y - 3), (x + 18, y - 3)]], colour=PALETTE[look.colour], width=1.4, dash=_dash(look))
        )
        found.marks.append(_markers([(x + 9, y - 3)], look))
        found.marks.append(Text(x=x + 22, y=y, text=name))
        x += 34 + text_width(name, 8)


def _panel(
    found: Plate,
    frame: Point,
    metric: str,
    panel: Mapping[str, Series],
    points: Sequence[tuple[int, float]],
    styles: Mapping[str, Look],
    every: bool = False,
) -> None:
    """`every`: also each run that a mean stands for."""
    left, right = frame[0] + LEFT, frame[0] + WIDTH - RIGHT
    top, bottom = frame[1] + TOP, frame[1] + HEIGHT - BOTTOM
    if not any(series.runs for series in panel.values()):
        middle = ((left + right) / 2, (top + bottom) / 2)
        found.marks.append(Text(x=middle[0], y=middle[1], text="not measured", anchor=0.5, colour=MUTED))
        return
    x, y = axes(metric, points, (left + 2, right - 2), (bottom - 2, top + 2))
    for value in y.ticks(4):
        at = y.place(value)
        found.marks.append(Stroke(lines=[[(left, at), (right, at)]], colour=GRID, width=0.4))
        found.marks.append(Text(x=left - 3, y=at + 2.4, text=f"{round(value, 6):g}", size=7, anchor=1.0, colour=MUTED))
    for value in x.ticks(5):
        place = Text(x=x.place(value), y=bottom + 9, text=f"{value:g}", size=7, anchor=0.5, colour=MUTED)
        found.marks.append(place)
    for name, series in panel.items():
        _band(found, series, styles[name], x, y, (top, bottom))
    for name, series in panel.items():
        if every and series.mean:
            runs = [on_axes(run, x, y) for run in series.runs.values() if run not in series.diverged]
            found.marks.append(Stroke(lines=runs, colour=PALETTE[styles[name].colour], width=0.4, alpha=0.5))
        _lines(found, series, styles[name], x, y)


def _band(found: Plate, series: Series, look: Look, x: Axis, y: Axis, limits: Point) -> None:
    rounds, low, high = series.band
    if len(rounds) < 2:
        return
    floor = 10.0**y.low if y.log else -math.inf
    lower = on_axes([(a, max(b, floor)) for a, b in zip(rounds, low, strict=True)], x, y)
    upper = on_axes(list(zip(rounds, high, strict=True)), x, y)
    outline = [(a, min(max(b, limits[0]), limits[1])) for a, b in [*lower, *reversed(upper)]]
    found.marks.append(Stroke(lines=[outline], colour=PALETTE[look.colour], filled=True, alpha=0.16))


def _lines(found: Plate, series: Series, look: Look, x: Axis, y: Axis) -> None:
    colour, dash = PALETTE[look.colour], _dash(look)
    for run in series.single:
        found.marks.append(Stroke(lines=[on_axes(run, x, y)], colour=colour, width=0.7, dash=dash))
    for run in series.diverged:
        placed = on_axes(run, x, y)
        found.marks.append(Stroke(lines=[placed], colour=colour, width=0.7, dash=(1.0, 2.0)))
        for a, b in placed[-1:]:
            cross = [[(a - 2, b - 2), (a + 2, b + 2)], [(a - 2, b + 2), (a + 2, b - 2)]]
            found.marks.append(Stroke(lines=cross, colour=colour, width=1.2))
    if series.mean:
        placed = on_axes(series.mean, x, y)
        found.marks.append(Stroke(lines=[placed], colour=colour, width=1.3, dash=dash))
        step = max(1, len(placed) // 5)
        found.marks.append(_markers(placed[(look.colour * step // 8) % step :: step], look))


def _markers(places: Sequence[Point], look: Look) -> Stroke:
    outline = OUTLINES[MARKERS[look.marker]]
    lines = [[(x + dx, y + dy) for dx, dy in outline] for x, y in places]
    return Stroke(lines=lines, colour=PALETTE[look.colour], filled=True)


def _dash(look: Look) -> tuple[float, ...]:
    return tuple(float(part) * 0.7 for part in DASHES[look.dash].split())
