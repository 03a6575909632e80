"""Read a published line: its values, and its experiment, cell and entry under a profile."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from benchmark.config import read_as
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.methods.central import Central
from benchmark.papers.computed import COMPUTED
from benchmark.papers.item import Cell, ItemEntry, PublishedValue
from benchmark.papers.paper import FACTORS, WORDS, Factor, Paper
from benchmark.papers.published import Line, TableFile, check_keys
from benchmark.papers.scale import REDUCED, Scale, scaled, tenth

# Keys that any line may have besides the table's rows, columns and metrics; and further keys of a published line
# besides the settings of its paper.
LINE_KEYS = {"method", "value", "spread", "source", "quoted", "not_yet", "note"}
PUBLISHED_KEYS = {"label", "also_quoted", "row", "departs", "block", "mark", "measured"}


@dataclass(frozen=True, kw_only=True)
class PublishedLine:
    """A published line under one profile."""

    paper: Paper
    file: TableFile
    line: Line
    profile: str

    @cached_property
    def reduced(self) -> Scale | None:
        return self.paper.scale(self.paper.setting_of(self.line), self.profile) if self.profile in REDUCED else None

    @cached_property
    def experiment(self) -> Experiment:
        full = self._as_published
        if self.reduced:
            full = scaled(full, self.reduced, self.profile)
        return self.paper.settled(tenth(full) if self.profile == "gpu" else replace(full, profile=self.profile))

    @cached_property
    def published_factors(self) -> dict[str, Any]:
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
        return self.reduced.title if key == "data" and self.reduced else WORDS.get(self.line[key], self.line[key])

    @cached_property
    def label(self) -> str:
        """Return the words, method and numbers as published, "SVHN/Grouping/K=30/C=10"; or the line's own label."""
        if "label" in self.line:
            return str(self.line["label"]).replace("{data}", self.word("data") if "data" in self.line else "")
        words = [self.word(key) for key, value in self.published_factors.items() if isinstance(value, str)]
        numbers = [f"{key}={value:g}" for key, value in self.published_factors.items() if not isinstance(value, str)]
        return "/".join([*words, self.line["method"], *numbers])

    def cell(self) -> Cell:
        computed = {**COMPUTED, **self.paper.computed}
        setting = {key: self.factors.get(key, self.word(key)) for key in self.published_factors}
        role: Literal["published", "quoted", "partition"] = "quoted" if self.line.get("also_quoted") else "published"
        if self.file.figure is not None and self.file.figure.kind == "class_counts":
            role = "partition"
        return Cell(
            label=self.label,
            setting={"method": self.line["method"], **setting},
            experiment=self.experiment,
            published=published_numbers(self.file, self.line, self.file.seeds or 1),
            published_setting=self.published_setting,
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
        published_setting = {"data": WORDS.get(data, data) if data else data_of_item}
        published = published_numbers(self.file, self.line, self.file.seeds or 1)
        return ItemEntry(
            label=label,
            setting=words,
            published=published,
            published_setting=published_setting,
            note=self.line["not_yet"],
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
            published=published_numbers(self.file, self.line, self.file.seeds or 1),
            published_setting={"data": data},
            note=note_of(self.line),
        )

    @property
    def published_network(self) -> str:
        """Return the name of the published run's network."""
        return self._as_published.model.network

    @property
    def published_data(self) -> str:
        """Return the name of the line's data set in the paper."""
        name = self.line.get("data", self._as_published.data.name)
        return WORDS.get(name, name)

    @cached_property
    def _as_published(self) -> Experiment:
        return self.paper.experiment(self.paper.setting_of(self.line))

    @property
    def published_setting(self) -> dict[str, Factor]:
        """Return the data set of the published numbers, and each setting of the line that differs from the run.

        A size that the line does not give is the size of the published experiment.
        """
        runs = self.factors
        full = self._as_published
        # One participant owns all images, so that K, C and T mean nothing.
        central = isinstance(self.experiment.method, Central)
        sizes = () if central else ("K", "C")
        published: dict[str, Any] = {size: FACTORS[size](full) for size in sizes}
        if self.experiment.data.label_setting == "server":
            published["N_s"] = full.data.N_s
        always = ("N_s",) if central else ("T", "N_s", "K", "C")
        keys = [key for key in dict.fromkeys((*always, *self.published_factors)) if key in self.line]
        published |= {key: self.line[key] for key in keys if key != "data"}
        differing = {key: value for key, value in published.items() if key in runs and runs[key] != value}
        words = {key: WORDS.get(value, value) if isinstance(value, str) else value for key, value in differing.items()}
        return {"data": self.published_data, **words}


def note_of(line: Line) -> str:
    """Return the caveats of a line for readers."""
    quoted = f"the paper cites its number from {line['source']}" if line.get("quoted") else ""
    return "; ".join(filter(None, (line.get("note", ""), quoted)))


def published_numbers(file: TableFile, line: Line, runs: int) -> dict[str, PublishedValue]:
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
    return {metric: PublishedValue(value=v, spread=spread.get(metric), runs=runs) for metric, v in values.items()}


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
