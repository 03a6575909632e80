"""Pictures of intervals: claims, and an arena's methods; every seed is a dot.

They are apart from the tables of claims and arenas, so that a terminal's table is printed without matplotlib.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from benchmark.papers.item import Claim, Item
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.results import CellResult
from benchmark.verdicts.statistics import summary
from reports.arena import Arena, methods
from reports.figures import Picture, canvas, styled, titled
from reports.formatting import is_fraction, metric_name, unit_text
from reports.paper_table import method_of
from reports.style import GRID, INK, Look, looks


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

    def draw(self, ax: Axes, place: int, scale: float) -> None:
        """Margin, interval, every run and the mean, at a height."""
        colour, face = self.look.hex, "none" if self.hollow else self.look.hex

        def level(xs: Sequence[float], **style: Any) -> None:
            ax.plot([scale * x for x in xs], [place] * len(xs), solid_capstyle="butt", **style)

        if self.margin:
            level((-self.margin, self.margin), color=GRID, linewidth=14, alpha=0.6)
        if self.interval:
            level(self.interval, color=colour, linewidth=2.2, alpha=0.55)
        level(self.dots, color=colour, markerfacecolor=face, marker="o", markersize=4, alpha=0.7, linewidth=0)
        if self.mean is not None:
            level((self.mean,), color=INK, marker="|", markersize=10, markeredgewidth=1.6)


@styled
def intervals(rows: Sequence[IntervalRow], x_title: str, *, percent: bool, names: float, zero: bool = True) -> Picture:
    """A row each, on one axis.

    `percent`: the axis is in percent, the rows are fractions. `names`: inches of the names.
    """
    figure, [[ax]] = canvas(1, 1, {}, width=5.2, height=0.24 * len(rows) + 0.1, left=names)
    for place, row in enumerate(rows):
        row.draw(ax, place, 100.0 if percent else 1.0)
    titled(ax, x_title, margins=(0.05, 0.05))
    if zero:
        ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)
    return Picture(figure=figure)


def _axis_title(claim: Claim) -> str:
    return ", ".join(filter(None, (f"{metric_name(claim.metric)}: difference", unit_text(claim))))


def claims_pictures(judged: Sequence[Judged]) -> list[Picture]:
    """Every claim's interval, those of one unit on one axis. None of what is counted, or has no estimate.

    A claim of one contrast has each of its seeds as a dot.
    """
    axes: dict[tuple[str, bool], list[IntervalRow]] = {}
    for one in judged:
        if one.estimate is not None and one.claim.endpoint != "arithmetic":
            claim, seen, values = one.claim, one.evidence, list[float]()
            if seen is not None and len(seen.differences) == 1:
                values = seen.differences_at((seen.confirming or seen.pilots)[: one.n], 0)
            row = IntervalRow(
                name=claim.name, mean=one.estimate, interval=one.interval, dots=values, margin=claim.least
            )
            axes.setdefault((_axis_title(claim), is_fraction(claim.metric)), []).append(row)
    return [
        intervals(rows, title, percent=percent, names=0.2 + 0.068 * max(len(row.name) for row in rows))
        for (title, percent), rows in axes.items()
    ]


def dots(item: Item, arena: Arena) -> Picture | None:
    """Accuracy at equal rounds, every seed a dot, best first; bounds hollow. None without a finished run."""
    if not arena.compared:
        return None
    chosen = looks(methods(item))

    def row(result: CellResult, values: Mapping[int, float], look: Look | None) -> IntervalRow:
        results = summary(values.values())
        low, high = results.interval or (0.0, 0.0)
        return IntervalRow(
            name=method_of(result.cell),
            mean=results.mean,
            interval=(max(0.0, low), min(1.0, high)) if results.interval else None,
            dots=list(values.values()),
            look=look or Look(colour=2),
            hollow=look is None,
        )

    rows = [row(m.result, m.scores["rounds"], chosen[method_of(m.result.cell)]) for m in arena.compared]
    rows += [row(result, result.values, None) for result in arena.bounds if result.values]
    title = "Test accuracy (%) at equal rounds; line: 95 % interval, tick: mean"
    return intervals(rows, title, percent=True, names=1.6, zero=False)
