"""What the papers print: the files `results/published/PAPER/ITEM.toml`, with the claims on it.

README.md of this folder has the keys of a file. A claim that names `data` sets is one claim for each of them, where
"{data}" in its cells' labels stands for the data set. With `mean_over` data sets it is one claim on the mean over them,
and with `each_of` one that has its contrasts in each.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from benchmark.config import from_plain, nearest, quoted
from benchmark.errors import ConfigError
from benchmark.papers.item import Claim, Drawing

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

# Keys of a file. `kind`: "table" (the default), "figure" or "settings" (rows of a table of settings, never trained).
KEYS = {
    *("paper", "item", "kind", "title", "source", "metrics", "seeds", "margin", "rows", "columns", "notes", "cells"),
    *("claims", "claims_made", "claims_commit", "figure", "computed", "measured", "printed", "cells_of", "controls"),
    "runs",
}
NEEDED = ("paper", "item", "title", "source", "metrics", "seeds", "rows", "columns", "notes", "cells")
OVER_DATA = ("data", "mean_over", "each_of")  # keys of a claim on several data sets


def read_published(item: str) -> dict[str, Any]:
    """The transcription of an item such as "ssfl/tab2". `cells_of`: its cells are those of another file of the paper.

    Raises ConfigError where there is none, or a key is missing or unknown.
    """
    path = PUBLISHED / f"{item}.toml"
    try:
        file = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{item}: {path} is missing; it holds what the paper prints") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    check_keys(f"{path}", file, KEYS)
    if "cells_of" in file:
        file["cells"] = read_published(f"{file['paper']}/{file['cells_of']}")["cells"]
    missing = [key for key in NEEDED if key not in file]
    if missing and file.get("kind") != "settings":
        raise ConfigError(f"{path}: {missing[0]} is missing; a table has {', '.join(NEEDED)}")
    for claim in file.get("claims", ()):
        if "made" not in claim and "claims_made" in file:  # a claim with a time of its own has its own commit, too
            claim |= {"made": file["claims_made"], "commit": file.get("claims_commit", "")}
    return file


def check_keys(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    """Raises ConfigError for a key of the table that is not known."""
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(key, known)}")


def drawing_of(file: Mapping[str, Any]) -> Drawing | None:
    """How a figure is drawn; None for a table."""
    if "figure" not in file:
        return None
    where, kinds = f"{file.get('paper')}/{file.get('item')}.figure", get_args(get_type_hints(Drawing)["kind"])
    values = {"kind": "curves", **file["figure"]}
    if (kind := values.pop("kind")) not in kinds:
        raise ConfigError(f"{where}.kind: {quoted(kind)}; {nearest(kind, kinds)}")
    return replace(from_plain(Drawing, values, where), kind=kind)


def claims_of(file: Mapping[str, Any], data_names: Mapping[str, str] | None = None) -> tuple[Claim, ...]:
    """The claims, each once. `data_names`: data set of the paper -> what its cells' labels begin with.

    Where several data sets have one name (a stand-in for all), equal claims are one; of one's own they are refused.
    """
    claims: dict[tuple[object, ...], Claim] = {}
    for raw in file.get("claims", ()):
        where = f"{file.get('paper')}/{file.get('item')}: claim {raw.get('name')!r}"
        for table in _over_data(raw, data_names or {}, where):
            try:
                claim = from_plain(Claim, table)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
            estimand = tuple(tuple(sorted(contrast.items())) for contrast in claim.contrasts)
            first = claims.setdefault((estimand, claim.form, claim.endpoint, claim.metric, claim.replaces), claim)
            if data_names is None and first is not claim:
                raise ConfigError(f"{where}: is {first.name!r} again, with one contrast and form; remove one of them")
    withdrawn = {claim.name for claim in claims.values() if claim.withdrawn}
    for claim in claims.values():
        if claim.replaces and claim.replaces not in withdrawn:
            where = f"{file.get('paper')}/{file.get('item')}: claim {claim.name!r}"
            raise ConfigError(
                f"{where} replaces {claim.replaces!r}, but no withdrawn claim has that name; write one that has"
            )
    return tuple(claims.values())


def _over_data(raw: Mapping[str, Any], data_names: Mapping[str, str], where: str) -> Iterable[dict[str, Any]]:
    """The fields of a claim, or of its claim on each data set. A `contrast` is the first of its `contrasts`."""
    plain = {key: value for key, value in raw.items() if key not in (*OVER_DATA, "contrast")}
    contrasts = raw.get("contrasts", [])
    if "contrast" in raw and isinstance(contrasts, list):
        contrasts = [raw["contrast"], *contrasts]
    way = next((key for key in OVER_DATA if key in raw), None)
    if way is None:
        return [{**plain, "contrasts": contrasts}]
    if not data_names:
        raise ConfigError(f"{where}: {way}: these cells name no data set; write whole labels in the contrast")
    for data in raw[way]:
        if data not in data_names:
            raise ConfigError(f"{where}: unknown data set {data!r}; {nearest(data, data_names)}")
    names = list(dict.fromkeys(data_names[data] for data in raw[way]))

    def on(data: str, of: int = 1) -> list[dict[str, float]]:
        """Write the contrasts on one data set, as parts of a mean over so many."""
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
