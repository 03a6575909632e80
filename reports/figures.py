"""All drawings, by matplotlib: lines over rounds or a factor, intervals, dots, bars.

A picture is drawn once. Its SVG takes its colours from CSS variables, so that one file serves light and dark pages,
and has an id for each part of a line, so that the page's script can hide it; `data` has what the script reads values
from. PNG and PDF are matplotlib's own. The same records always give the same bytes.
"""

import functools
import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
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
    "axes.titley": 1.0,  # fixed: searching for its height is a third of the drawing time
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
DARK_COLOURS = {INK: "#e4e8eb", GRID: "#343d45", MUTED: "#a3aeb8", **dict(zip(PALETTE, DARK, strict=True))}
UNDATED: Mapping[str, Any] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": dict.fromkeys(("Software",)),
}
BUSY = 5  # lines in a panel, from which on bands are faint and single seeds left out
LOG_SPAN = 100.0  # a diversity that spans two decades has a logarithmic axis
RIGHT, BETWEEN_ROWS, BELOW = 0.18, 0.42, 0.52  # inches around panels
LETTER = 0.07  # inches that a letter is wide


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn figure. `data`: for each panel its position, its axes, and its lines' points."""

    figure: Figure
    data: Sequence[Mapping[str, Any]] = ()

    def svg(self) -> str:
        """A file of its own, which follows the reader's light or dark setting."""
        light = "".join(f"{name}:{colour};" for colour, name in VARIABLES.items())
        dark = "".join(f"{name}:{DARK_COLOURS[colour]};" for colour, name in VARIABLES.items())
        fonts = "--sans:'DejaVu Sans',sans-serif;"
        style = f"<style>svg{{{fonts}{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
        tag, rest = self._body.split(">", 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{tag}>{style}{rest}\n'

    @property
    def label(self) -> str:
        """What it shows, for those who cannot see it: the titles of its axes."""
        texts = [ax.get_ylabel() or ax.get_xlabel() for ax in self.figure.axes]
        return "Figure: " + "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts if text))

    def inline(self, ident: str) -> Markup:
        """A part of a page, with the data for the page's script. `ident` is unique in the page, and begins each id."""
        body = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{ident}-", self._body)
        head = Markup('<svg class="drawn" role="img" tabindex="0" aria-label="{}" data-figure="{}"')
        drawn = head.format(self.label, ident) + Markup(body.removeprefix("<svg"))
        if not self.data:
            return drawn
        return drawn + Markup('<script type="application/json" id="{}-data">{}</script>').format(
            ident, as_json(self.data)
        )

    @functools.cached_property
    def _body(self) -> str:
        """The SVG element, for the file and for the page."""
        parts = self.figure.findobj(lambda artist: (artist.get_gid() or "").startswith("line-"))
        for number, part in enumerate(parts):  # a line has parts of one name in several panels
            part.set_gid(f"{part.get_gid()}-{number}")
        text = self._saved("svg", facecolor="none").decode()
        text = text[text.index("<svg") :].replace("'DejaVu Sans'", "var(--sans)")
        # a hundredth of a point is finer than any screen: half of the bytes
        text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
        return re.sub("|".join(VARIABLES), lambda colour: f"var({VARIABLES[colour[0]]})", text)

    def pdf(self) -> bytes:
        """Letters stay letters, in fonts of the file's own."""
        return self._saved("pdf")

    def png(self) -> bytes:
        return self._saved("png", dpi=160, facecolor="white")

    def _saved(self, kind: str, **options: Any) -> bytes:
        """Without a date or a program's name."""
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(file, format=kind, metadata=UNDATED[kind], **options)
        return file.getvalue()


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
    **sharing: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels with a legend above them. `width` and `height` of a panel, all sizes in inches."""
    names = [name for name in looks if name]
    total_width = left + columns * width + (columns - 1) * gap + RIGHT
    longest = max(map(len, names), default=0)
    per_line = max(1, int((total_width - left) / (0.45 + LETTER * longest)))
    top = 0.12 + 0.19 * math.ceil(len(names) / per_line) + (0.22 if titles else 0.0)
    total_height = top + rows * (height + BETWEEN_ROWS) + 0.1
    figure = Figure(figsize=(total_width, total_height))
    margins = {
        "left": left / total_width,
        "right": 1 - RIGHT / total_width,
        "top": 1 - top / total_height,
        "bottom": BELOW / total_height,
        "wspace": gap / width,
        "hspace": BETWEEN_ROWS / height,
    }
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=margins, **sharing).tolist()
    if names:
        anchor = ((left - 0.06) / total_width, 1.0)
        _legend(figure, looks, loc="upper left", bbox_to_anchor=anchor, ncols=per_line)
    return figure, axes


def _legend(figure: Figure, looks: Mapping[str, Look], **place: Any) -> None:
    """A key and a name for each line, with ids by the line's number."""
    numbers = {number: name for number, name in enumerate(looks) if name}
    keys = [
        Line2D([], [], **looks[name].line, linewidth=1.6, marker=looks[name].points, markersize=4)
        for name in numbers.values()
    ]
    shape: Any = {"frameon": False, "handlelength": 2.2, "columnspacing": 1.4, "labelspacing": 0.5}
    legend = figure.legend(keys, list(numbers.values()), **place, **shape, borderpad=0.2, borderaxespad=0.2)
    for number, key, text in zip(numbers, legend.legend_handles, legend.get_texts(), strict=True):
        assert key is not None
        key.set_gid(f"legend-{number}-key")
        text.set_gid(f"legend-{number}-name")


def _panel_data(ax: Axes, lines: Sequence[Mapping[str, Any]], x: str) -> Mapping[str, Any]:
    """For the page's script: where the panel lies in the drawing, its axes, and its lines' points."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches() * 72
    box = ax.get_position()
    place = [box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height]
    return {
        "box": [round(v, 1) for v in place],
        "x": [*map(float, ax.get_xlim()), ax.get_xscale() == "log"],
        "y": [*map(float, ax.get_ylim()), ax.get_yscale() == "log"],
        "what": x,
        "lines": lines,
    }


def _points(*columns: Iterable[float]) -> list[list[float | None]]:
    """For the page's script: [x, value] or [x, mean, low, high]. Null for what is not finite."""
    return [
        [float(x), *(float(f"{value:.5g}") if math.isfinite(value) else None for value in values)]
        for x, *values in zip(*columns, strict=True)
    ]


def _label(ax: Axes, x: str, y: str, title: str = "") -> None:
    """The y axis' title is broken into lines that fit next to the panel."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    letters = int(ax.get_position().height * figure.get_size_inches()[1] / LETTER)
    ax.set_xlabel(x, labelpad=2)
    ax.set_ylabel("\n".join(textwrap.wrap(y, letters)), labelpad=2)
    ax.set_title(title)


def _say_nothing_here(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=MUTED)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of curves: its lines by name."""

    title: str
    metric: str
    lines: Mapping[str, Series]
    truth: Mapping[str, Series] = field(default_factory=dict)  # the same lines' true values, dotted
    joins: int | None = None  # the round after which clients take part
    y_title: str = ""  # where it is not the metric's

    @property
    def scale(self) -> float:
        """100 for fractions, which are drawn in percent."""
        return 100.0 if is_fraction(self.metric) else 1.0


def curves(
    rows: Sequence[Sequence[Panel]],
    looks: Mapping[str, Look],
    *,
    width: float = 2.7,
    height: float = 1.9,
) -> Picture:
    """A row of panels a metric, of one y scale. Mean and 95 % band where three runs finished, and each run."""
    with matplotlib.rc_context(STYLE):
        y_titles = [panels[0].y_title or axis_title(panels[0].metric) for panels in rows]
        left = 0.72 if max(map(len, y_titles)) * LETTER > height else 0.6  # room for two lines
        titles = any(panel.title for panel in rows[0])
        sizes: Any = {"width": width, "height": height, "left": left, "titles": titles}
        figure, axes = _canvas(len(rows), len(rows[0]), looks, **sizes, sharex="col", sharey="row")
        drawn = []
        for panels, row, y_title in zip(rows, axes, y_titles, strict=True):
            for panel, ax in zip(panels, row, strict=True):
                first = ax is axes[0][0]
                drawn.append((ax, _draw_lines(ax, panel, looks)))
                if panel.joins and ax.has_data():
                    _mark_join(ax, panel.joins, named=first)
                ax.margins(x=0.02)
                ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
                below, title = "Round" if row is axes[-1] else "", panel.title if row is axes[0] else ""
                _label(ax, below, y_title if ax is row[0] else "", title)
            if _spans_decades(panels):
                row[0].set_yscale("log")
        for column in zip(*axes, strict=True):
            if not any(ax.has_data() for ax in column):
                column[0].set_xlim(axes[0][0].get_xlim())
        return Picture(figure=figure, data=[_panel_data(ax, lines, "Round") for ax, lines in drawn])


def _spans_decades(panels: Sequence[Panel]) -> bool:
    """Whether a diversity spans so much that a linear axis would hide most of it."""
    runs = [run for panel in panels for series in panel.lines.values() for run in series.lines.values()]
    if not runs or not panels[0].metric.startswith("diversity/"):
        return False
    low, high = min(run.min() for run in runs), max(run.max() for run in runs)
    return bool(low > 0 and high / low > LOG_SPAN)


def _mark_join(ax: Axes, joins: int, *, named: bool) -> None:
    ax.axvline(joins, color=MUTED, linewidth=0.8, linestyle=(0, (1.5, 2.0)))
    if named:
        place: Any = {"xycoords": ("data", "axes fraction"), "xytext": (3, 3), "textcoords": "offset points"}
        ax.annotate("clients join", (joins, 0), **place, fontsize=7.5, color=MUTED)


def _draw_lines(ax: Axes, panel: Panel, looks: Mapping[str, Look]) -> list[dict[str, Any]]:
    """Draws the panel's lines; returns their points for the page's script."""
    busy, points = len(panel.lines) > BUSY, []
    for name, series in panel.lines.items():
        number = list(looks).index(name)
        points += _draw_line(ax, series, looks[name], number, name, panel.scale, busy=busy)
        if name in panel.truth:
            truth = panel.truth[name]
            mean = truth.finished.mean(axis=1) if truth.band.empty else truth.band["mean"]
            ax.plot(mean.index, panel.scale * mean, color=looks[name].hex, linestyle=":", gid=f"line-{number}-truth")
    if not any(panel.lines.values()):
        _say_nothing_here(ax, "not measured")
    return points


def _draw_line(
    ax: Axes, series: Series, look: Look, number: int, name: str, scale: float, *, busy: bool
) -> list[dict[str, Any]]:
    """Mean with its band, and each run: thin under a mean, else as a line, dotted to a cross where it diverged."""
    gid, band = f"line-{number}", scale * series.band[["mean", "low", "high"]]
    points: list[dict[str, Any]] = []
    if not band.empty:
        x, edges = band.index.to_numpy(), band.clip(0, 100) if scale == 100 else band
        fill = ax.fill_between(x, edges["low"], edges["high"], color=look.hex, lw=0)
        fill.set(alpha=0.07 if busy else 0.16, gid=f"{gid}-band")
        (mean,) = ax.plot(x, band["mean"], **look.line, linewidth=1.6, gid=f"{gid}-mean")
        mean.set(marker=look.points, markersize=3.2, markevery=_marked(len(band), number))
        seeds = int(series.band["n"].max())
        points.append({"k": number, "name": name or "mean", "n": seeds, "points": _points(x, *band.to_numpy().T)})
    for seed, run in series.lines.items():
        x, y, seed_gid = run.index.to_numpy(), scale * run.to_numpy(), f"{gid}-seed-{seed}"
        under_mean = not band.empty and seed in series.finished.columns
        if under_mean and busy:
            continue
        points.append({"k": number, "name": f"{name}, seed {seed}".lstrip(", "), "points": _points(x, y), "thin": True})
        if seed in series.diverged.columns:
            ax.plot(x, y, color=look.hex, linewidth=0.9, linestyle=":", gid=seed_gid)
            ax.plot(x[-1:], y[-1:], color=look.hex, marker="x", markersize=5, gid=f"{gid}-end-{seed}")
        elif under_mean:
            ax.plot(x, y, color=look.hex, linewidth=0.7, alpha=0.45, gid=seed_gid)
        else:
            (line,) = ax.plot(x, y, **look.line, linewidth=1.2, gid=seed_gid)
            line.set(marker=look.points, markersize=3.0, markevery=_marked(len(x), number))
    return points


def _marked(points: int, number: int) -> list[int]:
    """Which points have a marker: five of a line, elsewhere than on other lines. All of a short line."""
    if points <= 12:
        return list(range(points))
    step = points // 5
    return list(range((number * step) // 4 % step, points, step))


def against(
    panels: Mapping[str, Mapping[str, pd.DataFrame]],
    metrics: Mapping[str, str],
    looks: Mapping[str, Look],
    x_title: str,
    log: bool = False,
) -> Picture:
    """A metric against a factor: means with intervals as bars, every run a dot.

    `panels`: a panel's title -> a line's name -> the factor's values as rows, seeds as columns; `metrics`: a panel's
    title -> its metric. Words on the x axis keep their order, and are not joined by lines.
    """
    with matplotlib.rc_context(STYLE):
        figure, ((*axes,),) = _canvas(1, len(panels), looks, width=3.2, height=2.4, gap=0.6)
        data = []
        for (title, lines), ax in zip(panels.items(), axes, strict=True):
            scale = 100.0 if is_fraction(metrics[title]) else 1.0
            values = list(dict.fromkeys(x for frame in lines.values() for x in frame.index))
            words = [x for x in values if isinstance(x, str)]
            points = []
            for number, (name, look) in enumerate(looks.items()):
                runs = scale * lines.get(name, pd.DataFrame())
                if words:
                    shift = 0.09 * (number - (len(looks) - 1) / 2)
                    runs = runs.set_axis([words.index(x) + shift for x in runs.index])
                joined = not words and not runs.isna().any(axis=None)
                line = _draw_means(ax, runs, look, number, percent=scale == 100, joined=joined)
                points.append({"k": number, "name": name, "points": line})
            if words:
                turned: Any = {"rotation": 20, "ha": "right"} if len(words) > 3 else {}
                ax.set_xticks(range(len(words)), words, **turned)
            elif log:
                ax.set_xscale("log")
                ax.xaxis.set_minor_locator(NullLocator())
                ax.set_xticks(sorted(values), [f"{x:g}".removeprefix("0") for x in sorted(values)])  # .05 .1
            ax.margins(x=0.08, y=0.1)
            _label(ax, x_title, axis_title(metrics[title]), title)
            if not values:
                _say_nothing_here(ax, "not run")
            data.append(_panel_data(ax, points, x_title))
        return Picture(figure=figure, data=data)


def _draw_means(
    ax: Axes, runs: pd.DataFrame, look: Look, number: int, *, percent: bool, joined: bool
) -> list[list[float | None]]:
    """Draws a row's mean, interval and runs at its place on the x axis. Returns the points for the page's script."""
    gid, points = f"line-{number}", []
    line = look.line if joined else {**look.line, "linestyle": "none"}
    ax.plot(runs.index, runs.mean(axis=1), **line, marker=look.points, markersize=4.5, linewidth=1.4, gid=f"{gid}-mean")
    for x, (_, row) in zip(runs.index.to_numpy(dtype=float), runs.iterrows(), strict=True):
        values = summary(row.dropna())
        limits = values.interval or ()
        points += _points([x], [values.mean], *([limit] for limit in limits))
        if limits:
            ends = np.clip(limits, 0, 100) if percent else limits
            ax.vlines(x, *ends, color=look.hex, linewidth=1.1, gid=f"{gid}-bar")
        ax.plot([x] * len(row), row, ".", color=look.hex, markersize=3, alpha=0.5, gid=f"{gid}-dots")
    return points


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """One row of `intervals`, in the metric's unit."""

    name: str
    mean: float | None
    interval: tuple[float, float] | None = None
    dots: Sequence[float] = ()
    margin: float | None = None  # shaded: from -margin to margin
    look: Look = Look(colour=0)
    hollow: bool = False


def intervals(
    rows: Sequence[IntervalRow],
    x_title: str,
    *,
    percent: bool = False,
    zero: bool = False,
    names: float = 2.4,
    width: float = 5.2,
) -> Picture:
    """A row each, on one axis: mean, interval and every run.

    `percent`: the axis is in percent, the rows are fractions. `names`, `width`: inches of the names, and of the axis.
    """
    scale = 100.0 if percent else 1.0
    with matplotlib.rc_context(STYLE):
        height = 0.24 * len(rows) + 0.1
        figure, ((ax,),) = _canvas(1, 1, {}, width=width, height=height, left=names, titles=False)
        for place, row in enumerate(rows):
            colour = row.look.hex
            if row.margin:
                edge = scale * row.margin
                ax.fill_between([-edge, edge], place - 0.42, place + 0.42, color=GRID, alpha=0.6, lw=0)
            if row.interval:
                low, high = row.interval
                ax.hlines(place, scale * low, scale * high, color=colour, linewidth=2.2, alpha=0.55)
            xs, face = [scale * value for value in row.dots], "none" if row.hollow else colour
            ax.plot(xs, [place] * len(xs), "o", color=colour, markerfacecolor=face, markersize=4, alpha=0.7)
            if row.mean is not None:
                ax.plot([scale * row.mean], [place], "|", color=INK, markersize=10, markeredgewidth=1.6)
        if zero:
            ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_yticks(range(len(rows)), [row.name for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(x_title, labelpad=2)
        return Picture(figure=figure)


def scatter(
    dots: pd.DataFrame,
    looks: Mapping[str, Look],
    *,
    x_title: str,
    y_title: str,
    title: str = "",
    joined: Sequence[tuple[str, str]] = (),
    steps: Sequence[tuple[float, float]] = (),
    log_error: bool = False,
) -> Picture:
    """Dots by kind: a row a dot, with columns kind, name, x and y.

    `joined`: names of dots that a line joins; `steps`: points of a line of steps; `log_error`: y is an accuracy in
    percent, drawn as log(100 - y).
    """
    with matplotlib.rc_context(STYLE):
        figure, ((ax,),) = _canvas(1, 1, looks, width=5.0, height=2.6)
        drawn = dots.assign(y=100 - dots["y"]) if log_error else dots
        places = drawn.set_index("name")[["x", "y"]]
        for pair in joined:
            ax.plot(*places.loc[list(pair)].to_numpy().T, color=GRID, linewidth=0.9, zorder=1)
        if steps:
            ax.plot(*zip(*steps, strict=True), color=GRID, linewidth=1.2, drawstyle="steps-post", zorder=1)
        points = []
        for number, (kind, look) in enumerate(looks.items()):
            of_kind = drawn["kind"] == kind
            style: Any = {"color": look.hex, "markersize": 5.5, "alpha": 0.8, "markeredgewidth": 0}
            ax.plot(drawn["x"][of_kind], drawn["y"][of_kind], look.points, **style, gid=f"line-{number}-dots")
            for name, x, y in dots.loc[of_kind, ["name", "x", "y"]].itertuples(index=False):
                points.append({"k": number, "name": name, "points": _points([x], [y])})
        if log_error:
            ax.set_yscale("log")
            ax.invert_yaxis()
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 - value:g}"))
            ax.yaxis.set_minor_formatter(NullFormatter())
        ax.margins(0.07)
        _label(ax, x_title, y_title, title)
        return Picture(figure=figure, data=[_panel_data(ax, points, x_title)])


def class_counts(panels: Mapping[str, pd.DataFrame], looks: Mapping[str, Look], widest: int = 3) -> Picture:
    """Images of each class at each client, stacked. At most `widest` panels in a row.

    `panels`: title -> a row a client, a column a class.
    """
    columns = min(widest, len(panels))
    with matplotlib.rc_context(STYLE):
        figure, rows = _canvas(math.ceil(len(panels) / columns), columns, looks, width=3.2, height=2.0, gap=0.6)
        for legend in figure.legends:  # of bars, not of lines
            for key in legend.get_lines():
                key.set(linestyle="none", marker="s", markersize=7)
        axes = [ax for row in rows for ax in row]
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for place, ((title, counts), ax) in enumerate(zip(panels.items(), axes, strict=False)):
            tops = counts.cumsum(axis=1)
            for number, name in enumerate(counts.columns):
                bars: Any = {"color": looks[str(name)].hex, "width": 0.85, "gid": f"line-{number}-bars"}
                ax.bar(range(len(counts)), counts[name], bottom=tops[name] - counts[name], **bars)
            _label(ax, "Client" if place >= len(panels) - columns else "", "Images", title)
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            ax.grid(visible=False)
            ax.margins(x=0.01)
        return Picture(figure=figure)
