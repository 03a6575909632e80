"""Choices that a paper leaves open, or that depart from it: each as a pair of cells that differ in it alone.

`results/published/PAPER/departures.toml` has a paper's switches, and README.md of this folder its keys. The cells of a
switch are NAME/default and NAME/other of the item PAPER/departures; `reports/PAPER/departures.md` names each as
(PAPER/departures: NAME).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.item import Cell, Item
from benchmark.papers.published import check_keys, read_published
from benchmark.papers.scale import REDUCED, changed
from benchmark.papers.table import SELECTIONS, Paper, item

DEFAULT, OTHER = "Default", "Other"


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One choice between two ways, on a base cell with which everything else is shared.

    A way is values by dotted field ({"method.momentum": "released_code"}) or the name of one of the paper's `changes`.
    """

    name: str  # of the pair: its cells are NAME/default and NAME/other
    entry: int  # of the paper's departures.md
    what: str
    words: tuple[str, str]  # for people: our default, the other way
    base: str  # "tab2: FedAvg/full"; "tab1: {data}/FixMatch/more": of the item's first data set
    both: Mapping[str, Any] | str = field(default_factory=dict)  # set in the base first
    default: Mapping[str, Any] | str = field(default_factory=dict)
    other: Mapping[str, Any] | str = field(default_factory=dict)
    instead: str | None = None  # the other way as a cell: "tab2: Control/full"


def switches_of(paper: str) -> tuple[tuple[Switch, ...], tuple[str, ...]]:
    """A paper's switches, and notes for the foot of the table. Raises ConfigError for an unknown key.

    The other way of a switch may be one of the file's `ways`, which several switches share.
    """
    file = read_published(f"{paper}/departures")
    known = {f.name for f in fields(Switch)}
    switches = []
    for table in file.switches:
        check_keys(f"{paper}/departures: switch {table.get('name')!r}", table, known)
        other = table.get("other", {})
        if isinstance(other, str):
            other = file.ways.get(other, other)
        switches.append(Switch(**{**table, "other": other}))
    return tuple(switches), file.notes


def departures(paper: Paper, profile: str) -> Item:
    """Build the item that has each switch as a row: our default, the other way, their difference. Raise ConfigError."""
    switches, notes = switches_of(paper.name)
    cells_used = [switch.base for switch in switches]
    cells_used += [switch.instead for switch in switches if switch.instead]
    names = dict.fromkeys(cell.partition(": ")[0] for cell in cells_used)
    built = {name: item(paper, name, profile) for name in names}
    _, *stand_in = next(iter(built.values())).title.partition(" (stand-in: ")  # of the first item
    bases: dict[str, Experiment] = {}
    for name, of_paper in built.items():
        known = of_paper.cells
        data = known[0].setting.get("data", "")
        bases |= {f"{name}: {cell.label}".replace(f": {data}/", ": {data}/"): cell.experiment for cell in known}
    # A variant of the paper is without methods that came later, and their switches.
    cells = [cell for switch in switches if switch.base in bases for cell in _pair(switch, bases, paper)]
    return Item(
        name=f"{paper.name}/departures",
        title="What the departures from paper and released code do" + "".join(stand_in),
        profile=profile,
        cells=tuple(cells),
        seeds=3 if profile in REDUCED else 1,
        notes=(
            "A question of ours, not a table of the paper. Both cells of a row have everything else in common.",
            "No claim judges these differences, so they have no interval.",
            *notes,
            SELECTIONS["last"],
            *paper.notes_on_variants(f"{paper.name}/departures", profile),
        ),
        confirms_from=paper.confirms_from,
    )


def _pair(switch: Switch, bases: Mapping[str, Experiment], paper: Paper) -> list[Cell]:
    """The switch's two cells, the profile's own way first; none where both are equal (no warm start at `paper`)."""
    base = bases[switch.base]
    shared = _with(base, switch.both, paper)
    other = bases[switch.instead] if switch.instead else _with(shared, switch.other, paper)
    ways = [(switch.words[0], _with(shared, switch.default, paper)), (switch.words[1], other)]
    if ways[0][1] == ways[1][1]:
        return []
    if ways[1][1] == base:  # mirrored images and a network without norm are the paper profile's default
        ways.reverse()
    name, _, cell = switch.base.partition(": ")
    return [
        Cell(
            label=f"{switch.name}/{way.lower()}",
            setting={"method": way, "switch": f"{switch.what}: {ways[0][0]} | {ways[1][0]}"},
            experiment=experiment,
            role="control",
            note=f"{words}; base: {cell.removeprefix('{data}/')} of {name}; departure {switch.entry}",
        )
        for way, (words, experiment) in zip((DEFAULT, OTHER), ways, strict=True)
    ]


def _with(base: Experiment, way: Mapping[str, Any] | str, paper: Paper) -> Experiment:
    """The base in that way, with what follows from it where the way itself does not set it."""
    if not isinstance(way, str):
        return changed(paper.settled(changed(base, way)), way) if way else base
    if way not in paper.changes:
        raise ConfigError(f"{paper.name}/departures: unknown change {way!r}; choose {', '.join(paper.changes)}")
    return paper.settled(paper.changes[way](base))
