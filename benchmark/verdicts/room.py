"""Compute the room of a claim: how much its cells could still improve in the judged setting.

If every method is near the ceiling, the setting cannot show an improvement, and "no effect of
interest" would blame the method for it. Such a claim has "no room". The ceiling is the best median
accuracy at the end of a run among all cells of the item on the same data, if one of them has an
advantage over all methods of the claim: all images in one place, or the labels of all images. If
there is no such cell, the possible accuracy is unknown and the ceiling is 1. The best of the
compared methods is no ceiling, because a different method may be better. The ceiling from a cell
with more information is often below 1 by more than a margin: central FixMatch has 97.3 % on the 100
labels of SSFL's Table 2.

The room of a - b is the distance from the worse cell to the ceiling. It does not depend on which of
them is worse: a cell that lost much leaves much room. In a weighted contrast, the room is the
larger of two sums, the possible gains of the cells with positive weights and of the cells with
negative weights, each times its weight.

Example: two cells have 96.6 and 97.1 %, and the ceiling is 97.3 %. The room is 0.7 points. With a
margin of 0.5 points, four margins are 2.0 points, so that a claim that one of them improves on the
other has no room.
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
    """Return the smallest room of the claim's contrasts, as a fraction of accuracy.

    The median is over the confirmatory seeds of a cell, or over its exploratory seeds if it has no
    others. Return None for other metrics, for endpoints that are no accuracy, and if a cell has no
    run.
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
    """Return a phrase if the room is less than four margins, and an empty text if not; without a
    margin, any room is enough.
    """
    if room is None or room >= ROOM * claim.least:
        return ""
    left, margin = in_unit(claim.metric, room), in_unit(claim.metric, claim.least)
    return f"the cells leave {left} of room for improvement, less than {ROOM} margins of {margin}"


def ceiling(item: Item, records: Records, data: Iterable[str]) -> float:
    """Return the best median accuracy at the end of a run on these data sets; 1 if no cell bounds it from above."""
    cells = [cell for cell in item.cells if cell.experiment.data.name in data]
    ends = {cell.label: _typical(item, records, cell, "end") for cell in cells}
    known = {label: end for label, end in ends.items() if end is not None}
    if not any(_has_more(cell) and cell.label in known for cell in cells):
        return 1.0
    return max(known.values())


def _has_more(cell: Cell) -> bool:
    """Return whether the cell trains on all images in one place, or on the labels of all images."""
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
