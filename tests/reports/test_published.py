"""Published numbers appear under their own setting: what the tables say of each is compared with the transcriptions."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from benchmark.cli.main import ROOT
from benchmark.methods.central import Central
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS, item_of, profiles
from benchmark.papers.scale import PROFILES
from reports.exports import item_result
from reports.item_results import ItemResults
from reports.paper_table import item_tables
from reports.published_table import published_table, unread_text
from reports.tables import files_of

WORDS = tomllib.loads((ROOT / "benchmark" / "papers" / "words.toml").read_text())
DATA = ("CIFAR-100", "CIFAR-10", "SVHN", "CINIC-10", "EMNIST", "STL-10", "ISIC 2018", "Fashion-MNIST")
NAMED_SURROGATES = re.compile(r"8x8 digits|HAM10000|\bMNIST")
BUILDERS = {**ITEMS, **VARIANTS}


@cache
def transcribed(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the lines of the item's file."""
    paper, _, item = name.partition("/")
    file = tomllib.loads((ROOT / "results" / "published" / paper / f"{item}.toml").read_text())
    return transcribed(f"{paper}/{file['cells_of']}") if "cells_of" in file else tuple(file["cells"])


def file_of(item: Item) -> str:
    """Return the name of the item's file; a variant has the file of the item that it builds differently."""
    path = ROOT / "results" / "published" / f"{item.name}.toml"
    return item.name if path.is_file() else item.name.rpartition("-")[0]


def data_of(line: Mapping[str, Any], name: str) -> set[str]:
    """Return the data set that the line names; for a line without one, the data sets at profile `paper`."""
    if "data" in line:
        return {WORDS[line["data"]]}
    cells = item_of(BUILDERS[name], "paper").cells
    return {WORDS[cell.experiment.data.name] for cell in cells if cell.published}


def numbers(line: Mapping[str, Any]) -> set[float]:
    return {value for value in line.values() if isinstance(value, int | float)}


PUBLISHED = [
    (name, profile)
    for name in BUILDERS
    if not name.startswith("arena/") and "/departures" not in name
    for profile in PROFILES[:-1]
    if profile in profiles(name)
]


@pytest.mark.parametrize(("name", "profile"), PUBLISHED)
def test_published_numbers_have_the_setting_of_their_own_line(name: str, profile: str) -> None:
    """In JSON and CSV: the data set, and each setting in which the line differs from the cell beside it."""
    item = item_of(BUILDERS[name], profile)
    lines = transcribed(file_of(item))
    for cell in item_result(item, {})["cells"]:
        if cell["published"] is None:
            continue
        said = cell["published_setting"]
        method = cell["setting"]["method"]
        own = [line for line in lines if line["method"] == method and cell["published"] in numbers(line)]
        told = {key: value for key, value in (cell["setting"] | said).items() if key not in ("data", "method")}
        matching = []
        for line in own:
            settings = {key: WORDS.get(str(line[key]), line[key]) for key in told if key in line}
            if said["data"] in data_of(line, file_of(item)) and settings.items() <= told.items():
                matching.append(line)
        assert matching, (cell["label"], cell["published"], said)
        experiment = item.cell(cell["label"]).experiment
        sizes = {"K": experiment.federation.K, "C": experiment.federation.C, "N_s": experiment.data.N_s}
        central = isinstance(experiment.method, Central) or cell["setting"].get("N_s") == "all"
        for key in sizes if not central else ():
            assert any(line.get(key, sizes[key]) in (sizes[key], said.get(key)) for line in matching), (key, cell)


def values_of(line: Mapping[str, Any], metrics: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield each published value of a line with its metric: `value` is of the first."""
    for place, metric in enumerate(metrics):
        key = metric.rpartition("/")[2]
        if key in line:
            yield metric, line[key]
        elif place == 0 and "value" in line:
            yield metric, line["value"]


FILES = [name for name in ITEMS if not name.startswith("arena/") and "/departures" not in name]


@pytest.mark.parametrize("name", FILES)
def test_every_published_value_is_in_the_published_table_under_its_own_names(name: str) -> None:
    """Each value of the file once, in a row or column with its method, data set and other settings.

    The same table is on the page, in Markdown and in LaTeX, whatever runs: it is that of the cheapest profile here.
    """
    paper, _, own = name.partition("/")
    file = tomllib.loads((ROOT / "results" / "published" / paper / f"{own}.toml").read_text())
    profile = profiles(name)[0]
    item = item_of(ITEMS[name], profile)
    table = published_table(item)
    if "printed" in file:  # a figure, of which no value can be read
        assert table is None and file["printed"] in unread_text(item)
        return
    expected: Counter[tuple[str, ...]] = Counter()
    layout = file.get("layout", {"rows": file["rows"], "columns": file["columns"]})
    keys = [key for key in (*layout["rows"], *layout["columns"]) if key != "metric"]
    for line in file["cells"]:
        own_words = {key: WORDS.get(str(line[key]), line[key]) for key in keys if key in line}
        words = [str(v) if isinstance(v, str) else f"{k} = {v}" for k, v in own_words.items()]
        for _, published in values_of(line, file["metrics"]):
            expected[(*sorted(words), f"{published:g}")] += 1
    assert table is not None
    found: Counter[tuple[str, ...]] = Counter()
    for row in table.rows:
        for column, entry in zip(table.columns[1:], row.entries[1:], strict=True):
            if entry.sort is not None:
                place = ", ".join((row.entries[0].text, column.group, column.name))
                found[place, f"{entry.sort:g}"] += 1
    assert found.total() == expected.total()
    remaining = found.copy()
    for (*words, value), number in expected.items():
        shown = 0
        for (place, text), times in remaining.items():
            if text == value and all(word in place for word in words):
                shown += times
        assert shown >= number, (words, value)
    data = {word for line in file["cells"] for word in data_of(line, name)}
    texts = {kind: content.decode() for kind, content in files_of("t", [table]).items()}
    assert all(word in texts["t.md"].replace("\\", "") and word in texts["t.tex"] for word in data)
    assert not NAMED_SURROGATES.search(texts["t.md"] + texts["t.tex"]) or data & {"Fashion-MNIST"}


@pytest.mark.parametrize(("name", "profile"), PUBLISHED)
def test_no_published_number_is_among_those_of_a_surrogate(name: str, profile: str) -> None:
    """In the table of our runs nothing is published; in the CSV the published rows name the paper's own data sets."""
    item = item_of(BUILDERS[name], profile)
    tables = item_tables(ItemResults(item, {}))
    shown = [entry for table in tables for row in table.rows for entry in row.entries[1:]]
    computed = sum(len(cell.computed) for cell in item.cells)
    assert sum(entry.sort is not None and entry.sort >= 0 for entry in shown) <= computed
    rows = list(tables[0].data) if tables else []
    of_paper = [row for row in rows if row["role"] == "as published"]
    assert all(row["data"] in DATA and row["published"] is not None for row in of_paper)
    assert all(row["published"] is None for row in rows if row["role"] not in ("as published",))
