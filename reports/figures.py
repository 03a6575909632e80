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
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from benchmark.verdicts.statistics import summary
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
    "xtick.bottom": False,  # labels without ticks
    "ytick.left": False,
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
    y_title: str = ""  # where it is not the metric's


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


def _canvas(
    rows: int,
    columns: int,
    looks: Mapping[str, Look],
    *,
    width: float,
    height: float,
    left: float = 0.6,
    gap: float = 0.18,
    titles: bool = True,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels with a legend above them; `width` and `height` of a panel, all sizes in inches."""
    names = [name for name in looks if name]
    total = left + columns * width + (columns - 1) * gap + 0.18
    longest = max(map(len, names), default=0)
    beside = max(1, int((total - left) / (0.45 + 0.07 * longest)))  # letters are about 0.07 inches wide
    lines = math.ceil(len(names) / beside)
    top = 0.12 + 0.19 * lines + (0.22 if titles else 0.0)
    total_height = top + rows * (height + 0.42) + 0.1
    places = {
        "left": left / total,
        "right": 1 - 0.18 / total,
        "top": 1 - top / total_height,
        "bottom": 0.52 / total_height,
        "wspace": gap / width,
        "hspace": 0.42 / height,
    }
    figure = Figure(figsize=(total, total_height))
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=places).tolist()
    if names:
        keys = [
            Line2D([], [], **looks[name].line, linewidth=1.6, marker=looks[name].points, markersize=4) for name in names
        ]
        place: Any = {"loc": "upper left", "bbox_to_anchor": ((left - 0.06) / total, 1.0), "ncols": beside}
        shape: Any = {"frameon": False, "handlelength": 2.2, "columnspacing": 1.4, "labelspacing": 0.5}
        legend = figure.legend(keys, names, **place, **shape, borderpad=0.2, borderaxespad=0.2)
        for name, key, text in zip(names, legend.legend_handles, legend.get_texts(), strict=True):
            assert key is not None
            key.set_gid(f"legend-{list(looks).index(name)}-key")
            text.set_gid(f"legend-{list(looks).index(name)}-name")
    return figure, axes


def _panel_data(ax: Axes, lines: Sequence[Mapping[str, Any]], x: str) -> Mapping[str, Any]:
    """For the page's script: where the panel lies in the drawing, its axes, and its lines' points."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches() * 72
    box = ax.get_position()
    place = [box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height]
    axes = [
        [*map(float, limits), scale == "log"]
        for limits, scale in ((ax.get_xlim(), ax.get_xscale()), (ax.get_ylim(), ax.get_yscale()))
    ]
    return {"box": [round(v, 1) for v in place], "x": axes[0], "y": axes[1], "what": x, "lines": lines}


def _label(ax: Axes, x: str, y: str, title: str = "") -> None:
    """The y axis' title is broken into lines that fit beside the panel."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    letters = int(ax.get_position().height * figure.get_size_inches()[1] / 0.068)
    ax.set_xlabel(x, labelpad=2)
    ax.set_ylabel("\n".join(textwrap.wrap(y, letters)), labelpad=2)
    ax.set_title(title)


def curves(
    rows: Sequence[Sequence[Panel]],
    looks: Mapping[str, Look],
    *,
    width: float = 2.7,
    height: float = 1.9,
) -> Picture:
    """A row of panels a metric, all of one y scale; mean and 95 % band where three runs finished, and each run."""
    with matplotlib.rc_context(STYLE):
        titles = any(panel.title for panel in rows[0])
        several = max(len(axis_title(panels[0].metric)) for panels in rows) > height / 0.068  # lines of a y title
        figure, axes = _canvas(
            len(rows),
            len(rows[0]),
            looks,
            width=width,
            height=height,
            left=0.72 if several else 0.6,
            titles=titles,
        )
        data = []
        all_ends = _ends([panel for panels in rows for panel in panels])  # also where nothing is measured yet
        for place, (panels, row) in enumerate(zip(rows, axes, strict=True)):
            _scale(panels, row)
            for column, (panel, ax) in enumerate(zip(panels, row, strict=True)):
                lines = _draw_panel(panel, ax, looks, first=place == 0 and column == 0)
                if (ends := _ends([panels[column] for panels in rows]) or all_ends) is not None:
                    ax.set_xlim(*ends)
                ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
                below, beside = (
                    "Round" if place == len(rows) - 1 else "",
                    "" if column else panel.y_title or axis_title(panel.metric),
                )
                _label(ax, below, beside, "" if place else panel.title)
                if column:
                    ax.yaxis.set_major_formatter(NullFormatter())
                data.append(_panel_data(ax, lines, "Round"))
        return Picture(figure=figure, data=data)


def _ends(panels: Sequence[Panel]) -> tuple[float, float] | None:
    """One x axis for the panels of a column; None without a line."""
    found = [
        round_number
        for panel in panels
        for series in panel.lines.values()
        for line in series.lines.values()
        for round_number in (line.index.min(), line.index.max())
    ]
    if not found:
        return None
    low, high = min(found), max(found)
    return low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5


def _draw_panel(panel: Panel, ax: Axes, looks: Mapping[str, Look], first: bool) -> list[dict[str, Any]]:
    """Draws the lines; returns them for the page's script."""
    scale = 100.0 if is_fraction(panel.metric) else 1.0
    names, found = list(looks), []
    busy = len(panel.lines) > BUSY
    for name, series in panel.lines.items():
        look, number = looks[name], names.index(name)
        _draw_series(ax, series, look, number, scale, busy=busy)
        found += _readable(series, name, number, scale, not busy)
        if name in panel.truth:
            truth = panel.truth[name]
            mean = truth.band["mean"] if not truth.band.empty else truth.finished.mean(axis=1)
            ax.plot(mean.index, scale * mean, color=look.hex, linestyle=":", gid=f"line-{number}-truth")
    if not any(panel.lines.values()):
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", color=MUTED)
    if panel.joins:
        ax.axvline(panel.joins, color=MUTED, linewidth=0.8, linestyle=(0, (1.5, 2.0)))
        if first:
            text: Any = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 7.5, "color": MUTED}
            ax.annotate("clients join", (panel.joins, ax.get_ylim()[0]), **text)
    return found


def _draw_series(ax: Axes, series: Series, look: Look, number: int, scale: float, *, busy: bool) -> None:
    band, gid = series.band, f"line-{number}"
    thin: dict[str, Any] = {"color": look.hex, "linewidth": 0.7, "alpha": 0.45}
    if not band.empty:
        x = band.index.to_numpy()
        fill = ax.fill_between(x, scale * band["low"], scale * band["high"], color=look.hex, lw=0)
        fill.set(alpha=0.07 if busy else 0.16, gid=f"{gid}-band")
        (mean,) = ax.plot(x, scale * band["mean"], **look.line, linewidth=1.6, gid=f"{gid}-mean")
        mean.set(marker=look.points, markersize=3.2, markevery=_marked(len(band), number))
    for seed, run in series.lines.items():
        x, y = run.index.to_numpy(), scale * run.to_numpy()
        if seed in series.diverged.columns:
            ax.plot(x, y, color=look.hex, linewidth=0.9, linestyle=":", gid=f"{gid}-seed-{seed}")
            ax.plot(x[-1:], y[-1:], color=look.hex, marker="x", markersize=5, gid=f"{gid}-end-{seed}")
        elif band.empty or seed not in series.finished.columns:
            (line,) = ax.plot(x, y, **look.line, linewidth=1.2, gid=f"{gid}-seed-{seed}")
            line.set(marker=look.points, markersize=3.0, markevery=_marked(len(x), number))
        elif not busy:
            ax.plot(x, y, **thin, gid=f"{gid}-seed-{seed}")


def _marked(points: int, number: int) -> list[int]:
    """Which points have a marker: five of a line, at other places than its neighbours'; all of a short line."""
    if points <= 12:
        return list(range(points))
    step = points // 5
    return list(range((number * step) // 4 % step, points, step))


def _readable(series: Series, name: str, number: int, scale: float, seeds: bool) -> list[dict[str, Any]]:
    """A line's points for the page's script: [x, value] or [x, mean, low, high]."""
    found = []
    if not series.band.empty:
        rows = series.band[["mean", "low", "high"]] * scale
        points = [_point(int(x), *values) for x, *values in rows.itertuples()]
        found.append({"k": number, "name": name or "mean", "n": int(series.band["n"].max()), "points": points})
    for seed, run in series.lines.items():
        if series.band.empty or seed not in series.finished.columns or seeds:
            points = [_point(int(x), scale * y) for x, y in run.items()]
            found.append({"k": number, "name": f"{name}, seed {seed}".lstrip(", "), "points": points, "thin": True})
    return found


def _point(x: float, *values: float) -> list[float | None]:
    return [x, *(float(f"{value:.5g}") if math.isfinite(value) else None for value in values)]


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


def against(
    panels: Mapping[str, Mapping[str, pd.DataFrame]],
    metrics: Mapping[str, str],
    looks: Mapping[str, Look],
    x_title: str,
    log: bool = False,
) -> Picture:
    """A metric against a factor: a line each, intervals as bars, every run a dot. `panels`: a panel's title -> a line's
    name -> the factor's values as rows, seeds as columns; `metrics`: a panel's title -> its metric. Words on the x axis
    keep their order; no line joins them."""
    with matplotlib.rc_context(STYLE):
        figure, ((*axes,),) = _canvas(1, len(panels), looks, width=3.2, height=2.4, gap=0.6)
        data = []
        for (title, lines), ax in zip(panels.items(), axes, strict=True):
            scale = 100.0 if is_fraction(metrics[title]) else 1.0
            places = list(dict.fromkeys(x for frame in lines.values() for x in frame.index))
            words = [x for x in places if isinstance(x, str)]
            found = []
            for number, (name, look) in enumerate(looks.items()):
                runs = scale * lines.get(name, pd.DataFrame())
                shift = 0.09 * (number - (len(looks) - 1) / 2) if words else 0.0
                xs = [words.index(x) + shift if isinstance(x, str) else x for x in runs.index]
                points = _factor_line(
                    ax,
                    xs,
                    runs,
                    look,
                    number,
                    percent=scale == 100.0,
                    joined=not words and not runs.isna().any(axis=None),
                )
                found.append({"k": number, "name": name, "points": points})
            if words:
                turned: Any = {"rotation": 20, "ha": "right"} if len(words) > 3 else {}
                ax.set_xticks(range(len(words)), words, **turned)
            elif log:
                ax.set_xscale("log")
                ax.xaxis.set_minor_locator(NullLocator())
                ax.set_xticks(sorted(places))
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".removeprefix("0")))  # .05 .1
            ax.margins(x=0.08, y=0.1)
            _label(ax, x_title, axis_title(metrics[title]), title)
            if not places:
                ax.text(0.5, 0.5, "not run", transform=ax.transAxes, ha="center", va="center", color=MUTED)
            data.append(_panel_data(ax, found, x_title))
        return Picture(figure=figure, data=data)


def _factor_line(
    ax: Axes, xs: Sequence[float], runs: pd.DataFrame, look: Look, number: int, *, percent: bool, joined: bool
) -> list[list[float | None]]:
    """Draws means, intervals and every run; returns the points for the page's script."""
    seen = [summary(row.dropna()) for _, row in runs.iterrows()]
    style = {**look.line, "linestyle": look.line["linestyle"] if joined else "none"}
    means = [one.mean for one in seen]
    ax.plot(xs, means, **style, marker=look.points, markersize=4.5, linewidth=1.4, gid=f"line-{number}-mean")
    points = []
    for at, (x, one) in enumerate(zip(xs, seen, strict=True)):
        limits = one.interval or ()
        points.append(_point(x, one.mean, *limits))
        if limits:
            low, high = limits
            ends = (max(0.0, low), min(100.0, high)) if percent else (low, high)
            ax.vlines(x, *ends, color=look.hex, linewidth=1.1, gid=f"line-{number}-bar-{at}")
        values = runs.iloc[at].dropna()
        dots: Any = {"color": look.hex, "markersize": 3, "alpha": 0.5, "gid": f"line-{number}-dots-{at}"}
        ax.plot([x] * len(values), values, ".", **dots)
    return points


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """One row of `intervals`, in the axis' unit."""

    name: str
    mean: float | None
    interval: tuple[float, float] | None = None
    dots: Sequence[float] = ()
    aside: Sequence[float] = ()  # hollow dots: neither mean nor interval is of these
    margin: float | None = None  # shaded: from -margin to margin
    look: Look = Look(colour=0)
    hollow: bool = False


def intervals(
    rows: Sequence[IntervalRow],
    x_title: str,
    *,
    zero: bool = False,
    names: float = 2.4,
    width: float = 5.2,
) -> Picture:
    """A row each, on one axis: mean, interval and every run. `names`, `width`: inches of the names, and beside them."""
    with matplotlib.rc_context(STYLE):
        height = 0.24 * len(rows) + 0.1
        figure, ((ax,),) = _canvas(1, 1, {}, width=width, height=height, left=names, titles=False)
        for place, row in enumerate(rows):
            colour = row.look.hex
            if row.margin:
                ax.fill_between([-row.margin, row.margin], place - 0.42, place + 0.42, color=GRID, alpha=0.6, lw=0)
            if row.interval:
                ax.hlines(place, *row.interval, color=colour, linewidth=2.2, alpha=0.55)
            for dots, face in ((row.dots, "none" if row.hollow else colour), (row.aside, "none")):
                ax.plot(dots, [place] * len(dots), "o", color=colour, markerfacecolor=face, markersize=4, alpha=0.7)
            if row.mean is not None:
                ax.plot([row.mean], [place], "|", color=INK, markersize=10, markeredgewidth=1.6)
        if zero:
            ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_yticks(range(len(rows)), [row.name for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(x_title, labelpad=2)
        return Picture(figure=figure)


@dataclass(frozen=True, kw_only=True)
class Dots:
    """What `scatter` draws: dots, pairs that a line joins, and how the axes read."""

    x_title: str
    y_title: str
    dots: pd.DataFrame  # a row a dot: columns kind, name, x, y
    title: str = ""
    joined: Sequence[tuple[str, str]] = ()  # names of dots
    steps: Sequence[tuple[float, float]] = ()  # a line through these
    log_error: bool = False  # y is an accuracy in percent, drawn as log(100 - y)


def scatter(panel: Dots, looks: Mapping[str, Look]) -> Picture:
    """Dots by kind."""
    with matplotlib.rc_context(STYLE):
        figure, ((ax,),) = _canvas(1, 1, looks, width=5.0, height=2.6)
        dots = panel.dots.assign(y=100 - panel.dots["y"]) if panel.log_error else panel.dots
        places = dots.set_index("name")[["x", "y"]]
        for pair in panel.joined:
            ax.plot(*places.loc[list(pair)].to_numpy().T, color=GRID, linewidth=0.9, zorder=1)
        if panel.steps:
            ax.plot(*zip(*panel.steps, strict=True), color=GRID, linewidth=1.2, drawstyle="steps-post", zorder=1)
        found = []
        for number, (kind, look) in enumerate(looks.items()):
            mine = dots[dots["kind"] == kind]
            style: Any = {"color": look.hex, "markersize": 5.5, "alpha": 0.8, "markeredgewidth": 0}
            ax.plot(mine["x"], mine["y"], look.points, **style, gid=f"line-{number}-dots")
            for name, x, y in panel.dots.loc[mine.index, ["name", "x", "y"]].itertuples(index=False):
                found.append({"k": number, "name": name, "points": [_point(float(x), y)]})
        if panel.log_error:
            ax.set_yscale("log")
            ax.invert_yaxis()
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 - value:g}"))
            ax.yaxis.set_minor_formatter(NullFormatter())
        ax.margins(0.07)
        _label(ax, panel.x_title, panel.y_title, panel.title)
        return Picture(figure=figure, data=[_panel_data(ax, found, panel.x_title)])


def class_counts(panels: Mapping[str, pd.DataFrame], looks: Mapping[str, Look], beside: int = 3) -> Picture:
    """Images of each class at each client, stacked; so many panels in a row. `panels`: title -> a row a client, a
    column a class."""
    columns = min(beside, len(panels))
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(STYLE):
        figure, axes = _canvas(rows, columns, looks, width=3.2, height=2.0, gap=0.6)
        for legend in figure.legends:  # of bars, not of lines
            for key in legend.get_lines():
                key.set(linestyle="none", marker="s", markersize=7)
        places = [ax for row in axes for ax in row]
        for ax in places[len(panels) :]:
            ax.set_visible(False)
        for place, ((title, counts), ax) in enumerate(zip(panels.items(), places, strict=False)):
            low = np.zeros(len(counts))
            for number, name in enumerate(counts.columns):
                bars: Any = {"color": looks[str(name)].hex, "width": 0.85, "gid": f"line-{number}-bars"}
                ax.bar(range(len(counts)), counts[name], bottom=low, **bars)
                low = low + counts[name].to_numpy()
            _label(ax, "Client" if place >= len(panels) - columns else "", "Images", title)
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            ax.grid(visible=False)
            ax.margins(x=0.01)
        return Picture(figure=figure)
