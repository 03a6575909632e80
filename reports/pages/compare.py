"""The compare page's data: every cell with a finished run, its values by seed, and its curve in a few points.

The page is one file without a server, so that all of it is in there; t factors come with it, since the page's script
has no statistics of its own.
"""

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from benchmark.papers.item import Item
from benchmark.verdicts.results import ACCURACY, CellResult, Records
from benchmark.verdicts.statistics import t_factor
from reports.chart import SHAPES
from reports.pages.cell import look_of
from reports.series import seeds_series
from reports.style import MARKERS

MOST = 8  # cells beside each other
MOST_SEEDS = 40  # more have this many's t factors, which are a little too wide
CURVE_POINTS = 40
FAMILY = 0.05


def entry(result: CellResult, records: Records, page: str) -> dict[str, Any] | None:
    """One cell: what names it, seed -> accuracy in percent, [round, percent] of its mean (or only run), and the places
    of its method's colour and marker. None without a finished run."""
    if not result.values:
        return None
    series = seeds_series(result, records, ACCURACY, CURVE_POINTS)
    line = series.mean or next(iter(series.runs.values()), [])
    look = look_of(result)
    return {
        "l": result.cell.label,
        "h": page,
        "v": {str(seed): round(100 * value, 4) for seed, value in result.values.items()},
        "d": len(result.diverged),
        "c": [[x, round(100 * y, 3)] for x, y in line],
        "k": [look.colour, look.marker],
    }


def group(item: Item, cells: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """An item's part of the page's data."""
    return {"item": item.name, "profile": item.profile, "cells": [cell for cell in cells if cell is not None]}


def factors() -> list[list[float]]:
    """t factors by the number of comparisons less one and the number of common seeds less two: the half width of the
    interval at 1 - 0.05 / comparisons is the factor times the standard deviation of the differences."""
    return [
        [round(t_factor(n, 1 - FAMILY / comparisons), 6) for n in range(2, MOST_SEEDS + 1)]
        for comparisons in range(1, MOST)
    ]


def as_script(value: Any) -> Markup:
    """JSON for a data block: with nothing in it that could end the block."""
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def compare_values(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`groups`: the items' entries."""
    shown = [group for group in groups if group["cells"]]
    return {
        "data": as_script(
            {"groups": shown, "factors": factors(), "most": MOST, "shapes": [SHAPES[name] for name in MARKERS]}
        ),
        "cells": sum(len(g["cells"]) for g in shown),
    }
