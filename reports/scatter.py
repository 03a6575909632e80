"""Trials of a study as small SVGs of our own writing: accuracy over the trial's number, and over one field.

Shapes tell what a trial was, so that a print without colour does as well. Places and colours as in `reports/chart.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from reports.chart import BOTTOM, HEIGHT, LEFT, RIGHT, SHAPES, TOP, WIDTH, Axis
from reports.style import MARKERS

Kind = Literal["trial", "default", "best", "pruned"]
# Colour and marker of each kind: places in the style's palette and markers. The last is drawn over the others.
KINDS: Mapping[Kind, tuple[int, str]] = {
    "pruned": (9, "cross"),
    "trial": (0, "circle"),
    "default": (1, "square"),
    "best": (2, "diamond"),
}
NAMES: Mapping[Kind, str] = {
    "trial": "trial",
    "default": "the default",
    "best": "the best",
    "pruned": "given up early (mean of the seeds it had)",
}
assert {shape for _, shape in KINDS.values()} <= set(MARKERS)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One trial: where it lies, and what a reader is told of it."""

    x: float
    y: float  # percent
    kind: Kind
    text: str


def scatter(marks: Sequence[Mark], *, log: bool, label: str, best_so_far: bool = False) -> Markup:
    """Marks over x, accuracy in percent upwards. `best_so_far`: with a line of the best complete trial up to each x."""
    if not marks:
        return Markup('<p class="unmeasured">{}: no trial has ended</p>').format(label)
    x, y = _axis([m.x for m in marks], log, (LEFT + 8, WIDTH - RIGHT - 8)), _accuracy_axis(marks)
    parts = [_grid(x, y)]
    if best_so_far:
        parts.append(f'<path class="l s{KINDS["best"][0]}" d="{_best_line(marks, x, y)}"/>')
    for kind, (colour, shape) in KINDS.items():
        for mark in marks:
            if mark.kind == kind:
                place = f"M{x.place(mark.x):.1f} {y.place(mark.y):.1f}{SHAPES[shape]}"
                parts.append(f'<path class="m s{colour}" d="{place}"><title>{escape(mark.text)}</title></path>')
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def key(kinds: Sequence[Kind]) -> Markup:
    """What the shapes mean."""
    entries = [
        f'<li><svg viewBox="-8 -6 16 12" class="key" aria-hidden="true"><path class="m s{KINDS[kind][0]}" '
        f'd="M0 0{SHAPES[KINDS[kind][1]]}"/></svg>{escape(NAMES[kind])}</li>'
        for kind in NAMES
        if kind in kinds
    ]
    return Markup('<ul class="legend">' + "".join(entries) + "</ul>")


def _axis(values: Sequence[float], log: bool, ends: tuple[float, float]) -> Axis:
    if log and min(values) > 0:
        low, high = math.log10(min(values)), math.log10(max(values))
        return Axis(low=low, high=high if high > low else low + 1, start=ends[0], end=ends[1], log=True)
    low, high = min(values), max(values)
    return Axis(low=low, high=high if high > low else low + 1, start=ends[0], end=ends[1])


def _accuracy_axis(marks: Sequence[Mark]) -> Axis:
    low, high = min(m.y for m in marks), max(m.y for m in marks)
    pad = 0.06 * (high - low) or 1.0
    return Axis(low=max(low - pad, -1.0), high=min(high + pad, 101.0), start=HEIGHT - BOTTOM - 3, end=TOP + 3)


def _best_line(marks: Sequence[Mark], x: Axis, y: Axis) -> str:
    """A staircase: the best of the complete trials up to each number."""
    data, best = "", -math.inf
    for mark in sorted(marks, key=lambda mark: mark.x):
        if mark.kind != "pruned" and mark.y > best:
            data += (
                f"H{x.place(mark.x):.1f}V{y.place(mark.y):.1f}"
                if data
                else f"M{x.place(mark.x):.1f} {y.place(mark.y):.1f}"
            )
            best = mark.y
    return f"{data}H{x.end:.1f}" if data else ""


def _grid(x: Axis, y: Axis) -> str:
    lines, text = [], []
    for value in y.ticks(5):
        place = f"{y.place(value):.1f}"
        lines.append(f"M{LEFT} {place}H{WIDTH - RIGHT}")
        text.append(f'<text x="{LEFT - 6}" y="{place}" dy=".32em" text-anchor="end">{round(value, 6):g}</text>')
    for value in _ticks(x):
        text.append(f'<text x="{x.place(value):.1f}" y="{HEIGHT - 7}" text-anchor="middle">{value:.6g}</text>')
    return f'<path class="grid" d="{"".join(lines)}"/>{"".join(text)}'


def _ticks(x: Axis) -> list[float]:
    """Within less than two decades, 1, 2 and 5 times powers of ten."""
    if not x.log:
        return x.ticks(6)
    found = [
        factor * 10.0**power
        for power in range(math.floor(x.low), math.ceil(x.high) + 1)
        for factor in ((1, 2, 5) if x.high - x.low < 2 else (1,))
    ]
    return [value for value in found if x.low - 1e-9 <= math.log10(value) <= x.high + 1e-9]
