"""Read a TOML file of the kind "table": a published table (`results/published/PAPER/ITEM.toml`) or a custom one.

README.md of this folder describes the keys. A claim with `data` becomes one claim per data set, and
"{data}" in the labels of its cells becomes the data set. A claim with `mean_over` becomes one claim
on the mean over these data sets, and with `each_of` one claim that has its contrasts in each data
set.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

from benchmark.config import from_plain, nearest, quoted, read_as
from benchmark.errors import ConfigError
from benchmark.papers.item import ACCURACY, Claim, Drawing

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

OVER_DATA = ("data", "mean_over", "each_of")  # keys of a claim on several data sets

Line: TypeAlias = Mapping[str, Any]  # an entry of `cells`


def read_axis(raw: Any, path: str) -> tuple[str, ...] | Mapping[str, Mapping[str, Any]]:
    """Read `rows` or `columns`: a list of keys of a cell, or the fields that each named row or column sets.

    Raise ConfigError if it is neither.
    """
    if isinstance(raw, list):
        return tuple(read_as(str, key, f"{path}[{number}]") for number, key in enumerate(raw))
    if not isinstance(raw, dict) or not raw or not all(isinstance(entry, dict) for entry in raw.values()):
        raise ConfigError(
            f'{path} has the wrong form; write {path} = {{ Mine = {{ method = "my_module:MyMethod" }}, ... }}'
        )
    return raw


def read_drawing(raw: Any, path: str) -> Drawing:
    """Read how a figure is drawn. Raise ConfigError for an unknown key or kind."""
    kinds = get_args(get_type_hints(Drawing)["kind"])
    values = {"kind": "curves", **read_as(Mapping[str, Any], raw, path)}
    kind = values.pop("kind")
    if kind not in kinds:
        raise ConfigError(f"{path}.kind is {quoted(kind)}, which is unknown; {nearest(kind, kinds)}")
    return replace(from_plain(Drawing, values, path), kind=kind)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a published table in its paper, if it differs from the one of the suite's table.

    Keys of a cell name the row and the column of its values; "metric" stands for the name of a value's metric.
    """

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A file of the kind "table". Published and custom files have different keys; cells may have published values."""

    title: str = ""
    seeds: int | None = None  # published: number of runs in a published mean; custom: number of seeds to train
    metrics: tuple[str, ...] = (ACCURACY,)  # the first one ranks
    # In a published table, the keys of a cell that name its row and column; in a custom one, the fields that each
    # row sets.
    rows: Any = field(default=(), metadata={"read": read_axis})
    columns: Any = field(default=(), metadata={"read": read_axis})
    fields: Mapping[str, Any] = field(default_factory=dict)  # custom: fields of all cells, including `from`
    cells: tuple[Mapping[str, Any], ...] = ()  # published values, if there are any
    notes: tuple[str, ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()
    margin: float | None = None  # tolerance within which a reproduced accuracy equals the published one
    figure: Drawing | None = field(default=None, metadata={"read": read_drawing})
    layout: Layout | None = None
    # Only in published files:
    paper: str = ""
    item: str = ""
    source: str = ""
    printed: str = ""  # the content of the figure, if no value can be read from it
    claims_made: datetime | None = None  # when claims without their own time were written down
    claims_commit: str = ""
    controls: tuple[Mapping[str, Any], ...] = ()  # cells that the suite adds
    gains: tuple[Mapping[str, Any], ...] = ()  # published differences of two cells
    computed: tuple[str, ...] = ()  # columns without runs
    measured: bool = False  # whether exact gradient diversities are measured
    runs: int | None = None  # number of seeds under every profile
    cells_of: str = ""  # the item of the paper that has its cells
    switches: tuple[Mapping[str, Any], ...] = ()  # of departures.toml
    ways: Mapping[str, Any] = field(default_factory=dict)  # changes that several switches share, by name

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError('metrics is empty; write metrics = ["test/accuracy"]')


# Keys that a custom file cannot have. It does not need `controls`, because a row can set any field.
OF_PAPERS = (
    "paper",
    "item",
    "layout",
    "computed",
    "controls",
    "gains",
    "measured",
    "runs",
    "cells_of",
    "switches",
    "ways",
)
KEYS = {"from", *(f.name for f in fields(TableFile))}


def read_table(text: str) -> TableFile:
    """Read a published or custom file of the kind "table". Raise ConfigError or ValueError."""
    file = tomllib.loads(text)
    for key in file:
        if key not in KEYS:
            raise ConfigError(f"unknown key {key!r}; {nearest(key, KEYS)}")
    if "from" in file:
        start = read_as(str, file.pop("from"), "from")
        file["fields"] = {"from": start, **read_as(Mapping[str, Any], file.get("fields", {}), "fields")}
    table = from_plain(TableFile, file)
    if table.claims_made is None:
        return table
    dated = {"made": table.claims_made, "commit": table.claims_commit}
    # A claim with a separate time also has a separate commit.
    return replace(table, claims=tuple(claim if "made" in claim else {**claim, **dated} for claim in table.claims))


def read_published(item: str) -> TableFile:
    """Read the transcription of an item such as "ssfl/tab2". With `cells_of`, its cells are in a
    different file of the paper.

    Raise ConfigError if the file is missing or has an unknown key.
    """
    path = PUBLISHED / f"{item}.toml"
    try:
        table = read_table(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{item} has no file {path}; write the published values into it") from None
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if table.cells_of:
        table = replace(table, cells=read_published(f"{table.paper}/{table.cells_of}").cells)
    return table


def check_keys(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    """Raise ConfigError for a key of the table that is not in `known`."""
    for key in table:
        if key not in known:
            raise ConfigError(f"{where} has the unknown key {key!r}; {nearest(key, known)}")


def claims_of(tables: Iterable[Mapping[str, Any]], data_names: Mapping[str, str] | None = None) -> tuple[Claim, ...]:
    """Read the claims, each once. `data_names` maps a data set of the paper to its name in the labels of the cells.

    If one surrogate data set replaces several data sets, equal claims become one. In a custom
    table, equal claims are an error. Raise ConfigError that begins with the claim's name.
    """
    claims: dict[tuple[object, ...], Claim] = {}
    for raw in tables:
        where = f"claim {raw.get('name')!r}"
        for table in _over_data(raw, data_names or {}, where):
            try:
                claim = from_plain(Claim, table)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
            estimand = tuple(tuple(sorted(contrast.items())) for contrast in claim.contrasts)
            first = claims.setdefault((estimand, claim.form, claim.endpoint, claim.metric, claim.replaces), claim)
            if data_names is None and first is not claim:
                raise ConfigError(
                    f"{where} repeats {first.name!r}, with the same contrast and form; remove one of them"
                )
    withdrawn = {claim.name for claim in claims.values() if claim.withdrawn}
    for claim in claims.values():
        if claim.replaces and claim.replaces not in withdrawn:
            raise ConfigError(
                f"claim {claim.name!r} replaces {claim.replaces!r}, but no withdrawn claim has that name; write one "
                "that has"
            )
    return tuple(claims.values())


def _over_data(raw: Mapping[str, Any], data_names: Mapping[str, str], where: str) -> Iterable[dict[str, Any]]:
    """Return the fields of a claim, or of its claim on each data set. `contrast` is the first of its `contrasts`."""
    plain = {key: value for key, value in raw.items() if key not in (*OVER_DATA, "contrast")}
    contrasts = raw.get("contrasts", [])
    if "contrast" in raw and isinstance(contrasts, list):
        contrasts = [raw["contrast"], *contrasts]
    way = next((key for key in OVER_DATA if key in raw), None)
    if way is None:
        return [{**plain, "contrasts": contrasts}]
    if not data_names:
        raise ConfigError(f"{where} has {way}, but these cells name no data set; write whole labels in the contrast")
    for data in raw[way]:
        if data not in data_names:
            raise ConfigError(f"{where} names an unknown data set {data!r}; {nearest(data, data_names)}")
    names = list(dict.fromkeys(data_names[data] for data in raw[way]))

    def on(data: str, of: int = 1) -> list[dict[str, float]]:
        """Return the contrasts on one data set, with weights for a mean over `of` data sets."""
        on_data = []
        for contrast in contrasts:
            on_data.append({label.replace("{data}", data): w / of for label, w in contrast.items()})
        return on_data

    if way == "mean_over":
        parts = zip(*(on(name, len(names)) for name in names), strict=True)
        merged: list[dict[str, float]] = []
        for part in parts:
            contrast: dict[str, float] = {}
            for weights in part:
                contrast.update(weights)
            merged.append(contrast)
        return [{**plain, "contrasts": merged}]
    if way == "each_of":
        return [{**plain, "contrasts": [contrast for name in names for contrast in on(name)]}]
    several = len(set(data_names.values())) > 1
    tables: list[dict[str, Any]] = []
    for name in names:
        suffix = f" ({name})" if several else ""
        titles: dict[str, Any] = {key: f"{plain[key]}{suffix}" for key in ("name", "replaces") if key in plain}
        tables.append({**plain, **titles, "contrasts": on(name)})
    return tables
