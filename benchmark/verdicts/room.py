"""Computes the room of a claim: how far its cells could still rise in the setting that it is judged in.

A setting in which every method is near the ceiling cannot show an improvement, so "no effect of interest" would
reproach the method for the setting. The ceiling is the best typical accuracy at the end of a run among all cells of the
item on the same data, if one of them has what no method of the claim has: all images in one place, or the labels of all
images. Without such a cell nobody knows what the setting allows, and the ceiling is 1; the best of the compared methods
is no ceiling, because a rival may be better. The cell on the same data with the most information is often below 1 by
more than a margin: central FixMatch has 97.3 % on the 100 labels of SSFL's Table 2.

The room of a - b is that above the worse cell, so it has no side: a cell that lost much leaves much room, whichever it
is. In a weighted contrast it is the larger of two sums: what the cells with positive weights could gain, and those with
negative weights, each times its weight.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from benchmark.methods.central import Central
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import ACCURACY, CONFIRMING, LAST_ROUNDS, Cell, Claim, Item
from benchmark.verdicts.cell_results import Records, cell_result
from benchmark.verdicts.rule import ROOM
from benchmark.verdicts.statistics import in_unit

ENDPOINTS = ("last", "end", "speed", "throughout")


def room_of(item: Item, records: Records, claim: Claim) -> float | None:
    """The least room of the claim's contrasts, a fraction of accuracy; None for other metrics and before any run.

    Typical values are medians over the confirmatory seeds of a cell, or over its exploratory seeds if it has no others.
    """
    is_level = claim.endpoint in ENDPOINTS or LAST_ROUNDS.fullmatch(claim.endpoint)
    if claim.metric != ACCURACY or not is_level:
        return None
    values = {label: _typical(item, records, item.cell(label), claim.endpoint) for label in claim.labels}
    known = {label: value for label, value in values.items() if value is not None}
    if len(known) < len(values):
        return None
    data = {item.cell(label).experiment.data.name for label in claim.labels}
    top = max([ceiling(item, records, data), *known.values()])
    return min(_room(cells, known, top) for cells in claim.contrasts)


def shortage(room: float | None, claim: Claim) -> str:
    """Say that the room is less than four margins; empty if it is not. Without a margin any room is enough."""
    if room is None or room >= ROOM * claim.least:
        return ""
    left, margin = in_unit(claim.metric, room), in_unit(claim.metric, claim.least)
    return f"the cells leave {left} of room, less than {ROOM} margins of {margin}"


def ceiling(item: Item, records: Records, data: Iterable[str]) -> float:
    """The best typical accuracy at the end of a run on these data sets; 1 without a cell that bounds it from above."""
    cells = [cell for cell in item.cells if cell.experiment.data.name in data]
    ends = {cell.label: _typical(item, records, cell, "end") for cell in cells}
    known = {label: end for label, end in ends.items() if end is not None}
    if not any(_has_more(cell) and cell.label in known for cell in cells):
        return 1.0
    return max(known.values())


def _has_more(cell: Cell) -> bool:
    """Whether it trains on all images in one place or on the labels of all images."""
    e = cell.experiment
    alone = isinstance(e.method, ServerOnly) and e.method.images == "servers"
    return (isinstance(e.method, Central) or e.data.label_setting == "everywhere") and not alone


def _typical(item: Item, records: Records, cell: Cell, endpoint: str) -> float | None:
    values = cell_result(cell, records, item.seeds, ACCURACY, endpoint).values
    confirmed = [value for seed, value in values.items() if seed in CONFIRMING]
    return median(confirmed or values.values()) if values else None


def _room(cells: Mapping[str, float], values: Mapping[str, float], top: float) -> float:
    above = {label: weight * (top - values[label]) for label, weight in cells.items()}
    positive = sum(room for room in above.values() if room > 0)
    return float(max(positive, -sum(room for room in above.values() if room < 0)))
