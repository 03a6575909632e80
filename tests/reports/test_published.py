"""Published numbers stand under their own setting: what the tables say of each is held against the transcriptions."""

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from benchmark.cli.main import ROOT
from benchmark.methods.central import Central
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS, item_of, profiles
from benchmark.papers.scale import PROFILES
from reports.exports import item_result
from reports.paper_table import item_tables
from reports.reported import Reported
from reports.tables import files_of

WORDS = tomllib.loads((ROOT / "benchmark" / "papers" / "words.toml").read_text())
DATA = ("CIFAR-100", "CIFAR-10", "SVHN", "CINIC-10", "EMNIST", "STL-10", "ISIC 2018", "Fashion-MNIST")
SURROGATES = ("8x8 digits", "digits", "HAM10000", "MNIST")
NAMED = re.compile("|".join(map(re.escape, (*DATA, *SURROGATES))))
BUILDERS = {**ITEMS, **VARIANTS}


@cache
def transcribed(name: str) -> tuple[Mapping[str, Any], ...]:
    """The lines of the item's file."""
    paper, _, item = name.partition("/")
    file = tomllib.loads((ROOT / "results" / "published" / paper / f"{item}.toml").read_text())
    return transcribed(f"{paper}/{file['cells_of']}") if "cells_of" in file else tuple(file["cells"])


def file_of(item: Item) -> str:
    """The name of the item's file: a variant has that of the item that it builds otherwise."""
    path = ROOT / "results" / "published" / f"{item.name}.toml"
    return item.name if path.is_file() else item.name.rpartition("-")[0]


def data_of(line: Mapping[str, Any], name: str) -> set[str]:
    """The data set that the line names; of a line without one, those that run at profile `paper`."""
    if "data" in line:
        return {WORDS[line["data"]]}
    cells = item_of(BUILDERS[name], "paper").cells
    return {WORDS[cell.experiment.data.name] for cell in cells if cell.published}


def numbers(line: Mapping[str, Any]) -> set[float]:
    return {value for value in line.values() if isinstance(value, int | float)}


def written(line: Mapping[str, Any]) -> set[str]:
    """Write the line's numbers with two digits after the point."""
    return {f"{value:.2f}" for value in numbers(line)}


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
    tables = item_tables(Reported(item, {}))
    for row in tables[0].data if tables else ():
        if row["published"] is not None:
            assert any(str(row["published_setting"]).startswith(word) for word in DATA), row


@pytest.mark.parametrize(("name", "profile"), PUBLISHED)
def test_the_data_set_beside_a_published_number_is_its_own(name: str, profile: str) -> None:
    """As Markdown and LaTeX: in the number's own entry, its column's head, or the words in front of it; else the row's
    name, else the title."""
    item = item_of(BUILDERS[name], profile)
    lines = transcribed(file_of(item))
    files = files_of("table", item_tables(Reported(item, {}), widest=100))
    text = files["table.md"].decode().replace("\\", "")
    for block in text.split("\n\n"):
        rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
        if len(rows) < 2:
            continue
        heads, _, *body = rows
        settings = [place for place, head in enumerate(heads) if head.startswith("setting, ")]
        for place, head in enumerate(heads):
            if not head.endswith("ublished") or place in settings:
                continue
            for row in body:
                match = re.match(r"[\d,.]+", row[place])
                if not match or not re.fullmatch(r"[\d.]+", match[0]):
                    continue
                beside = " ".join([row[place], head, *(row[own] for own in settings)])
                named = NAMED.findall(beside) or NAMED.findall(row[0]) or NAMED.findall(item.title)[:1]
                own_lines = [line for line in lines if match[0] in written(line)]
                own_lines = own_lines or [line for line in lines if float(match[0]) in numbers(line)]
                expected = {data for line in own_lines for data in data_of(line, file_of(item))}
                if not named:  # no page names it, where it is what runs
                    named = [WORDS[cell.experiment.data.name] for cell in item.cells]
                assert len(set(named)) == 1 and set(named) <= expected, (row[0], head, row[place], named, expected)
    latex = files["table.tex"].decode()
    for word in {word for word in DATA if re.search(rf"\b{word}\b", json.dumps(text))}:
        assert word in latex
