"""Draw the claims of a table or figure: each claim's differences by seed, and its interval."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmark.fractions import is_fraction
from benchmark.verdicts.judge import Judged
from reports.figures import GRID, INK, PALETTE, Picture, canvas, styled, titled
from reports.formatting import metric_name, unit_text


def claims_pictures(judged: Sequence[Judged]) -> list[Picture]:
    """Draw the interval of each claim, with one picture per metric.

    Computed claims and claims without an estimate are left out.
    """
    axes: dict[tuple[str, float], list[Judged]] = {}
    for one in judged:
        if one.estimate is not None and one.claim.endpoint != "arithmetic":
            title = ", ".join(filter(None, (f"{metric_name(one.claim.metric)}: difference", unit_text(one.claim))))
            axes.setdefault((title, 100.0 if is_fraction(one.claim.metric) else 1.0), []).append(one)
    return [_intervals(rows, title, scale) for (title, scale), rows in axes.items()]


@styled
def _intervals(rows: Sequence[Judged], x_title: str, scale: float) -> Picture:
    """Draw one row per claim on a common axis.

    A row shows the smallest effect size of interest as a band, the interval, one dot per seed and the estimate. A
    claim with several contrasts has no dots.
    """
    room = 0.2 + 0.068 * max(len(one.claim.name) for one in rows)  # inches for the names
    figure, [[ax]] = canvas(1, 1, {}, width=5.2, height=0.24 * len(rows) + 0.1, left=room)
    for place, one in enumerate(rows):
        least, seen, seeds = one.claim.least, one.evidence, list[float]()
        if seen is not None and len(seen.differences) == 1:
            seeds = seen.differences_at((seen.confirming or seen.pilots)[: one.n], 0)
        lines: tuple[tuple[Sequence[Any], dict[str, Any]], ...] = (
            ((-least, least) if least else (), {"color": GRID, "linewidth": 14, "alpha": 0.6}),
            (one.interval or (), {"color": PALETTE[0], "linewidth": 2.2, "alpha": 0.55}),
            (seeds, {"color": PALETTE[0], "marker": "o", "markersize": 4, "alpha": 0.7, "linewidth": 0}),
            ((one.estimate,), {"color": INK, "marker": "|", "markersize": 10, "markeredgewidth": 1.6}),
        )
        for xs, style in lines:
            ax.plot(scale * np.array(xs), [place] * len(xs), solid_capstyle="butt", **style)
    titled(ax, x_title, margins=(0.05, 0.05))
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(rows)), [one.claim.name for one in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)
    return Picture(figure=figure)
