"""What the papers print, read from `results/published/PAPER/ITEM.toml`, and the claims fixed beside it."""

import tomllib
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


def claims_of(published: dict[str, Any]) -> tuple[Claim, ...]:
    return tuple(Claim(**claim) for claim in published.get("claims", ()))
