"""Read the list of confirmatory runs that were begun and are not committed: `not_committed.toml` in
the results folder.

The file is written by hand. A confirmatory run must not be left out because of its result, and so
each group has a reason.
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
    seeds: str  # described in words
    count: Count  # number of runs
    device: str
    begun: str  # time, described in words
    commit: str  # commit of the code
    reason: str
    source: str  # source of this information


def left_out(results: Path) -> tuple[LeftOut, ...]:
    """Return the groups in the file; none if there is no file. Raise ConfigError if it is damaged."""
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
    return f"{number} confirmatory runs were begun and are not committed ({items}): {FILE} gives the reasons"
