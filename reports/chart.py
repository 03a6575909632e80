"""Curves as small SVGs of our own writing, for pages with thousands of them: a plot area, ticks, lines, bands.

Colours come from the page's variables (`--series-N`), so that a chart follows light and dark. The script of the pages
reads values off the paths: `data-x` and `data-y` of the chart are [value at 0, value a unit] in chart coordinates.
A line ends where its run does; a diverged one is dotted to a cross.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.series import Line, Series
from reports.style import DASHES, MARKERS, Look
from reports.words import is_fraction, metric_name

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 24
LOG_SPAN = 100.0  # beyond two decades a diversity is drawn on a logarithmic axis
SHAPES: Mapping[str, str] = {
    "circle": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "square": "m-2.7-2.7h5.4v5.4h-5.4z",
    "triangle": "m0-3.4l3.2 5.8h-6.4z",
    "diamond": "m0-3.7l3.7 3.7l-3.7 3.7l-3.7-3.7z",
    "down": "m0 3.4l3.2-5.8h-6.4z",
    "plus": "m-1-3.2h2v2.2h2.2v2h-2.2v2.2h-2v-2.2h-2.2v-2h2.2z",
    "cross": "m-3-1.6l1.4-1.4l1.6 1.6l1.6-1.6l1.4 1.4l-1.6 1.6l1.6 1.6l-1.4 1.4l-1.6-1.6l-1.6 1.6l-1.4-1.4l1.6-1.6z",
}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From values to places: place = start + (f(value) - low) * scale, f the logarithm or nothing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @property
    def scale(self) -> float:
        return (self.end - self.start) / (self.high - self.low)

    def place(self, value: float) -> float:
        return self.places([value])[0]

    def places(self, values: Sequence[float]) -> list[float]:
        start, low, scale = self.start, self.low, self.scale  # looked up once: lines are long
        return [start + (value - low) * scale for value in (map(math.log10, values) if self.log else values)]

    def ticks(self, most: int) -> list[float]:
        if self.log:
            return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        return nice(self.low, self.high, most)

    @property
    def data(self) -> str:
        """What turns a place back into a value: [value at place 0, value a unit, 1 for a logarithm]."""
        return f"[{self.low - self.start / self.scale:.9g},{1 / self.scale:.9g},{int(self.log)}]"


def nice(low: float, high: float, most: int) -> list[float]:
    """At most `most` round values (1, 2 or 5 times a power of ten apart) from low to high."""
    width = (high - low) / max(1, most)
    if not width > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(width))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(int((high - low) / step + 1e-9) + 1) if (first + i) * step <= high + 1e-9]


def chart(metric: str, lines: Mapping[str, tuple[Series, Look]], *, seeds: bool = False, label: str = "") -> Markup:
    """One metric over rounds. `lines`: name -> what to draw and how. With `seeds`, every run shows as a thin line
    beneath the mean. Says so where nothing was measured. `label` begins the description that a screen reader reads."""
    shown = [(name, scaled(series, metric), look) for name, (series, look) in lines.items()]
    runs = [
        run
        for _, series, _ in shown
        for run in (series.mean, *(series.runs.values() if seeds else (*series.single, *series.diverged)))
    ]
    points = [point for run in runs for point in run]
    title = f"{label}{metric_name(metric)} over rounds"
    if not points:
        return Markup('<p class="unmeasured">{}: not measured</p>').format(metric_name(metric))
    x, y = axes(metric, points, (LEFT + 4, WIDTH - RIGHT - 4), (HEIGHT - BOTTOM - 3, TOP + 3))
    parts = [_frame(x, y), f'<svg x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{_plot_height()}" ']
    parts.append(f'viewBox="{LEFT} {TOP} {WIDTH - LEFT - RIGHT} {_plot_height()}">')
    for _, series, look in shown:
        parts += _band(series, look, x, y)
    for name, series, look in shown:
        parts += _runs(name, series, look, x, y, seeds)
    parts.append("</svg>")
    summed_up = "; ".join(_in_words(name, series) for name, series, _ in shown)
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" data-x="{x.data}" '
        f'data-y="{y.data}" aria-label="{escape(f"{title}. {summed_up}")}">{"".join(parts)}</svg>'
    )


def swatch(look: Look) -> Markup:
    """Line and marker, as beside a name."""
    return Markup(
        '<svg viewBox="-14 -6 28 12" class="key" aria-hidden="true">'
        f'<path class="l s{look.colour}"{_dash(look)} d="M-14 0H14"/>'
        f'<path class="m s{look.colour}" d="M0 0{SHAPES[MARKERS[look.marker]]}"/></svg>'
    )


def legend(looks: Mapping[str, Look]) -> Markup:
    """Names with their line and marker."""
    entries = [f"<li>{swatch(look)}{escape(name)}</li>" for name, look in looks.items()]
    return Markup('<ul class="legend">' + "".join(entries) + "</ul>")


def _plot_height() -> int:
    return HEIGHT - TOP - BOTTOM


def scaled(series: Series, metric: str) -> Series:
    """In the unit that is printed: fractions as percent."""
    scale = 100.0 if is_fraction(metric) else 1.0

    def line(points: Line) -> Line:
        return [(x, scale * y) for x, y in points]

    rounds, low, high = series.band
    return Series(
        mean=line(series.mean),
        band=(rounds, [scale * v for v in low], [scale * v for v in high]),
        single=[line(run) for run in series.single],
        diverged=[line(run) for run in series.diverged],
        bin_size=series.bin_size,
        runs={seed: line(run) for seed, run in series.runs.items()},
    )


def axes(
    metric: str, points: Sequence[tuple[int, float]], across: tuple[float, float], up: tuple[float, float]
) -> tuple[Axis, Axis]:
    """Axes that hold these points, at least one, between the places `across` and `up`. The limits follow the lines,
    not the bands: a band of three seeds can be wide."""
    rounds, values = [x for x, _ in points], [y for _, y in points]
    first, last = min(rounds), max(rounds)
    x = Axis(low=first, high=last if last > first else first + 1, start=across[0], end=across[1])
    low, high = min(values), max(values)
    if metric.startswith("diversity/") and low > 0 and high / low > LOG_SPAN:
        return x, Axis(low=math.log10(low / 1.3), high=math.log10(high * 1.3), start=up[0], end=up[1], log=True)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    highest = min(high + pad, 101.0) if is_fraction(metric) else high + pad
    return x, Axis(low=low - pad, high=max(highest, low - pad + 1e-9), start=up[0], end=up[1])


def on_axes(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> list[tuple[float, float]]:
    """The places of these points, but for those that a logarithmic axis cannot show."""
    shown = [point for point in points if point[1] > 0] if y.log else points
    return list(zip(x.places([a for a, _ in shown]), y.places([b for _, b in shown]), strict=True))


def _frame(x: Axis, y: Axis) -> str:
    grid, text = [], []
    for value in y.ticks(5):
        place = f"{y.place(value):.1f}"
        grid.append(f"M{LEFT} {place}H{WIDTH - RIGHT}")
        text.append(f'<text x="{LEFT - 6}" y="{place}" dy=".32em" text-anchor="end">{_number(value)}</text>')
    for value in x.ticks(6):
        text.append(f'<text x="{x.place(value):.1f}" y="{HEIGHT - 7}" text-anchor="middle">{_number(value)}</text>')
    return f'<path class="grid" d="{"".join(grid)}"/>{"".join(text)}'


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{round(value, 6) + 0.0:g}"


def _path(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    placed = on_axes(points, x, y)
    return "M" + "L".join([f"{a:.1f} {b:.2f}" for a, b in placed]) if placed else ""


def _band(series: Series, look: Look, x: Axis, y: Axis) -> list[str]:
    rounds, low, high = series.band
    if len(rounds) < 2:
        return []
    floor = 10.0**y.low if y.log else -math.inf
    lower = [(a, max(b, floor)) for a, b in zip(rounds, low, strict=True)]
    upper = list(zip(rounds, high, strict=True))
    outline = _path([*lower, *reversed(upper)], x, y)
    return [f'<path class="b s{look.colour}" d="{outline}Z"/>']


def _runs(name: str, series: Series, look: Look, x: Axis, y: Axis, seeds: bool) -> list[str]:
    found = []
    thin = series.runs if seeds or not series.mean else {}
    for seed, run in thin.items():
        if run in series.diverged:
            continue
        label = f"{name}, seed {seed}" if name else f"seed {seed}"
        found.append(_line("r" if series.mean else "l one", label, run, look, x, y))
    for run in series.diverged:
        path = _path(run, x, y)
        end = run[-1:] and f"M{x.place(run[-1][0]):.1f} {y.place(run[-1][1]):.1f}m-3-3l6 6m0-6l-6 6"
        found.append(f'<path class="d s{look.colour}" d="{path}"/><path class="x s{look.colour}" d="{end or ""}"/>')
    if series.mean:
        found.append(_line("l", f"{name}, mean" if name else "mean", series.mean, look, x, y))
        found.append(_markers(series.mean, look, x, y))
    return found


def _line(kind: str, label: str, points: Line, look: Look, x: Axis, y: Axis) -> str:
    dashes = _dash(look)
    return f'<path class="{kind} s{look.colour}"{dashes} data-n="{escape(label)}" d="{_path(points, x, y)}"/>'


def _dash(look: Look) -> str:
    return f' stroke-dasharray="{DASHES[look.dash]}"' if DASHES[look.dash] else ""


def _markers(points: Line, look: Look, x: Axis, y: Axis) -> str:
    """Five along the line, at other places for other looks, so that lines on top of each other are told apart."""
    step = max(1, len(points) // 5)
    shape = SHAPES[MARKERS[look.marker]]
    at = [p for p in points[(look.colour * step // 8) % step :: step] if not (y.log and p[1] <= 0)]
    placed = "".join(f"M{x.place(a):.1f} {y.place(b):.1f}{shape}" for a, b in at)
    return f'<path class="m s{look.colour}" d="{placed}"/>'


def _in_words(name: str, series: Series) -> str:
    """For those who cannot see the line: where it begins and ends."""
    line = series.mean or next(iter(series.runs.values()), [])
    if not line:
        return f"{name or 'runs'}: not measured"
    (first, start), (last, end) = line[0], line[-1]
    found = f"{_number(float(f'{start:.4g}'))} in round {first}, {_number(float(f'{end:.4g}'))} in round {last}"
    return f"{name or ('mean' if series.mean else 'a run')}: {found}"
