"""Reads PAPER.toml of this folder: a paper's stand-ins, and numbers of its data sets and of the methods it quotes."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from benchmark.config import from_plain, nearest
from benchmark.errors import ConfigError
from benchmark.papers.scale import REDUCED, Scale

T = TypeVar("T")
S = TypeVar("S", bound=Scale)


@cache
def values_of(paper: str) -> Mapping[str, Any]:
    """The file's tables."""
    return tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text())


@cache
def stand_ins(paper: str, kind: type[S]) -> Mapping[str, Mapping[str, S]]:
    """A paper's stand-ins by profile and name. Raises ConfigError."""
    return {profile: read_tables(values_of(paper)[profile], kind, f"{paper}.toml: {profile}") for profile in REDUCED}


def read_tables(tables: Mapping[str, Mapping[str, Any]], kind: type[T], where: str) -> dict[str, T]:
    """A dataclass of each table. One that is `like` another has that one's values, except its own.

    Raises ConfigError that begins with `where` and the table's name.
    """
    instances = {}
    for name, own in tables.items():
        like = own.get("like", name)
        if like not in tables:
            raise ConfigError(f"{where}.{name}.like: {like!r} is unknown; {nearest(like, tables)}")
        table = {key: value for key, value in {**tables[like], **own}.items() if key != "like"}
        instances[name] = from_plain(kind, table, f"{where}.{name}")
    return instances
