"""Build an `Item` from a file of the kind "table", published or custom.

`results/published/PAPER/ITEM.toml` contains the published values. The paper's module (`Paper`)
turns each line into an experiment and finds its reduced setting. README.md of this folder describes
the keys of the TOML file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

from benchmark.config import from_plain, nearest, read_as
from benchmark.errors import ConfigError
from benchmark.papers.bounds import bounds
from benchmark.papers.item import ACCURACY, Cell, Claim, Gain, Item, Publication
from benchmark.papers.paper import WORDS, Paper
from benchmark.papers.published import Layout, Line, TableFile, check_keys, claims_of, read_published
from benchmark.papers.published_line import PUBLISHED_KEYS, PublishedLine, check_lines
from benchmark.papers.scale import changed, check_profile

NEEDED = ("paper", "title", "source", "seeds", "cells")  # required keys of a published table
SELECTIONS = {
    "last": "Selection: the model after the last round. The test data played no part in it.",
    "best_on_test": "Selection: the best round on the test set, as in the released code. The test data chose the "
    "round.",
}


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
        check_lines(file, lines, PUBLISHED_KEYS | paper.keys)
        return paper.finished(paper, _item(paper, file, lines, full_name, profile))
    except ConfigError as error:
        raise ConfigError(f"{full_name}: {error}") from None


def _item(paper: Paper, file: TableFile, lines: Iterable[Line], full_name: str, profile: str) -> Item:
    """Build the item from these lines. Raise ConfigError for a wrong control or claim."""
    every = [PublishedLine(paper=paper, file=file, line=line, profile=profile) for line in lines]
    entries = [entry for entry in every if "not_yet" not in entry.line]
    # Entries that are published twice, or that a reduced setting makes equal, become one cell.
    published: dict[str, Cell] = {}
    for entry in entries:
        if entry.label not in published:
            published[entry.label] = entry.cell()
    name = full_name.partition("/")[2]
    cells = (*published.values(), *paper.additions(name, tuple(published.values())))
    cells = (*cells, *_controls(file, tuple(published.values())))
    on_accuracy = file.metrics[0].startswith((ACCURACY, "rounds_to/"))
    if paper.bounded and on_accuracy and not file.cells_of:  # if not, the other item has the supervised baselines
        cells = (*cells, *bounds(cells))
    data_names = {entry.line["data"]: entry.word("data") for entry in entries if "data" in entry.line}
    reduced = dict.fromkeys(entry.reduced.title for entry in entries if entry.reduced)
    of_paper = {entry.published_data for entry in entries}
    what = "reduced setting" if of_paper.issuperset(reduced) else "surrogate data set"
    data_of_item = entries[0].published_data
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
        gains=tuple(_gains(file, cells, data_names, entries[0].published_data)),
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


def _publication(file: TableFile, lines: Sequence[PublishedLine]) -> Publication:
    """Collect the published values, with the layout of their file, or of the suite's table if it has none."""
    layout = file.layout or Layout(rows=file.rows, columns=file.columns)
    rows, columns = layout.rows, layout.columns
    if len(file.metrics) > 1 and "metric" not in (*rows, *columns):
        columns = (*columns, "metric")
    own_data = next(line.published_data for line in lines if "not_yet" not in line.line)
    surrogates = dict.fromkeys(line.reduced.title for line in lines if "not_yet" not in line.line and line.reduced)
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


def _notes(paper: Paper, name: str, file: TableFile, entries: Sequence[PublishedLine]) -> Iterator[str]:
    """Return the notes below the item, each once."""
    scales = [entry.reduced for entry in entries if entry.reduced]
    if scales:
        notes = chain.from_iterable(scale.notes for scale in scales)
        yield from dict.fromkeys(notes)
    else:
        yield from file.notes
    yield from dict.fromkeys(SELECTIONS[entry.experiment.evaluation.selection] for entry in entries)
    yield from paper.notes_on_variants(name, entries[0].profile)
