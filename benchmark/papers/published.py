"""What the papers print: the files `results/published/PAPER/ITEM.toml`, and the claims fixed beside it.

README.md of this folder has the keys of a file. A claim that names `data` sets is one claim for each of them, "{data}"
in its cells' labels standing for the data set; with `mean_over` data sets it is one claim on the mean over them, and
with `each_of` one that has its contrasts in each.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.papers.item import ENDPOINTS, FORMS, Claim, Drawing, Elsewhere

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

# Keys of a file. `kind`: "table" (the default), "figure" or "settings" (rows of a table of settings, never trained).
KEYS = {
    *("paper", "item", "kind", "title", "source", "metrics", "seeds", "margin", "rows", "columns", "notes", "cells"),
    *("claims", "claims_made", "claims_commit", "figure", "computed", "measured", "printed", "cells_of"),
}
NEEDED = ("paper", "item", "title", "source", "metrics", "seeds", "rows", "columns", "notes", "cells")
CLAIM_KEYS = {f.name for f in fields(Claim)} | {"data", "mean_over", "each_of"}


def read_published(item: str) -> dict[str, Any]:
    """The transcription of an item such as "ssfl/tab2". `cells_of`: its cells are those of another file of the paper.

    Raises ConfigError where there is none, or a key is missing, unknown or misspelt.
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
        if "made" not in claim and "claims_made" in file:  # a claim with an hour of its own has its own commit, too
            claim |= {"made": file["claims_made"], "commit": file.get("claims_commit", "")}
        _check_claim(f"{path}: claim {claim.get('name')!r}", claim)
    check_keys(f"{path}: figure", file.get("figure", {}), {f.name for f in fields(Drawing)})
    return file


def check_keys(where: str, found: Mapping[str, Any], known: set[str]) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(key, known)}")


def _check_claim(where: str, claim: Mapping[str, Any]) -> None:
    check_keys(where, claim, CLAIM_KEYS)
    for key in ("name", "quote", "source", "form", "least"):
        if key not in claim:
            raise ConfigError(f"{where}: {key} is missing")
    if not (claim.get("contrast") or claim.get("contrasts")):
        raise ConfigError(f"{where}: contrast is missing")
    if not isinstance(claim["least"], int | float) or claim["least"] < 0:
        raise ConfigError(f"{where}: least is {claim['least']!r}; a margin in the metric's unit is needed")
    if claim["form"] not in FORMS:
        raise ConfigError(f"{where}: unknown form {claim['form']!r}; {nearest(claim['form'], FORMS)}")
    made = claim.get("made")
    if made is not None and (not isinstance(made, datetime) or made.tzinfo is None):
        raise ConfigError(f"{where}: made is {made}; a day with its hour in UTC is needed: made = 2026-11-25T14:05:00Z")
    endpoint = claim.get("endpoint", "last")
    if endpoint not in ENDPOINTS and not re.fullmatch(r"last_\d+", endpoint):
        raise ConfigError(f"{where}: unknown endpoint {endpoint!r}; {nearest(endpoint, ENDPOINTS)}")
    if "withdrawn" in claim and not claim["withdrawn"]:
        raise ConfigError(f"{where}: withdrawn is empty; write why the claim's form is not its sentence's")
    for one in claim.get("elsewhere", ()):
        check_keys(f"{where}: elsewhere", one, {f.name for f in fields(Elsewhere)})
        if not (one.get("item") and one.get("contrast")):
            raise ConfigError(f"{where}: elsewhere has an item and a contrast of its cells")


def drawing_of(file: Mapping[str, Any]) -> Drawing | None:
    """How a figure is drawn; None for a table."""
    if "figure" not in file:
        return None
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in file["figure"].items()}
    return Drawing(**values)


def claims_of(file: Mapping[str, Any], data_names: Mapping[str, str] | None = None) -> tuple[Claim, ...]:
    """The claims, each once. `data_names`: data set of the paper -> what its cells' labels begin with.

    Where several data sets have one name (a stand-in for all), their claims are one.
    """
    claims: dict[tuple[object, ...], Claim] = {}
    for raw in file.get("claims", ()):
        for claim in _one_a_data_set(raw, data_names or {}):
            contrasts = (claim.contrast, *claim.contrasts)
            estimand = tuple(tuple(sorted(one.items())) for one in contrasts)
            claims.setdefault((estimand, claim.form, claim.endpoint, claim.metric), claim)
    return tuple(claims.values())


def _one_a_data_set(raw: Mapping[str, Any], data_names: Mapping[str, str]) -> list[Claim]:
    plain = {key: value for key, value in raw.items() if key not in ("data", "mean_over", "each_of", "contrasts")}
    plain["elsewhere"] = tuple(Elsewhere(**one) for one in raw.get("elsewhere", ()))
    contrasts = tuple(raw.get("contrasts", ()))
    several = len(set(data_names.values())) > 1

    def named(contrast: Mapping[str, float], name: str) -> dict[str, float]:
        return {label.replace("{data}", name): factor for label, factor in contrast.items()}

    def mean(contrast: Mapping[str, float]) -> dict[str, float]:
        names = list(dict.fromkeys(data_names[data] for data in raw["mean_over"]))
        found = [named(contrast, name) for name in names]
        return {label: factor / len(names) for one in found for label, factor in one.items()}

    if "mean_over" in raw:
        plain["contrast"] = mean(raw.get("contrast", {}))
        return [Claim(**plain, contrasts=tuple(map(mean, contrasts)))]
    if "each_of" in raw:
        each = dict.fromkeys(data_names[data] for data in raw["each_of"])
        return [Claim(**plain, contrasts=tuple(named(one, name) for name in each for one in contrasts))]
    if "data" not in raw:
        return [Claim(**plain, contrasts=contrasts)]
    names = list(dict.fromkeys(data_names[data] for data in raw["data"]))
    return [
        Claim(
            **plain
            | {
                "name": f"{raw['name']} ({name})" if several else raw["name"],
                "contrast": named(raw.get("contrast", {}), name),
                "contrasts": tuple(named(one, name) for one in contrasts),
            }
        )
        for name in names
    ]
