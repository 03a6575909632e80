"""Define a paper (`Paper`): how its published lines become experiments, and the variants of its items."""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from benchmark.experiment import Experiment
from benchmark.papers.item import CONFIRMING, Cell, Item
from benchmark.papers.published import Line
from benchmark.papers.scale import PROFILES, Scale

Rule = Literal["paper", "released_code"]
BY_THE_PAPER = "-printed"  # suffix of an item's name under `--rule paper`
ON_CIFAR10 = "-cifar10"  # suffix of an item's name in its reduced setting on CIFAR-10
Factor = str | int | float
WORDS: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())
# Letters and words of the papers -> the value in the experiment that runs, even if it differs from the published
# value.
FACTORS: Mapping[str, Callable[[Experiment], Factor]] = {
    "R": lambda e: e.partition.R_nominal or 0.0,
    "T": lambda e: e.federation.T,
    "N_s": lambda e: e.data.N_s,
    "K": lambda e: e.federation.K,
    "C": lambda e: e.federation.C,
    "rounds": lambda e: e.federation.rounds,
    "network": lambda e: WORDS.get(e.model.network, e.model.network),
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A different way to build the items of a paper; each result is a separate item."""

    suffix: str  # suffix of their names: "-printed" in "ssfl/tab2-printed"
    title: str = ""  # appended in brackets to an item's title
    note: str  # shown below their tables
    experiment: Callable[[Any], Experiment] | None = None  # builds a setting at the paper's scale; None: the paper's
    scale: Callable[[Any, str], Scale] | None = None  # reduced settings of its own; None: the paper's
    items: tuple[str, ...] = ()  # names of the items that it builds; empty: all items of the paper
    profiles: tuple[str, ...] = PROFILES  # profiles in which their runs differ from the paper's own items
    switches: bool = False  # whether PAPER/departures also exists in this variant
    named_by: str = ""  # a note of the paper's own items; {name} is this variant of the item
    family: str = ""  # appended to the paper's name in the family of its claims
    # Whether its cells were wrong; it keeps the claims that its runs judged, without replacements.
    is_withdrawn: bool = False

    @property
    def is_further_setting(self) -> bool:
        """Return whether it adds a reduced setting on different data, whose claims count like those of the paper."""
        return self.scale is not None

    def builds(self, name: str) -> bool:
        """Return whether it builds the item with that name, without the paper's."""
        if name == "departures":
            return self.switches
        return not self.items or name in self.items

    def applied(self, paper: "Paper") -> "Paper":
        """Return the paper as this variant builds its items."""
        return replace(
            paper,
            experiment=self.experiment or paper.experiment,
            scale=self.scale or paper.scale,
            variants=(),
            confirms_from=CONFIRMING.start,
        )

    def item(self, build: Callable[[str], Item], profile: str) -> Item:
        """Build the item with `build`, the builder for this variant, and give it this variant's name and title."""
        item = build(profile)
        if self.is_withdrawn:
            item = replace(item, claims=tuple(claim for claim in item.claims if not claim.replaces))
        if self.is_further_setting:  # without the claims that were withdrawn before this setting had runs
            kept = [claim for claim in item.claims if not claim.withdrawn]
            item = replace(item, claims=tuple(replace(claim, replaces="") for claim in kept))
        title = f"{item.title} ({self.title})" if self.title else item.title
        notes = (*item.notes, self.note)
        paper = item.name.partition("/")[0]
        return replace(item, name=item.name + self.suffix, title=title, notes=notes, claims_of=paper + self.family)


def on_cifar10(scale: Callable[[Any, str], Scale], items: tuple[str, ...]) -> Variant:
    """Return the variant that builds these items in a reduced setting on CIFAR-10, next to the one on MNIST.

    MNIST leaves little room above the supervised baseline. The claims are those of the items without the withdrawn
    ones, and form a family of their own.
    """
    return Variant(
        suffix=ON_CIFAR10,
        note="The claims are those of the same table in its other reduced setting; here they form a family of their "
        "own, with an error rate of 5 %.",
        scale=scale,
        items=items,
        profiles=("laptop",),
        named_by="{name} has the same cells in a reduced setting on CIFAR-10, which leaves more room above the "
        "supervised baseline.",
        family=ON_CIFAR10,
    )


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: how its published lines become experiments, and the cells that the suite adds."""

    name: str
    setting: type[Any]  # a dataclass of the paper's module: the keys of a line that determine its experiment
    experiment: Callable[[Any], Experiment]  # builds a setting at the paper's scale
    variants: tuple[Variant, ...] = ()
    scale: Callable[[Any, str], Scale]  # (setting, "demo" or "laptop") -> reduced setting
    # Values of a setting that are the default in the paper, so that no label mentions them: {"E": 300}.
    usual: Callable[[Any], Mapping[str, Any]] = lambda setting: {}
    # Fills in the fields that follow from other fields, under any profile.
    settled: Callable[[Experiment], Experiment] = lambda experiment: experiment
    # (item name, its cells) -> cells that the suite adds: controls, supervised baselines, rungs of a cumulative
    # ablation.
    additions: Callable[[str, Sequence[Cell]], Iterable[Cell]] = lambda name, cells: ()
    computed: Mapping[str, Callable[[Experiment], float | str]] = field(default_factory=dict)  # columns without a run
    factors: Mapping[str, Callable[[Any, Experiment], Factor]] = field(default_factory=dict)  # in addition to `FACTORS`
    bounded: bool = False  # whether `bounds` are added to items that show accuracies
    # (paper or its variant, item) -> item, for what a paper changes in an item that is built.
    finished: Callable[["Paper", Item], Item] = lambda paper, item: item
    changes: Mapping[str, Callable[[Experiment], Experiment]] = field(default_factory=dict)  # named by its switches
    # If not listed, the paper's number.
    seeds: Mapping[str, int] = field(default_factory=lambda: {"demo": 3, "laptop": 5})
    # The first confirmatory seed of its claims; later if earlier cells were wrong.
    confirms_from: int = CONFIRMING.start

    @property
    def keys(self) -> set[str]:
        """Return the keys of a line that determine its setting."""
        return {f.name for f in fields(self.setting)}

    def notes_on_variants(self, item: str, profile: str) -> Iterator[str]:
        variants = (v for v in self.variants if v.named_by and profile in v.profiles)
        is_built = (v for v in variants if v.builds(item.partition("/")[2]))
        return (v.named_by.format(name=f"{item}{v.suffix}") for v in is_built)

    def setting_of(self, line: Line) -> Any:
        """Return the line's setting, without its value, row and notes."""
        return self.setting(**{key: value for key, value in line.items() if key in self.keys})
