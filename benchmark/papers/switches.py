"""Build the ablations of a paper's implementation choices: pairs of cells that differ only in one choice.

The paper leaves such a choice open, or this suite deviates from the paper in it. The choices are
listed in `results/published/PAPER/departures.toml`; README.md of this folder describes its keys.
The cells of a choice are NAME/default and NAME/other in the item PAPER/departures, and
`reports/PAPER/departures.md` refers to each as (PAPER/departures: NAME).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.item import Cell, Item
from benchmark.papers.paper import Paper
from benchmark.papers.published import check_keys, read_published
from benchmark.papers.scale import REDUCED, changed
from benchmark.papers.table import SELECTIONS, item

DEFAULT, OTHER = "Default", "Other"


@dataclass(frozen=True, kw_only=True)
class Switch:
    """An implementation choice with two ways, applied to a base cell, with all other settings
    equal.

    A way is either values by dotted field ({"method.momentum": "released_code"}) or the name of one
    of the paper's `changes`.
    """

    name: str  # the two cells are NAME/default and NAME/other
    entry: int  # the number of its entry in the paper's departures.md
    what: str
    words: tuple[str, str]  # descriptions for readers: our default, the other way
    base: str  # "tab2: FedAvg/full"; "tab1: {data}/FixMatch/more" for the item's first data set
    both: Mapping[str, Any] | str = field(default_factory=dict)  # set in the base first
    default: Mapping[str, Any] | str = field(default_factory=dict)
    other: Mapping[str, Any] | str = field(default_factory=dict)
    instead: str | None = None  # a cell that is the other way: "tab2: Control/full"


def switches_of(paper: str) -> tuple[tuple[Switch, ...], tuple[str, ...]]:
    """Return a paper's switches, and notes for the foot of their table.

    The other way of a switch may name one of the file's `ways`, which several switches share. Raise
    ConfigError for an unknown key.
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
    """Build the item with one row per switch: our default, the other way, and their difference.

    Raise ConfigError if a change is unknown.
    """
    switches, notes = switches_of(paper.name)
    cells_used = [switch.base for switch in switches]
    cells_used += [switch.instead for switch in switches if switch.instead]
    names = dict.fromkeys(cell.partition(": ")[0] for cell in cells_used)
    built = {name: item(paper, name, profile) for name in names}
    _, *reduced = next(iter(built.values())).title.partition(" (surrogate")  # of the first item
    bases: dict[str, Experiment] = {}
    for name, of_paper in built.items():
        known = of_paper.cells
        data = known[0].setting.get("data", "")
        bases |= {f"{name}: {cell.label}".replace(f": {data}/", ": {data}/"): cell.experiment for cell in known}
    # A variant of the paper does not have the methods that were added later, so that their switches are left out.
    cells = [cell for switch in switches if switch.base in bases for cell in _pair(switch, bases, paper)]
    return Item(
        name=f"{paper.name}/departures",
        title="Effects of the deviations from the paper and the released code" + "".join(reduced),
        profile=profile,
        cells=tuple(cells),
        seeds=3 if profile in REDUCED else 1,
        notes=(
            "This table answers a question of ours; it is not in the paper. A row's cells differ only in the choice.",
            "No claim judges these differences, so they have no interval.",
            *notes,
            SELECTIONS["last"],
            *paper.notes_on_variants(f"{paper.name}/departures", profile),
        ),
        confirms_from=paper.confirms_from,
    )


class Way(NamedTuple):
    """A way of a switch: its description for readers, and the base with it."""

    words: str
    experiment: Experiment


def _pair(switch: Switch, bases: Mapping[str, Experiment], paper: Paper) -> list[Cell]:
    """Return the switch's two cells, the profile's own way first.

    Return no cells if both ways are equal. For example, there is no warm start under `paper`.
    """
    base = bases[switch.base]
    shared = _with(base, switch.both, paper)
    words_of_default, words_of_other = switch.words
    other = Way(words_of_other, bases[switch.instead] if switch.instead else _with(shared, switch.other, paper))
    default = Way(words_of_default, _with(shared, switch.default, paper))
    if default.experiment == other.experiment:
        return []
    if other.experiment == base:  # the paper profile's defaults are mirrored images and a network without norm
        default, other = other, default
    name, _, cell = switch.base.partition(": ")
    return [
        Cell(
            label=f"{switch.name}/{title.lower()}",
            setting={"method": title, "switch": f"{switch.what}: {default.words} | {other.words}"},
            experiment=way.experiment,
            role="control",
            note=f"{way.words}; base: {cell.removeprefix('{data}/')} of {name}; deviation {switch.entry}",
        )
        for title, way in ((DEFAULT, default), (OTHER, other))
    ]


def _with(base: Experiment, way: Mapping[str, Any] | str, paper: Paper) -> Experiment:
    """Return the base changed in that way, with the fields that follow from it unless the way itself sets them.

    Raise ConfigError for an unknown change.
    """
    if not isinstance(way, str):
        return changed(paper.settled(changed(base, way)), way) if way else base
    if way not in paper.changes:
        raise ConfigError(f"{paper.name}/departures: unknown change {way!r}; choose {', '.join(paper.changes)}")
    return paper.settled(paper.changes[way](base))
