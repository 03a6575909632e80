"""Build an `Item` from a file of the kind "table", published or custom.

`results/published/PAPER/ITEM.toml` contains the published values. The paper's module (`Paper`)
turns each line into an experiment and finds its reduced setting. README.md of this folder describes
the keys of the TOML file.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmark.config import from_plain, nearest, read_as
from benchmark.data.datasets import entry_of, shape_and_classes_of
from benchmark.data.partition import Partition
from benchmark.data.split import with_unknown_share
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.methods.central import Central
from benchmark.models.build import Model, build, count_parameters, forward_flops
from benchmark.papers.bounds import bounds
from benchmark.papers.item import ACCURACY, CONFIRMING, Cell, Claim, Gain, Item, ItemEntry, Printed, Publication
from benchmark.papers.published import Layout, Line, TableFile, check_keys, claims_of, read_published
from benchmark.papers.scale import PROFILES, REDUCED, Scale, changed, check_profile, scaled, tenth

Rule = Literal["paper", "released_code"]
AS_PRINTED = "-printed"  # suffix of an item's name under `--rule paper`
ON_CIFAR10 = "-cifar10"  # suffix of an item's name in its reduced setting on CIFAR-10
NEEDED = ("paper", "title", "source", "seeds", "cells")  # required keys of a published table
# Keys that any line may have besides the table's rows, columns and metrics; and further keys of a published line
# besides the settings of its paper.
LINE_KEYS = {"method", "value", "spread", "source", "quoted", "not_yet", "note"}
PRINTED_KEYS = {"label", "also_quoted", "row", "departs", "block", "mark", "measured"}
SELECTIONS = {
    "last": "Selection: the model after the last round. The test data played no part in it.",
    "best_on_test": "Selection: the best round on the test set, as in the released code. The test data chose the "
    "round.",
}
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


@cache
def _parameters(model: Model, data: str) -> int:
    return count_parameters(build(model, *shape_and_classes_of(data), seed=0))


@cache
def _flops(model: Model, data: str) -> int:
    shape, classes = shape_and_classes_of(data)
    return forward_flops(build(model, shape, classes, seed=0), shape)


def clients_of(e: Experiment, *, pooled: bool = False) -> IntArray:
    """Return the images of each class at each client, (K, d), for one draw of the partition with equal class sizes.

    With `pooled`, test images always count as part of the pool that is divided, as in the cell keys
    of the method comparison; without it, they count only if the test set is drawn from that pool.
    """
    data, K, of_set = e.data, e.federation.K, entry_of(e.data.name)
    training = of_set.train + of_set.test - data.pooled_test if data.pooled_test or pooled else of_set.train
    at_clients = K * of_set.num_classes * data.labels_per_client if data.label_setting == "every_client" else 0
    left = min(training, data.images or training) - data.N_s - data.N_validation - at_clients
    counts_Kd = _drawn(e.partition, K, of_set.num_classes, left // of_set.num_classes)
    if data.label_setting == "open":  # classes in the order known, unknown
        return with_unknown_share(counts_Kd, of_set.num_classes - len(data.unknown_classes), data.unknown_share)
    return counts_Kd


@cache
def _drawn(partition: Partition, K: int, classes: int, images_of_a_class: int) -> IntArray:
    return partition.shares(np.full(classes, images_of_a_class), K, seed=0)


# Columns that any paper can have.
COMPUTED: Mapping[str, Callable[[Experiment], float | str]] = {
    "classes a client": lambda e: round(float((clients_of(e) > 0).sum(axis=1).mean()), 2),
    "parameters": lambda e: _parameters(e.model, e.data.name),
    "MFLOP": lambda e: _flops(e.model, e.data.name) / 1e6,  # per image; a multiplication with its addition counts as 2
    "MB": lambda e: 4 * _parameters(e.model, e.data.name) / 2**20,  # of one transmitted model in float32
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


def item(paper: Paper, name: str, profile: str) -> Item:
    """Build an item of the paper under a profile. Raise ConfigError for an unknown profile or a damaged file."""
    check_profile(profile)
    full_name = f"{paper.name}/{name}"
    file = read_published(full_name)
    missing = [key for key in NEEDED if not getattr(file, key)]
    if missing:
        raise ConfigError(f"{full_name} has no {missing[0]}; a published table needs {', '.join(NEEDED)}")
    lines = [{"measured": file.measured, **line} for line in file.cells]
    try:
        check_lines(file, lines, PRINTED_KEYS | paper.keys)
        return _item(paper, file, lines, full_name, profile)
    except ConfigError as error:
        raise ConfigError(f"{full_name}: {error}") from None


def _item(paper: Paper, file: TableFile, lines: Iterable[Line], full_name: str, profile: str) -> Item:
    """Build the item from these lines. Raise ConfigError for a wrong control or claim."""
    every = [PrintedEntry(paper=paper, file=file, line=line, profile=profile) for line in lines]
    entries = [entry for entry in every if "not_yet" not in entry.line]
    # Entries that are published twice, or that a reduced setting makes equal, become one cell.
    printed: dict[str, Cell] = {}
    for entry in entries:
        if entry.label not in printed:
            printed[entry.label] = entry.cell()
    name = full_name.partition("/")[2]
    cells = (*printed.values(), *paper.additions(name, tuple(printed.values())))
    cells = (*cells, *_controls(file, tuple(printed.values())))
    on_accuracy = file.metrics[0].startswith((ACCURACY, "rounds_to/"))
    if paper.bounded and on_accuracy and not file.cells_of:  # if not, the other item has the supervised baselines
        cells = (*cells, *bounds(cells))
    data_names = {entry.line["data"]: entry.word("data") for entry in entries if "data" in entry.line}
    reduced = dict.fromkeys(entry.stand_in.title for entry in entries if entry.stand_in)
    of_paper = {entry.printed_data for entry in entries}
    what = "reduced setting" if of_paper.issuperset(reduced) else "surrogate data set"
    data_of_item = entries[0].printed_data
    return item_from(
        file,
        cells,
        claims_of(file.claims, data_names),
        name=full_name,
        title=file.title + (f" ({what}: {', '.join(reduced)})" if reduced else ""),
        profile=profile,
        shown=tuple(entry.shown(data_of_item) for entry in every if "not_yet" in entry.line),
        seeds=file.runs or paper.seeds.get(profile, file.seeds),
        notes=tuple(_notes(paper, full_name, file, entries)),
        rows=file.rows,
        columns=file.columns,
        confirms_from=paper.confirms_from,
        publication=_publication(file, every),
        gains=tuple(_gains(file, cells, data_names, entries[0].printed_data)),
    )


GAIN_KEYS = {"name", "of", "over", "data", "source"}  # of an entry of `gains`, besides the words of its metrics


def _gains(file: TableFile, cells: Iterable[Cell], data_names: Mapping[str, str], data_of_item: str) -> Iterator[Gain]:
    """Read the published differences. "{data}" in a label becomes the data set of the cells.

    Raise ConfigError for an unknown key, or for a label of no cell.
    """
    words = {metric.rpartition("/")[2]: metric for metric in file.metrics}
    labels = [cell.label for cell in cells]
    for table in file.gains:
        where = f"gain {table.get('name')!r}"
        check_keys(where, table, GAIN_KEYS | words.keys())
        data = table.get("data", "")
        pair = {key: str(table[key]).replace("{data}", data_names.get(data, data)) for key in ("of", "over")}
        for label in pair.values():
            if label not in labels:
                raise ConfigError(f"{where} names {label!r}, which is no cell; {nearest(label, labels)}")
        published = {
            metric: read_as(float, table[word], f"{where}.{word}") for word, metric in words.items() if word in table
        }
        name = table["name"].replace("{data}", data_names.get(data, data))
        on = WORDS.get(data, data) if data else data_of_item
        yield Gain(name=name, **pair, published=published, data=on, source=table["source"])


def _publication(file: TableFile, lines: Sequence["PrintedEntry"]) -> Publication:
    """Collect the published values, with the layout of their file, or of the suite's table if it has none."""
    layout = file.layout or Layout(rows=file.rows, columns=file.columns)
    rows, columns = layout.rows, layout.columns
    if len(file.metrics) > 1 and "metric" not in (*rows, *columns):
        columns = (*columns, "metric")
    own_data = next(line.printed_data for line in lines if "not_yet" not in line.line)
    surrogates = dict.fromkeys(line.stand_in.title for line in lines if "not_yet" not in line.line and line.stand_in)
    networks = dict.fromkeys(line.published_network for line in lines if "not_yet" not in line.line)
    return Publication(
        title=file.title,
        source=file.source.partition(";")[0],
        entries=() if file.printed else tuple(line.as_published((*rows, *columns), own_data) for line in lines),
        rows=rows,
        columns=columns,
        unread=file.printed,
        networks=tuple(networks),
        surrogates=tuple(surrogates),
    )


def item_from(file: TableFile, cells: Sequence[Cell], claims: tuple[Claim, ...], **more: Any) -> Item:
    """Build the item of a file from these cells and claims. Raise ConfigError if a claim names a label of no cell."""
    labels = [cell.label for cell in cells]
    for claim in claims:
        for label in claim.labels:
            if label not in labels:
                raise ConfigError(f"claim {claim.name!r} names {label!r}, which is no cell; {nearest(label, labels)}")
    return Item(
        cells=tuple(cells), claims=claims, metrics=file.metrics, drawing=file.figure, margin=file.margin, **more
    )


def items(paper: Paper, names: Iterable[str]) -> dict[str, Callable[..., Item]]:
    """Return a builder for each of these files, by item name."""
    return {name: partial(item, paper, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Control:
    """Cells that the suite adds: copies of the cells with a certain setting, with some fields of
    the experiment changed.
    """

    of: Mapping[str, Any]  # setting of the copied cells; a list allows any of its values
    fields: Mapping[str, Any]  # by dotted name: {"data.labelled_clients": 10}
    method: str = "{method}"  # its name; "{method}" becomes the cell's method
    label: str = ""  # "{label}" becomes the cell's label; if empty, the cell's label with this method
    setting: Mapping[str, Any] = field(default_factory=dict)  # values that are added to the setting
    role: Literal["control", "bound"] = "control"
    note: str

    def is_of(self, cell: Cell) -> bool:
        return all(cell.setting.get(key) in (v if isinstance(v, list) else [v]) for key, v in self.of.items())

    def beside(self, cell: Cell) -> Cell:
        experiment = changed(cell.experiment, self.fields)
        method, label = self.method.format(**cell.setting), self.label.format(label=cell.label)
        control = cell.companion(method, experiment, label=label, note=self.note, role=self.role)
        return replace(control, setting={**control.setting, **self.setting})


@dataclass(frozen=True, kw_only=True)
class PrintedEntry:
    """A published line under one profile."""

    paper: Paper
    file: TableFile
    line: Line
    profile: str

    @cached_property
    def stand_in(self) -> Scale | None:
        return self.paper.scale(self.paper.setting_of(self.line), self.profile) if self.profile in REDUCED else None

    @cached_property
    def experiment(self) -> Experiment:
        full = self._as_published
        if self.stand_in:
            full = scaled(full, self.stand_in, self.profile)
        return self.paper.settled(tenth(full) if self.profile == "gpu" else replace(full, profile=self.profile))

    @cached_property
    def printed_factors(self) -> dict[str, Any]:
        """Return the published values of its rows and columns, without the method and values that
        are the paper's default.
        """
        usual = self.paper.usual(self.paper.setting_of(self.line))
        return {key: self.line[key] for key in self.keys if key != "method" and self.line[key] != usual.get(key)}

    @property
    def keys(self) -> list[str]:
        """Return the keys that name its row and column."""
        return [key for key in (*self.file.rows, *self.file.columns) if key in self.line]

    @cached_property
    def factors(self) -> dict[str, Factor]:
        """Return the values that run under this profile, by the papers' letters."""
        setting = self.paper.setting_of(self.line)
        own = {key: read(setting, self.experiment) for key, read in self.paper.factors.items()}
        return {key: read(self.experiment) for key, read in FACTORS.items()} | own

    def word(self, key: str) -> Any:
        """Return a value of the line as readers see it; for the data, the title of the surrogate
        data set if there is one.
        """
        return self.stand_in.title if key == "data" and self.stand_in else WORDS.get(self.line[key], self.line[key])

    @cached_property
    def label(self) -> str:
        """Return the words, method and numbers as published, "SVHN/Grouping/K=30/C=10"; or the line's own label."""
        if "label" in self.line:
            return str(self.line["label"]).replace("{data}", self.word("data") if "data" in self.line else "")
        words = [self.word(key) for key, value in self.printed_factors.items() if isinstance(value, str)]
        numbers = [f"{key}={value:g}" for key, value in self.printed_factors.items() if not isinstance(value, str)]
        return "/".join([*words, self.line["method"], *numbers])

    def cell(self) -> Cell:
        computed = {**COMPUTED, **self.paper.computed}
        setting = {key: self.factors.get(key, self.word(key)) for key in self.printed_factors}
        role: Literal["published", "quoted", "partition"] = "quoted" if self.line.get("also_quoted") else "published"
        if self.file.figure is not None and self.file.figure.kind == "class_counts":
            role = "partition"
        return Cell(
            label=self.label,
            setting={"method": self.line["method"], **setting},
            experiment=self.experiment,
            published=printed_of(self.file, self.line, self.file.seeds or 1),
            printed_at=self.printed_at,
            computed={name: computed[name](self.experiment) for name in self.file.computed},
            role=role,
            note=note_of(self.line),
        )

    def shown(self, data_of_item: str) -> ItemEntry:
        """Return the line as an entry that is not trained.

        `data_of_item` is the data set of a line that does not name one.
        """
        words: dict[str, Any] = {key: WORDS.get(self.line[key], self.line[key]) for key in ("method", *self.keys)}
        label = str(self.line.get("label", "/".join(str(self.line[key]) for key in self.keys)))
        data = str(self.line.get("data") or getattr(self.paper.setting, "data", ""))
        label = label.replace("{data}", str(WORDS.get(data, data)))
        printed_at = {"data": WORDS.get(data, data) if data else data_of_item}
        published = printed_of(self.file, self.line, self.file.seeds or 1)
        return ItemEntry(
            label=label, setting=words, published=published, printed_at=printed_at, note=self.line["not_yet"]
        )

    def as_published(self, keys: Iterable[str], data_of_item: str) -> ItemEntry:
        """Return the entry of this line with the paper's own names and published values.

        `keys` name its row and its column; `data_of_item` is the data set of a line that names none.
        """
        words: dict[str, Any] = {}
        for key in dict.fromkeys(("method", *keys)):
            if key in self.line:
                words[key] = WORDS.get(self.line[key], self.line[key])
        data = WORDS.get(self.line["data"], self.line["data"]) if "data" in self.line else data_of_item
        return ItemEntry(
            label="/".join(str(value) for value in words.values()),
            setting=words,
            published=printed_of(self.file, self.line, self.file.seeds or 1),
            printed_at={"data": data},
            note=note_of(self.line),
        )

    @property
    def published_network(self) -> str:
        """Return the name of the published run's network."""
        return self._as_published.model.network

    @property
    def printed_data(self) -> str:
        """Return the name of the line's data set in the paper."""
        name = self.line.get("data", self._as_published.data.name)
        return WORDS.get(name, name)

    @cached_property
    def _as_published(self) -> Experiment:
        return self.paper.experiment(self.paper.setting_of(self.line))

    @property
    def printed_at(self) -> dict[str, Factor]:
        """Return the data set of the published numbers, and each setting of the line that differs from the run.

        A size that the line does not give is the size of the published experiment.
        """
        runs, full = self.factors, self._as_published
        # One participant owns all images, so that K, C and T mean nothing.
        central = isinstance(self.experiment.method, Central)
        sizes = () if central else ("K", "C")
        printed: dict[str, Any] = {size: FACTORS[size](full) for size in sizes}
        if self.experiment.data.label_setting == "server":
            printed["N_s"] = full.data.N_s
        always = ("N_s",) if central else ("T", "N_s", "K", "C")
        keys = [key for key in dict.fromkeys((*always, *self.printed_factors)) if key in self.line]
        printed |= {key: self.line[key] for key in keys if key != "data"}
        differing = {key: value for key, value in printed.items() if key in runs and runs[key] != value}
        words = {key: WORDS.get(value, value) if isinstance(value, str) else value for key, value in differing.items()}
        return {"data": self.printed_data, **words}


def note_of(line: Line) -> str:
    """Return the caveats of a line for readers."""
    quoted = f"the paper cites its number from {line['source']}" if line.get("quoted") else ""
    return "; ".join(filter(None, (line.get("note", ""), quoted)))


def _controls(file: TableFile, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Build the file's controls, without copies that equal their cell, for example because a
    reduced setting has these fields.
    """
    for number, table in enumerate(file.controls):
        where = f"controls[{number}]"
        control = from_plain(Control, table, where)
        of = [cell for cell in cells if control.is_of(cell)]
        if not of:
            raise ConfigError(
                f"{where}.of is {table['of']}, but no cell has this setting; write the values of a row and column"
            )
        beside = [(cell, control.beside(cell)) for cell in of]
        yield from (added for cell, added in beside if added.experiment != cell.experiment)


def printed_of(file: TableFile, line: Line, runs: int) -> dict[str, Printed]:
    """Read the published numbers of a line by metric, each a mean of `runs` runs.

    `value` and `spread` belong to the first metric. Each metric can also be given by the last word
    of its name ("auroc = 94.2"). Raise ConfigError if a value is not a number.
    """
    first = file.metrics[0]
    words = {metric: metric.rpartition("/")[2] for metric in file.metrics}
    values = {metric: line[word] for metric, word in words.items() if word in line}
    if "value" in line:
        values = {first: line["value"], **values}
    spread = {first: line.get("spread")}
    for key, value in (*values.items(), ("spread", line.get("spread", 0.0))):
        read_as(float, value, f"a cell: {key}")
    return {metric: Printed(value=v, spread=spread.get(metric), runs=runs) for metric, v in values.items()}


def _notes(paper: Paper, name: str, file: TableFile, entries: Sequence[PrintedEntry]) -> Iterator[str]:
    """Return the notes below the item, each once."""
    stand_ins = [entry.stand_in for entry in entries if entry.stand_in]
    if stand_ins:
        yield from dict.fromkeys(note for stand_in in stand_ins for note in stand_in.notes)
    else:
        yield from file.notes
    yield from dict.fromkeys(SELECTIONS[entry.experiment.evaluation.selection] for entry in entries)
    yield from paper.notes_on_variants(name, entries[0].profile)


def check_lines(file: TableFile, lines: Iterable[Line], more: Iterable[str]) -> None:
    """Raise ConfigError for a key that no line may have. `more` lists further keys that the lines
    of this file may have.
    """
    words = {metric.rpartition("/")[2] for metric in file.metrics}
    known = {*LINE_KEYS, *more, *words, *file.rows, *file.columns}
    for line in lines:
        check_keys("a cell", line, known)
        for key in ("note", "not_yet", "source"):
            read_as(str, line.get(key, ""), f"a cell: {key}")
        if line.get("quoted") and not line.get("source"):
            raise ConfigError('a cell with quoted = true has no source; write source = "..."')
