"""What the papers print, read from `results/published/PAPER/ITEM.toml`, and the claims fixed beside it.

A file holds what is printed, one line a cell with its whole setting; `quoted` marks numbers of another paper
(`also_quoted`: trained on request alone, `--also-quoted`), `not_yet`
cells that no method of the suite can train, `notes` what the paper contradicts itself in. A claim that names `data`
sets is one claim for each of them, "{data}" in its cells' labels standing for the data set.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError
from benchmark.papers.item import Claim

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"


def read_published(item: str) -> dict[str, Any]:
    """The transcription of an item such as "ssfl/tab2". Raises ConfigError where there is none."""
    path = PUBLISHED / f"{item}.toml"
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{item}: {path} is missing; it holds what the paper prints") from None


def value_of(published: dict[str, Any], **setting: object) -> float:
    """The one printed value of that setting, percent. Raises KeyError where there is none or more than one."""
    found = [
        cell["value"] for cell in published["cells"] if all(cell.get(key) == value for key, value in setting.items())
    ]
    if len(found) != 1:
        raise KeyError(f"{published['item']}: {len(found)} cells for {setting}")
    return float(found[0])


def claims_of(published: dict[str, Any], data_names: Mapping[str, str] | None = None) -> tuple[Claim, ...]:
    """The claims, each once. `data_names`: data set of the paper -> what its cells' labels begin with.

    Where several data sets have one name (a stand-in for all), their claims are one.
    """
    claims: dict[tuple[object, ...], Claim] = {}
    for raw in published.get("claims", ()):
        for claim in _one_a_data_set(raw, data_names or {}):
            claims.setdefault((*sorted(claim.contrast.items()), claim.form, claim.metric), claim)
    return tuple(claims.values())


def _one_a_data_set(raw: Mapping[str, Any], data_names: Mapping[str, str]) -> list[Claim]:
    plain = {key: value for key, value in raw.items() if key != "data"}
    if "data" not in raw:
        return [Claim(**plain)]
    names = list(dict.fromkeys(data_names[data] for data in raw["data"]))
    several = len(set(data_names.values())) > 1
    return [
        Claim(
            **plain
            | {
                "name": f"{raw['name']} ({name})" if several else raw["name"],
                "contrast": {label.replace("{data}", name): factor for label, factor in raw["contrast"].items()},
            }
        )
        for name in names
    ]
