"""All drawings, by matplotlib: curves, accuracy against a factor, rows of intervals, scatter, class counts.

A picture is drawn once. Its SVG has an id for every line and takes its colours from CSS variables, so that one file
serves light and dark pages; `data` has what the page's script reads values from. PNG and PDF are matplotlib's own.
The same records always give the same bytes.
"""

import functools
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from benchmark.verdicts.statistics import Summary
from reports.formatting import axis_title, is_fraction
from reports.results import Series
from reports.style import DARK, GRID, INK, MUTED, PALETTE, Look

STYLE: Any = {
    "svg.hashsalt": "fssl",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "path.simplify": False,
    "text.parse_math": False,  # a "$" in a name is a dollar
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # fixed: finding a place for it is a third of the drawing time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
}
VARIABLES = {INK: "--ink", GRID: "--grid", MUTED: "--muted", **{c: f"--series-{i}" for i, c in enumerate(PALETTE)}}
DARK_INKS = {INK: "#e4e8eb", GRID: "#343d45", MUTED: "#a3aeb8"}
BUSY = 5  # lines in a panel, from which on bands are faint and single seeds left out
LOG_SPAN = 100.0  # a metric that spans two decades has a logarithmic axis


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of curves: its lines by name."""

    title: str
    metric: str
    lines: Mapping[str, Series]
    truth: Mapping[str, Series] = field(default_factory=dict)  # the same lines' true values, dotted
    joins: int | None = None  # the round after which clients take part
    steps: Mapping[str, int] = field(default_factory=dict)  # local steps a round, where x is local steps


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn figure. `data`: for each panel where it lies, its axes, and its lines' points."""

    figure: Figure
    data: Sequence[Mapping[str, Any]] = ()

    def svg(self) -> str:
        """A file of its own, which follows the reader's light or dark setting."""
        light = "".join(f"{name}:{colour};" for colour, name in VARIABLES.items())
        inks = {**DARK_INKS, **dict(zip(PALETTE, DARK, strict=True))}
        dark = "".join(f"{VARIABLES[colour]}:{other};" for colour, other in inks.items())
        style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
        body = self._body.replace("--sans", "--none")
        return '<?xml version="1.0" encoding="utf-8"?>\n' + re.sub(r"(<svg[^>]*>)", rf"\1{style}", body, count=1) + "\n"

    @property
    def label(self) -> str:
        """What it shows, for those who cannot see it: what stands at its axes."""
        texts = [ax.get_ylabel() or ax.get_xlabel() for ax in self.figure.axes]
        return "Figure: " + "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts if text))

    def inline(self, ident: str) -> Markup:
        """A part of a page, with the data for the page's script. `ident` is unique in the page."""
        body = re.sub(r'\bid="', f'id="{ident}-', self._body)
        body = re.sub(r'(url\(|href=")#', rf"\1#{ident}-", body)
        head = Markup(' class="drawn" role="img" tabindex="0" aria-label="{}" data-figure="{}"').format(
            self.label, ident
        )
        body = body.replace("<svg", f"<svg{head}", 1)
        if not self.data:
            return Markup(body)
        return (
            Markup(body)
            + Markup('<script type="application/json" id="{}-data">').format(ident)
            + as_json(self.data)
            + Markup("</script>")
        )

    @functools.cached_property
    def _body(self) -> str:
        text = io.StringIO()
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, facecolor="none")
        body = text.getvalue()
        body = re.sub(r"<metadata>.*?</metadata>", "", body[body.index("<svg") :], flags=re.DOTALL)
        # a hundredth of a point is finer than any screen: half of the bytes
        body = re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]), body)
        body = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', r'\1 style="--w:\2px"', body, count=1)
        body = _told_apart(body)
        body = body.replace("*{stroke-linejoin", ".drawn *{stroke-linejoin").replace("'DejaVu Sans'", "var(--sans)")
        return re.sub("|".join(VARIABLES), lambda colour: f"var({VARIABLES[colour[0]]})", body)

    def pdf(self) -> bytes:
        """Letters stay letters, in fonts of the file's own; no date, no program's name."""
        page = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(page, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
        return page.getvalue()

    def png(self) -> bytes:
        page = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            FigureCanvasAgg(self.figure)
            self.figure.savefig(page, format="png", dpi=160, metadata={"Software": None}, facecolor="white")
        return page.getvalue()


def _told_apart(svg: str) -> str:
    """No id twice: a line has one in each panel."""
    times: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        times[found[1]] = times.get(found[1], 0) + 1
        return found[0] if times[found[1]] == 1 else f'id="{found[1]}-{times[found[1]]}"'

    return re.sub(r'id="(line-[^"]*)"', numbered, svg)


def as_json(value: Any) -> Markup:
    """JSON for a data block of a page: with nothing in it that could end the block."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


class _Canvas:
    """A figure of equal panels, `rows` by `columns`, with a legend above them; sizes in inches."""

    def __init__(
        self,
        rows: int,
        columns: int,
        looks: Mapping[str, Look],
        *,
        width: float = 2.7,
        height: float = 1.9,
        left: float = 0.6,
        titles: bool = True,
    ) -> None:
        self.looks = looks
        names = [name for name in looks if name]
        total = left + columns * (width + 0.18)
        lines = self._legend_lines(names, total)
        top = 0.1 + 0.22 * len(lines) + (0.22 if titles else 0.0)
        total_height = top + rows * (height + 0.42) + 0.1
        self.figure = Figure(figsize=(total, total_height))
        self.axes = [
            [
                self.figure.add_axes(
                    (
                        (left + column * (width + 0.18)) / total,
                        1 - (top + row * (height + 0.42) + height) / total_height,
                        width / total,
                        height / total_height,
                    )
                )
                for column in range(columns)
            ]
            for row in range(rows)
        ]
        self.data: list[dict[str, Any]] = []
        for number, line in enumerate(lines):
            self._legend(line, left, total_height - 0.14 - 0.22 * number, list(looks))

    @staticmethod
    def _legend_lines(names: Sequence[str], width: float) -> list[list[tuple[str, float]]]:
        """Names with their place from the left, wrapped: letters are about 0.07 inches wide."""
        lines: list[list[tuple[str, float]]] = []
        at = math.inf
        for name in names:
            needed = 0.45 + 0.07 * len(name)
            if at + needed > width - 0.6:
                lines.append([])
                at = 0.0
            lines[-1].append((name, at))
            at += needed
        return lines

    def _legend(self, line: Sequence[tuple[str, float]], left: float, y: float, names: Sequence[str]) -> None:
        for name, at in line:
            look, number = self.looks[name], names.index(name)
            x = left + at
            swatch = Line2D(
                [x, x + 0.12, x + 0.24],
                [y] * 3,
                transform=self.figure.dpi_scale_trans,
                **look.line,
                linewidth=1.6,
                marker=look.points,
                markevery=[1],
                markersize=4,
                gid=f"legend-{number}-key",
            )
            self.figure.add_artist(swatch)
            self.figure.text(
                x + 0.3, y, name, transform=self.figure.dpi_scale_trans, va="center", gid=f"legend-{number}-name"
            )

    def keep(self, ax: Axes, lines: Sequence[Mapping[str, Any]], x: str) -> None:
        """Remembers for the page's script where the panel lies and what it shows."""
        width, height = self.figure.get_size_inches() * 72
        box = ax.get_position()
        place = [box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height]
        axes = [
            [*map(float, limits), scale == "log"]
            for limits, scale in ((ax.get_xlim(), ax.get_xscale()), (ax.get_ylim(), ax.get_yscale()))
        ]
        entry = {"box": [round(v, 1) for v in place], "x": axes[0], "y": axes[1], "what": x, "lines": lines}
        self.data.append(entry)

    @property
    def picture(self) -> Picture:
        return Picture(figure=self.figure, data=tuple(self.data))


def curves(
    rows: Sequence[Sequence[Panel]],
    looks: Mapping[str, Look],
    *,
    width: float = 2.7,
    height: float = 1.9,
    seeds: bool = True,
) -> Picture:
    """A row of panels a metric, all of one y scale; mean and 95 % band where three runs finished, and each run."""
    with matplotlib.rc_context(STYLE):
        titles = any(panel.title for panel in rows[0])
        ends = [
            _ends([row[column] for row in rows if column < len(row)]) for column in range(max(len(row) for row in rows))
        ]
        canvas = _Canvas(len(rows), max(len(row) for row in rows), looks, width=width, height=height, titles=titles)
        for place, (panels, axes) in enumerate(zip(rows, canvas.axes, strict=True)):
            _scale(panels, axes)
            for column, (panel, ax) in enumerate(zip(panels, axes, strict=False)):
                lines = _draw_panel(panel, ax, looks, seeds, first=place == 0 and column == 0)
                if (end := ends[column]) is not None:
                    ax.set_xlim(*end)
                ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
                what = "Local steps of a client" if panel.steps else "Round"
                if place == len(rows) - 1:
                    ax.set_xlabel(what, labelpad=2)
                if place == 0 and panel.title:
                    ax.set_title(panel.title)
                if column:
                    ax.yaxis.set_major_formatter(NullFormatter())
                else:
                    ax.set_ylabel(_wrapped(axis_title(panel.metric)), labelpad=2)
                canvas.keep(ax, lines, what)
        return canvas.picture


def _ends(panels: Sequence[Panel]) -> tuple[float, float] | None:
    """One x axis for the panels of a column; None without a line."""
    found = [
        (line.index.min() * panel.steps.get(name, 1), line.index.max() * panel.steps.get(name, 1))
        for panel in panels
        for name, series in panel.lines.items()
        for line in series.lines.values()
    ]
    if not found:
        return None
    low, high = min(start for start, _ in found), max(end for _, end in found)
    return low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5


def _wrapped(title: str) -> str:
    return title.replace(", ", ",\n", 1) if len(title) > 28 else title


def _draw_panel(panel: Panel, ax: Axes, looks: Mapping[str, Look], seeds: bool, first: bool) -> list[dict[str, Any]]:
    """Draws the lines; returns them for the page's script."""
    scale = 100.0 if is_fraction(panel.metric) else 1.0
    names, found = list(looks), []
    busy = len(panel.lines) > BUSY
    for name, series in panel.lines.items():
        look, number, per_round = looks[name], names.index(name), panel.steps.get(name, 1)
        _draw_series(ax, series, look, number, scale, per_round, busy=busy, seeds=seeds)
        found += _readable(series, name, number, scale, per_round, seeds and not busy)
        if name in panel.truth:
            truth = panel.truth[name]
            mean = truth.band["mean"] if not truth.band.empty else truth.finished.mean(axis=1)
            ax.plot(mean.index * per_round, scale * mean, color=look.hex, linestyle=":", gid=f"line-{number}-truth")
    if not any(panel.lines.values()):
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", color=MUTED)
    if panel.joins:
        at = panel.joins * next(iter(panel.steps.values()), 1)
        ax.axvline(at, color=MUTED, linewidth=0.8, linestyle=(0, (1.5, 2.0)))
        if first:
            text: Any = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 7.5, "color": MUTED}
            ax.annotate("clients join", (at, ax.get_ylim()[0]), **text)
    return found


def _draw_series(
    ax: Axes, series: Series, look: Look, number: int, scale: float, per_round: int, *, busy: bool, seeds: bool
) -> None:
    band, gid = series.band, f"line-{number}"
    thin: dict[str, Any] = {"color": look.hex, "linewidth": 0.7, "alpha": 0.45}
    if not band.empty:
        x = band.index.to_numpy() * per_round
        fill = ax.fill_between(x, scale * band["low"], scale * band["high"], color=look.hex, lw=0)
        fill.set(alpha=0.07 if busy else 0.16, gid=f"{gid}-band")
        (mean,) = ax.plot(x, scale * band["mean"], **look.line, linewidth=1.6, gid=f"{gid}-mean")
        mean.set(marker=look.points, markersize=3.2, markevery=_marked(len(band), number))
    for seed, run in series.lines.items():
        x, y = run.index.to_numpy() * per_round, scale * run.to_numpy()
        if seed in series.diverged.columns:
            ax.plot(x, y, color=look.hex, linewidth=0.9, linestyle=":", gid=f"{gid}-seed-{seed}")
            ax.plot(x[-1:], y[-1:], color=look.hex, marker="x", markersize=5, gid=f"{gid}-end-{seed}")
        elif band.empty or seed not in series.finished.columns:
            (line,) = ax.plot(x, y, **look.line, linewidth=1.2, gid=f"{gid}-seed-{seed}")
            line.set(marker=look.points, markersize=3.0, markevery=_marked(len(x), number))
        elif seeds and not busy:
            ax.plot(x, y, **thin, gid=f"{gid}-seed-{seed}")


def _marked(points: int, number: int) -> list[int]:
    """Which points have a marker: five of a line, at other places than its neighbours'; all of a short line."""
    if points <= 12:
        return list(range(points))
    step = points // 5
    return list(range((number * step) // 4 % step, points, step))


def _readable(
    series: Series, name: str, number: int, scale: float, per_round: int, seeds: bool
) -> list[dict[str, Any]]:
    """A line's points for the page's script: [x, value] or [x, mean, low, high]."""
    found = []
    if not series.band.empty:
        rows = series.band[["mean", "low", "high"]] * scale
        points = [
            [int(x) * per_round, *map(_short, values)] for x, values in zip(rows.index, rows.to_numpy(), strict=True)
        ]
        found.append({"k": number, "name": name or "mean", "n": int(series.band["n"].max()), "points": points})
    for seed, run in series.lines.items():
        shown = series.band.empty or seed not in series.finished.columns or seeds
        if shown:
            points = [[int(x) * per_round, _short(scale * y)] for x, y in run.items()]
            found.append({"k": number, "name": f"{name}, seed {seed}".lstrip(", "), "points": points, "thin": True})
    return found


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _scale(panels: Sequence[Panel], axes: Sequence[Axes]) -> None:
    """One y scale for a row of panels. Bands are inside it, unless they are much wider than the lines."""
    scale = 100.0 if is_fraction(panels[0].metric) else 1.0
    every = [series for panel in panels for series in (*panel.lines.values(), *panel.truth.values())]
    values = [run.to_numpy() for series in every for run in series.lines.values()]
    edges = [series.band[["low", "high"]].to_numpy().ravel() for series in every if not series.band.empty]
    found = scale * np.concatenate(values) if values else np.zeros(0)
    found = found[np.isfinite(found)]
    if not found.size:
        return
    low, high = float(found.min()), float(found.max())
    if panels[0].metric.startswith("diversity/") and low > 0 and high / low > LOG_SPAN:
        for ax in axes:
            ax.set_yscale("log")
            ax.set_ylim(low / 1.3, high * 1.3)
        return
    span = high - low or 0.1 * abs(high) or 1.0
    if edges:
        bands = scale * np.concatenate(edges).astype(float)
        low = min(low, max(float(np.nanmin(bands)), low - 0.4 * span))
        high = max(high, min(float(np.nanmax(bands)), high + 0.4 * span))
    if is_fraction(panels[0].metric):
        low, high = max(low, 0.0), min(high, 100.0)
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    for ax in axes:
        ax.set_ylim(low - pad, high + pad)
        ax.yaxis.set_major_locator(MaxNLocator(5))


@dataclass(frozen=True, kw_only=True)
class Point:
    """A mean of runs at a place of the x axis: a number, or a word."""

    x: float | str
    seen: Summary
    values: Sequence[float]


def against(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    metrics: Mapping[str, str],
    looks: Mapping[str, Look],
    x_title: str,
    log: bool = False,
) -> Picture:
    """A metric against a factor: a line each, intervals as bars, every run a dot. `panels`: a panel's title -> a line's
    name -> its points; `metrics`: a panel's title -> its metric. Words on the x axis keep their order; no line joins
    them."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(1, len(panels), looks, width=3.4, height=2.4)
        for (title, lines), ax in zip(panels.items(), canvas.axes[0], strict=True):
            scale = 100.0 if is_fraction(metrics[title]) else 1.0
            words = list(dict.fromkeys(p.x for points in lines.values() for p in points if isinstance(p.x, str)))
            found = []
            for number, (name, look) in enumerate(looks.items()):
                points = lines.get(name, ())
                shift = 0.09 * (number - (len(looks) - 1) / 2) if words else 0.0
                xs = [words.index(p.x) + shift if isinstance(p.x, str) else p.x for p in points]
                _factor_line(ax, xs, points, look, number, scale, joined=not words)
                found.append({"k": number, "name": name, "points": _points(xs, points, scale)})
            if words:
                ax.set_xticks(
                    range(len(words)),
                    words,
                    rotation=20 if len(words) > 3 else 0,
                    ha="right" if len(words) > 3 else "center",
                )
            elif log:
                ax.set_xscale("log")
                ax.xaxis.set_minor_locator(NullLocator())
                ax.set_xticks(sorted({float(p.x) for points in lines.values() for p in points}))
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.margins(x=0.08, y=0.1)
            ax.set_title(title)
            ax.set_xlabel(x_title, labelpad=2)
            ax.set_ylabel(_wrapped(axis_title(metrics[title])), labelpad=2)
            if not any(lines.values()):
                ax.text(0.5, 0.5, "not run", transform=ax.transAxes, ha="center", va="center", color=MUTED)
            canvas.keep(ax, found, x_title)
        return canvas.picture


def _factor_line(
    ax: Axes, xs: Sequence[float], points: Sequence[Point], look: Look, number: int, scale: float, *, joined: bool
) -> None:
    means = [scale * p.seen.mean for p in points]
    style = {**look.line, "linestyle": look.line["linestyle"] if joined else "none"}
    ax.plot(xs, means, **style, marker=look.points, markersize=4.5, linewidth=1.4, gid=f"line-{number}-mean")
    for at, (x, p) in enumerate(zip(xs, points, strict=True)):
        if p.seen.interval is not None and p.seen.has_spread:
            low, high = (scale * edge for edge in p.seen.interval)
            limits = (max(0.0, low), min(100.0, high)) if scale == 100.0 else (low, high)
            ax.vlines(x, *limits, color=look.hex, linewidth=1.1, gid=f"line-{number}-bar-{at}")
        dots: Any = {"color": look.hex, "markersize": 3, "alpha": 0.5, "gid": f"line-{number}-dots-{at}"}
        ax.plot([x] * len(p.values), [scale * value for value in p.values], ".", **dots)


def _points(xs: Sequence[float], points: Sequence[Point], scale: float) -> list[list[Any]]:
    return [
        [x, *(_short(scale * v) for v in (p.seen.mean, *(p.seen.interval or () if p.seen.has_spread else ())))]
        for x, p in zip(xs, points, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """One row of `intervals`, in the axis' unit."""

    name: str
    mean: float | None
    interval: tuple[float, float] | None = None
    dots: Sequence[float] = ()
    margin: float | None = None  # shaded: from -margin to margin
    look: Look = Look(colour=0)
    hollow: bool = False
    note: str = ""  # at the right


def intervals(rows: Sequence[IntervalRow], x_title: str, *, zero: bool = False, names: float = 2.4) -> Picture:
    """A row each, on one axis: mean, interval and every run. `names`: inches for the rows' names."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(1, 1, {}, width=5.2, height=0.24 * len(rows) + 0.1, left=names, titles=False)
        ax = canvas.axes[0][0]
        for place, row in enumerate(rows):
            colour = row.look.hex
            if row.margin:
                ax.fill_between([-row.margin, row.margin], place - 0.42, place + 0.42, color=GRID, alpha=0.6, lw=0)
            if row.interval:
                ax.hlines(place, *row.interval, color=colour, linewidth=2.2, alpha=0.55)
            face = "none" if row.hollow else colour
            ax.plot(row.dots, [place] * len(row.dots), "o", color=colour, markerfacecolor=face, markersize=4, alpha=0.7)
            if row.mean is not None:
                ax.plot([row.mean], [place], "|", color=INK, markersize=10, markeredgewidth=1.6)
        if zero:
            ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_yticks(range(len(rows)), [row.name for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(x_title, labelpad=2)
        return canvas.picture


@dataclass(frozen=True, kw_only=True)
class Dots:
    """One panel of `scatter`: places by kind, pairs that a line joins, and how the axes read."""

    title: str
    x_title: str
    y_title: str
    places: Mapping[str, Sequence[tuple[float, float]]]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of the dots, for the page's script
    joined: Sequence[tuple[tuple[float, float], tuple[float, float]]] = ()
    steps: Sequence[tuple[float, float]] = ()  # a line through these
    x_log: bool = False
    y_scale: Literal["linear", "error"] = "linear"  # error: y is an accuracy in percent, drawn as log(100 - y)
    cross: bool = False


def scatter(panels: Sequence[Dots], looks: Mapping[str, Look], *, width: float = 3.1, height: float = 2.6) -> Picture:
    """Dots by kind, a panel each."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(1, len(panels), looks, width=width + 0.5, height=height)
        for panel, ax in zip(panels, canvas.axes[0], strict=True):
            error = panel.y_scale == "error"

            def y_of(y: float, error: bool = error) -> float:
                return 100 - y if error else y

            for (x0, y0), (x1, y1) in panel.joined:
                ax.plot([x0, x1], [y_of(y0), y_of(y1)], color=GRID, linewidth=0.9, zorder=1)
            if panel.steps:
                ax.plot(
                    [x for x, _ in panel.steps],
                    [y for _, y in panel.steps],
                    color=GRID,
                    linewidth=1.2,
                    drawstyle="steps-post",
                    zorder=1,
                )
            found = []
            for number, (kind, look) in enumerate(looks.items()):
                places = panel.places.get(kind, ())
                xs, ys = [x for x, _ in places], [y_of(y) for _, y in places]
                ax.plot(
                    xs,
                    ys,
                    look.points,
                    color=look.hex,
                    markersize=5.5,
                    alpha=0.8,
                    markeredgewidth=0,
                    gid=f"line-{number}-dots",
                )
                names = panel.names.get(kind, [kind] * len(places))
                points = [
                    {"k": number, "name": n, "points": [[x, _short(y)]]} for n, x, y in zip(names, xs, ys, strict=True)
                ]
                found += [] if error else points
            if panel.x_log:
                ax.set_xscale("log")
            if error:
                ax.set_yscale("log")
                ax.invert_yaxis()
                ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 - value:g}"))
                ax.yaxis.set_minor_formatter(NullFormatter())
            if panel.cross:
                ax.axhline(0, color=GRID, linewidth=0.8)
                ax.axvline(0, color=GRID, linewidth=0.8)
            ax.margins(0.07)
            ax.set_title(panel.title)
            ax.set_xlabel(panel.x_title, labelpad=2)
            ax.set_ylabel(panel.y_title, labelpad=2)
            canvas.keep(ax, found, panel.x_title)
        for row in canvas.axes:
            for column, ax in enumerate(row[1:], start=1):  # room for each panel's own y axis
                box = ax.get_position()
                ax.set_position((box.x0 + 0.06, box.y0, box.width - 0.06, box.height))
                canvas.data[column]["box"][0] += 0.06 * float(canvas.figure.get_size_inches()[0]) * 72
                canvas.data[column]["box"][2] -= 0.06 * float(canvas.figure.get_size_inches()[0]) * 72
        return canvas.picture


def class_counts(panels: Mapping[str, pd.DataFrame], looks: Mapping[str, Look]) -> Picture:
    """Images of each class at each client, stacked. `panels`: title -> a row a client, a column a class."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(1, len(panels), looks, width=3.2, height=2.4)
        for (title, counts), ax in zip(panels.items(), canvas.axes[0], strict=True):
            low = np.zeros(len(counts))
            for number, name in enumerate(counts.columns):
                ax.bar(
                    range(len(counts)),
                    counts[name],
                    bottom=low,
                    color=looks[str(name)].hex,
                    width=0.85,
                    gid=f"line-{number}-bars",
                )
                low = low + counts[name].to_numpy()
            ax.set_title(title)
            ax.set_xlabel("Client", labelpad=2)
            ax.set_ylabel("Images", labelpad=2)
            ax.grid(visible=False, axis="x")
        return canvas.picture
