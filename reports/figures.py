"""Draw pictures with matplotlib, as SVG and PDF, and give each method one look on every page and in every figure.

The SVG takes its colours from CSS variables, so that one file serves light and dark pages. The page's script reads
values off the lines that have a name (`plot`). The same records always give the same bytes.
"""

import functools
import hashlib
import io
import itertools
import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

_FILE = tomllib.loads((Path(__file__).parent / "looks.toml").read_text())
PALETTE, DARK = map(tuple, _FILE["palette"].values())
INK, GRID, MUTED = "#1f2933", "#c3ccd5", "#5c6670"  # text, rules and remarks on a light page; see DARK_COLOURS
DASHES = ((), (6.0, 2.5), (2.0, 2.0), (7.0, 2.0, 2.0, 2.0))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHEET = Path(__file__).parent / "templates" / "fssl.mplstyle"
# Start from Matplotlib's own defaults, so that a user's matplotlibrc changes no figure. The backend is left out
# because it does not affect saved files.
DEFAULTS: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
STYLE: dict[Any, Any] = {**DEFAULTS, **matplotlib.rc_params_from_file(SHEET, use_default_template=False)}
VARIABLES = {INK: "--ink", GRID: "--grid", MUTED: "--muted", **{c: f"--series-{i}" for i, c in enumerate(PALETTE)}}
DARK_COLOURS = {INK: "#e4e8eb", GRID: "#343d45", MUTED: "#a3aeb8", **dict(zip(PALETTE, DARK, strict=True))}
UNDATED: Mapping[str, Any] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}
RIGHT, BETWEEN_ROWS, BELOW = 0.18, 0.42, 0.52  # inches around panels
LETTER = 0.07  # inches: the width of a letter
styled = matplotlib.rc_context(STYLE)  # a decorator for each function that draws


@dataclass(frozen=True)
class Look:
    """The look of a line: its indices in PALETTE, DASHES and MARKERS."""

    colour: int
    dash: int = 0
    marker: int = 0

    @property
    def hex(self) -> str:
        return PALETTE[self.colour]

    @property
    def line(self) -> dict[str, Any]:
        """Return the style of the line for matplotlib."""
        dash = DASHES[self.dash]
        return {"color": self.hex, "linestyle": (0, dash) if dash else "-"}

    @property
    def points(self) -> str:
        """Return the marker's name for matplotlib."""
        return MARKERS[self.marker]


LOOKS: Mapping[str, Look] = {name: Look(*places) for name, places in _FILE["looks"].items()}
FREE_COLOURS = (10, 9, 8)
COMBINATIONS = tuple(itertools.product(range(len(DASHES)), FREE_COLOURS, range(len(MARKERS))))
FREE = tuple(
    Look(colour, dash, marker)
    for dash, colour, marker in COMBINATIONS
    if Look(colour, dash, marker) not in LOOKS.values()
)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name, no two with the same line. Known names have the same one on every page.

    A name that is not in looks.toml gets the look that a hash of the name selects, or the next one with a colour that
    the figure does not contain yet. If all free colours are used, the name gets any unused colour, and if there is
    none, a line with different dashes.
    """
    names = list(dict.fromkeys(names))
    chosen = {name: LOOKS[name] for name in names if name in LOOKS}
    for name in names:
        if name not in chosen:
            chosen[name] = _free_look(name, list(chosen.values()))
    return {name: chosen[name] for name in names}


def _free_look(name: str, taken: Sequence[Look]) -> Look:
    """Return a look for a name without a look in looks.toml, given the looks that the figure already contains."""
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    start = int.from_bytes(digest[:4], "big") % len(FREE)
    order = [*FREE[start:], *FREE[:start]]
    colours = {look.colour for look in taken}
    lines = {(look.colour, look.dash) for look in taken}
    unused = [look for look in order if look.colour not in colours]
    others = [Look(colour, 0, order[0].marker) for colour in range(len(PALETTE)) if colour not in colours]
    dashed = [look for look in order if (look.colour, look.dash) not in lines]
    return [*unused, *others, *dashed, order[0]][0]


def line_looks(names: Iterable[str], methods: Iterable[str] = ()) -> dict[str, Look]:
    """Return the methods' looks if every line is a method; if not, looks by place, for lines such as data sets,
    settings or seeds.
    """
    names = list(dict.fromkeys(names))
    if set(names) <= set(methods):
        return looks(names)
    return {
        name: Look(i % len(PALETTE), i // len(PALETTE) % len(DASHES), i % len(MARKERS)) for i, name in enumerate(names)
    }


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn figure."""

    figure: Figure
    caption: str = ""

    @property
    def data(self) -> list[dict[str, Any]]:
        """Return each panel's place in the drawing, its x axis and the points of its lines, for the page's script."""
        width, height = self.figure.get_size_inches() * 72
        panels = []
        for ax in self.figure.axes:
            box = ax.get_position()
            place = (box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height)
            named = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
            lines = [{"name": line.get_label(), "points": _points(line)} for line in named]
            panels.append(
                {
                    "box": [round(v, 1) for v in place],
                    "x": [*map(float, ax.get_xlim()), ax.get_xscale() == "log"],
                    "what": ax.get_xlabel() or self.figure.axes[-1].get_xlabel(),
                    "lines": lines,
                }
            )
        return [panel for panel in panels if panel["lines"]]

    def svg(self) -> str:
        """Return the picture as an SVG file, which follows the reader's light or dark setting."""
        light = "".join(f"{name}:{colour};" for colour, name in VARIABLES.items())
        dark = "".join(f"{name}:{DARK_COLOURS[colour]};" for colour, name in VARIABLES.items())
        fonts = "--sans:'DejaVu Sans',sans-serif;"
        style = f"<style>svg{{{fonts}{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
        tag, rest = self._body.split(">", 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{tag}>{style}{rest}\n'

    @property
    def label(self) -> str:
        """Return the titles of its axes, for readers who cannot see it."""
        texts = [ax.get_ylabel() or ax.get_xlabel() for ax in self.figure.axes]
        return "Figure: " + "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts if text))

    def inline(self, ident: str) -> Markup:
        """Return the picture as a part of a page, with the data for the page's script.

        `ident` is unique in the page, and each id of the picture begins with it.
        """
        body = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{ident}-", self._body)
        head = Markup('<svg class="drawn" role="img" tabindex="0" aria-label="{}" data-figure="{}"')
        drawn = head.format(self.label, ident) + Markup(body.removeprefix("<svg"))
        if not (panels := self.data):
            return drawn
        data = htmlsafe_json_dumps(panels, separators=(",", ":"), allow_nan=False)  # nothing in it ends the script
        return drawn + Markup('<script type="application/json" id="{}-data">{}</script>').format(ident, data)

    @functools.cached_property
    def _body(self) -> str:
        """Return the SVG element, for the file and for the page."""
        text = self.saved("svg", facecolor="none").decode()
        text = text[text.index("<svg") :].replace("'DejaVu Sans'", "var(--sans)")
        # a hundredth of a point is finer than any screen: half of the bytes
        text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
        return re.sub("|".join(VARIABLES), lambda colour: f"var({VARIABLES[colour[0]]})", text)

    @styled
    def saved(self, kind: str, **options: Any) -> bytes:
        """Return the picture as a file without a date or a program's name."""
        file = io.BytesIO()
        self.figure.savefig(file, format=kind, metadata=UNDATED[kind], **options)
        return file.getvalue()


def _points(line: Line2D) -> list[list[float | None]]:
    """Return [x, y] or [x, y, low, high] of each point; null for a value that is not finite."""
    columns = (*line.get_data(orig=True), *getattr(line, "interval", ()))
    points = []
    for x, *values in zip(*columns, strict=True):
        points.append([float(x), *(float(f"{value:.5g}") if math.isfinite(value) else None for value in values)])
    return points


def plot(
    ax: Axes,
    x: Sequence[float],
    y: Sequence[float],
    name: str = "_",
    *,
    low: Sequence[float] = (),
    high: Sequence[float] = (),
    fill: float = 0.0,
    **style: Any,
) -> None:
    """Draw a line or points. `low` and `high` are an interval per point: bars, or with opacity `fill` a band.

    `name`: the page's script shows its values under it; "_": it does not.
    """
    if fill:
        ax.fill_between(x, low, high, color=style["color"], alpha=fill, lw=0)
    elif len(low):
        ax.vlines(x, low, high, color=style["color"], linewidth=1.1)
    (line,) = ax.plot(x, y, label=name, **style)
    if len(low):
        line.interval = low, high  # type: ignore[attr-defined]  # for `_points`


def titled(ax: Axes, x: str, y: str = "", title: str = "", *, empty: str = "", margins: Any = (0.02, 0.05)) -> None:
    """Set the titles of the axes, after drawing on them. `empty`: the text of axes without a line."""
    if ax.has_data():
        ax.margins(*margins)
    else:
        ax.text(0.5, 0.5, empty, transform=ax.transAxes, ha="center", va="center", color=MUTED)
    height = ax.get_position().height * ax.figure.get_figure(root=True).get_size_inches()[1]
    ax.set_xlabel(x, labelpad=2)
    ax.set_ylabel("\n".join(textwrap.wrap(y, int(height / LETTER))), labelpad=2)
    ax.set_title(title)


def canvas(
    rows: int,
    columns: int,
    looks: Mapping[str, Look],
    *,
    width: float,
    height: float,
    left: float = 0.6,
    gap: float = 0.18,
    titles: bool = False,
    **sharing: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """Make a figure of equal panels under one legend. `width`, `height`, `left` and `gap` are in inches.

    `titles`: whether panels have titles.
    """
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
        keys = [Line2D([], [], **looks[name].line, lw=1.6, marker=looks[name].points, ms=4) for name in names]
        figure.legend(
            keys,
            names,
            loc="upper left",
            bbox_to_anchor=((left - 0.06) / total_width, 1.0),
            ncols=per_line,
            frameon=False,
            handlelength=2.2,
            columnspacing=1.4,
            labelspacing=0.5,
            borderpad=0.2,
            borderaxespad=0.2,
        )
    return figure, axes
