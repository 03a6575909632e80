"""What the runs of several items are for: counted once each, however many tables share them."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmark.papers.item import Item


@dataclass(frozen=True, kw_only=True)
class Census:
    """Distinct cells by what they are for; a cell of two kinds counts as the first of them."""

    published: int  # behind a number, a curve or an announced run of the paper
    controls: int  # ours, beside the paper's, bounds too
    rungs: int  # of a ladder
    quoted: int  # shown, and run on request alone


def census(items: Iterable[Item]) -> Census:
    kinds = {"published": ("published",), "controls": ("control", "bound"), "rungs": ("ladder",), "quoted": ("quoted",)}
    cells = [cell for item in items for cell in item.cells]
    seen: set[str] = set()
    counts = {}
    for kind, roles in kinds.items():
        found = {cell.cell_key for cell in cells if cell.role in roles} - seen
        counts[kind] = len(found)
        seen |= found
    return Census(**counts)
