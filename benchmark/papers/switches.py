"""Choices that a paper leaves open, or that depart from it: each as a pair of cells with all else in common.

The cells of a switch are NAME/default and NAME/other, of an item PAPER/departures; `reports/PAPER/departures.md` names
each as (PAPER/departures: NAME).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmark.experiment import Experiment
from benchmark.papers.item import Cell, Item
from benchmark.papers.scale import with_field
from benchmark.papers.table import SELECTIONS

Way = Mapping[str, Any] | Callable[[Experiment], Experiment]
DEFAULT, OTHER = "Default", "Other"
SEEDS = {"demo": 3, "laptop": 3}


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One choice between two ways, on a base cell with which everything else is shared."""

    name: str  # of the pair: its cells are NAME/default and NAME/other
    entry: int  # of the paper's departures.md
    what: str
    words: tuple[str, str]  # for people: our default, the other way
    base: str  # a cell, for people: "FedAvg/full of Table 2"
    # What either way sets in the base: values by path, or a function of the base.
    default: Way = field(default_factory=dict)
    other: Way


def departures_of(
    paper: str, switches: Iterable[Switch], bases: Mapping[str, Experiment], profile: str, stand_in: str, *notes: str
) -> Item:
    """Every switch as a row: our default, the other way, and their difference. `stand_in`: of a reduced profile."""
    cells = [cell for switch in switches for cell in _pair(switch, bases[switch.base])]
    return Item(
        name=f"{paper}/departures",
        title="What the departures from paper and released code do" + (f" (stand-in: {stand_in})" if stand_in else ""),
        profile=profile,
        cells=tuple(cells),
        seeds=SEEDS.get(profile, 1),
        notes=(
            "A question of ours, no table of the paper. Both cells of a row have everything else in common.",
            f"Intervals are for one row each: of {len(cells) // 2} that hold nothing, one in twenty would seem to.",
            *notes,
            SELECTIONS["last"],
        ),
    )


def with_values(base: Experiment, way: Way) -> Experiment:
    """The base with a way's values: {"method.momentum": "released_code"}."""
    if callable(way):
        return way(base)
    for path, value in way.items():
        base = with_field(base, path, value)
    return base


def _pair(switch: Switch, base: Experiment) -> list[Cell]:
    """Its two cells, the profile's own way first; none where both are the same (no warm start in the paper's)."""
    ways = [(switch.words[0], with_values(base, switch.default)), (switch.words[1], with_values(base, switch.other))]
    if ways[0][1] == ways[1][1]:
        return []
    if ways[1][1] == base:  # mirrored images and a network without norm are the paper profile's default
        ways.reverse()
    return [
        Cell(
            label=f"{switch.name}/{way.lower()}",
            setting={"method": way, "switch": f"{switch.what}: {ways[0][0]} | {ways[1][0]}"},
            experiment=experiment,
            role="control",
            note=f"{words}; base: {switch.base}; departure {switch.entry}",
        )
        for way, (words, experiment) in zip((DEFAULT, OTHER), ways, strict=True)
    ]
