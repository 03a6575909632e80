"""What `table.py` has to know of a paper, and the other ways in which its items are built."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from benchmark.experiment import Experiment
from benchmark.papers.columns import Factor
from benchmark.papers.item import CONFIRMING, Cell, Item
from benchmark.papers.scale import PROFILES, Scale

Line = Mapping[str, Any]  # one printed entry of a file
Rule = Literal["paper", "released_code"]
AS_PRINTED = "-printed"  # ends the name of an item under `--rule paper`


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Another way to build a paper's items, each of them an item of its own."""

    suffix: str  # ends their names: "-printed" of "ssfl/tab2-printed"
    title: str  # in brackets after an item's title
    note: str  # at the foot of their tables
    experiment: Callable[[Any], Experiment]  # a setting at the paper's scale
    profiles: tuple[str, ...] = PROFILES  # in which their runs differ from those of the paper's own items
    switches: bool = False  # whether PAPER/departures is built so, too
    named_by: str = ""  # a note of the paper's own items; {name} is the item that is built this way
    family: str = ""  # what manifests put after the paper's name for the family of its claims

    def item(self, build: Callable[[str], Item], profile: str) -> Item:
        """What `build` makes of the paper built so, under this variant's name and title."""
        item = build(profile)
        title, notes = f"{item.title} ({self.title})", (*item.notes, self.note)
        paper = item.name.partition("/")[0]
        return replace(item, name=item.name + self.suffix, title=title, notes=notes, claims_of=paper + self.family)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: from its printed lines to experiments, and what the suite adds."""

    name: str
    setting: type[Any]  # a dataclass of the paper's file: the keys of a line that make its experiment
    experiment: Callable[[Any], Experiment]  # a setting at the paper's scale
    variants: tuple[Variant, ...] = ()
    scale: Callable[[Any, str], Scale]  # (setting, "demo" or "laptop") -> its stand-in
    # Values of a setting that are so usual in the paper that no label has them: {"E": 300}.
    usual: Callable[[Any], Mapping[str, Any]] = lambda setting: {}
    # An experiment with the fields that follow from its others, under any profile.
    settled: Callable[[Experiment], Experiment] = lambda experiment: experiment
    # (item's name, its cells) -> cells that the suite adds to them: controls, bounds, rungs of a ladder.
    additions: Callable[[str, Sequence[Cell]], Iterable[Cell]] = lambda name, cells: ()
    computed: Mapping[str, Callable[[Experiment], float | str]] = field(default_factory=dict)  # columns without a run
    factors: Mapping[str, Callable[[Any, Experiment], Factor]] = field(default_factory=dict)  # in addition to `FACTORS`
    bounded: bool = False  # whether `bounds` are added to items that show accuracies
    changes: Mapping[str, Callable[[Experiment], Experiment]] = field(default_factory=dict)  # named by its switches
    seeds: Mapping[str, int] = field(default_factory=lambda: {"demo": 3, "laptop": 5})  # else the paper's number
    confirms_from: int = CONFIRMING.start  # the first seed of its claims; later where earlier cells were wrong

    @property
    def keys(self) -> set[str]:
        """The keys of a line that make its setting."""
        return {f.name for f in fields(self.setting)}

    def notes_on_variants(self, item: str, profile: str) -> Iterator[str]:
        variants = (v for v in self.variants if v.named_by and profile in v.profiles)
        is_built = (v for v in variants if v.switches or not item.endswith("/departures"))
        return (v.named_by.format(name=f"{item}{v.suffix}") for v in is_built)

    def setting_of(self, line: Line) -> Any:
        """The line's setting, without its value, row and notes."""
        return self.setting(**{key: value for key, value in line.items() if key in self.keys})
