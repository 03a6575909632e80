"""What the papers print: the files `results/published/PAPER/ITEM.toml`, with the claims on it.

README.md of this folder has the keys of a file. A claim that names `data` sets is one claim for each of them, where
"{data}" in its cells' labels stands for the data set. With `mean_over` data sets it is one claim on the mean over them,
and with `each_of` one that has its contrasts in each.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmark.config import from_plain, nearest
from benchmark.errors import ConfigError
from benchmark.papers.item import Claim, Drawing

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

# Keys of a file. `kind`: "table" (the default), "figure" or "settings" (rows of a table of settings, never trained).
KEYS = {
    *("paper", "item", "kind", "title", "source", "metrics", "seeds", "margin", "rows", "columns", "notes", "cells"),
    *("claims", "claims_made", "claims_commit", "figure", "computed", "measured", "printed", "cells_of", "controls"),
}
NEEDED = ("paper", "item", "title", "source", "metrics", "seeds", "rows", "columns", "notes", "cells")
OVER_DATA = ("data", "mean_over", "each_of")  # keys of a claim on several data sets

Contrast = Mapping[str, float]


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
    where = f"{file.get('paper')}/{file.get('item')}: figure"
    check_keys(where, file["figure"], {f.name for f in fields(Drawing)})
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in file["figure"].items()}
    return Drawing(**values)


def claims_of(file: Mapping[str, Any], data_names: Mapping[str, str] | None = None) -> tuple[Claim, ...]:
    """The claims, each once. `data_names`: data set of the paper -> what its cells' labels begin with.

    Where several data sets have one name (a stand-in for all), their claims are one. Raises ConfigError.
    """
    claims: dict[tuple[object, ...], Claim] = {}
    for raw in file.get("claims", ()):
        where = f"{file.get('paper')}/{file.get('item')}: claim {raw.get('name')!r}"
        for table in _over_data(raw, data_names or {}, where):
            try:
                claim = from_plain(Claim, table)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
            contrasts = (claim.contrast, *claim.contrasts)
            estimand = tuple(tuple(sorted(contrast.items())) for contrast in contrasts)
            claims.setdefault((estimand, claim.form, claim.endpoint, claim.metric), claim)
    return tuple(claims.values())


def _over_data(raw: Mapping[str, Any], data_names: Mapping[str, str], where: str) -> Iterable[dict[str, Any]]:
    """The fields of a claim, or of its claim on each data set."""
    plain = {key: value for key, value in raw.items() if key not in OVER_DATA}
    way = next((key for key in OVER_DATA if key in raw), None)
    if way is None:
        return [plain]
    contrast, contrasts = raw.get("contrast", {}), raw.get("contrasts", ())
    for data in raw[way]:
        if data not in data_names:
            raise ConfigError(f"{where}: unknown data set {data!r}; {nearest(data, data_names)}")
    names = list(dict.fromkeys(data_names[data] for data in raw[way]))
    if way == "mean_over":
        return [{**plain, "contrast": _mean(contrast, names), "contrasts": [_mean(c, names) for c in contrasts]}]
    if way == "each_of":
        return [{**plain, "contrasts": [_on(c, name) for name in names for c in contrasts]}]
    several = len(set(data_names.values())) > 1
    return [
        {
            **plain,
            "name": f"{raw['name']} ({name})" if several else raw["name"],
            "contrast": _on(contrast, name),
            "contrasts": [_on(c, name) for c in contrasts],
        }
        for name in names
    ]


def _on(contrast: Contrast, data: str) -> dict[str, float]:
    """The contrast on one data set."""
    return {label.replace("{data}", data): factor for label, factor in contrast.items()}


def _mean(contrast: Contrast, names: list[str]) -> dict[str, float]:
    """The contrast's mean over data sets."""
    return {label: factor / len(names) for name in names for label, factor in _on(contrast, name).items()}
