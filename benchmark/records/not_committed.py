"""Confirmatory runs that were begun and are not committed: the list `not_committed.toml` in the folder of results.

It is written by hand. A run that confirms must not be left out because of its result, so each group has its reason.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmark.config import Count, from_plain
from benchmark.errors import ConfigError

FILE = "not_committed.toml"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A group of runs that are not committed."""

    item: str  # "ssfl/fig6"
    profile: str
    cells: tuple[str, ...]  # labels
    seeds: str  # in words
    count: Count  # of runs
    device: str
    begun: str  # when, in words
    commit: str  # of the code
    reason: str
    source: str  # where all this is known from


def left_out(results: Path) -> tuple[LeftOut, ...]:
    """Return the groups of the file; none if there is no file. Raise ConfigError for a damaged one."""
    path = results / FILE
    if not path.is_file():
        return ()
    try:
        file = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    entries = file.get("runs", [])
    return tuple(from_plain(LeftOut, entry, f"{path}: runs[{n}]") for n, entry in enumerate(entries))


def left_out_in_words(results: Path) -> str:
    """Return a sentence for reports on all records; empty if no run is left out."""
    groups = left_out(results)
    if not groups:
        return ""
    number = sum(group.count for group in groups)
    items = ", ".join(dict.fromkeys(group.item for group in groups))
    return f"{number} confirmatory runs were begun and are not committed ({items}): {FILE} has the reasons"
