"""Reads PAPER.toml of this folder: the experiment of a printed line, and a paper's stand-ins."""

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.config import from_plain, merge, nearest
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, from_json
from benchmark.papers.scale import REDUCED, Scale


@cache
def values_of(paper: str) -> Mapping[str, Any]:
    """The file's tables. Raises ConfigError."""
    return alike(tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text()), f"{paper}.toml")


def alike(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tables, where one that is `like` another beside it has that one's values, except its own.

    Raises ConfigError that begins with `where` and the table's name.
    """
    whole = {}
    for name, own in tables.items():
        if isinstance(own, dict):
            like = own.get("like", name)
            if like not in tables:
                raise ConfigError(f"{where}.{name}.like: {like!r} is unknown; {nearest(like, tables)}")
            own = {key: value for key, value in {**tables[like], **own}.items() if key != "like"}
            own = alike(own, f"{where}.{name}")
        whole[name] = own
    return whole


def experiment_of(paper: str, line: Mapping[str, Any], fields: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a printed line, by [experiment] and [keys] of PAPER.toml.

    A key of [keys] is a field, by its dotted name, or has a table of fields for each of its values. Keys come in the
    file's order, then `fields`; each overrides what came before. Raises ConfigError for a value without a table.
    """
    file = values_of(paper)
    plain: dict[str, Any] = deepcopy(file["experiment"])
    for key, sets in file["keys"].items():
        value = line.get(key)
        if value is None:
            continue
        if isinstance(sets, str):
            merge(plain, {sets: value})
        elif str(value) in sets:
            merge(plain, deepcopy(sets[str(value)]))
        else:
            raise ConfigError(f"{key}: {value!r} is not in a table of {paper}; {nearest(str(value), sets)}")
    merge(plain, dict(fields or {}))
    return from_json(plain)


@cache
def stand_ins(paper: str) -> Mapping[str, Mapping[str, Scale]]:
    """A paper's stand-ins by profile and name. Raises ConfigError."""
    tables = {profile: values_of(paper)[profile] for profile in REDUCED}
    return {
        profile: {name: from_plain(Scale, table, f"{paper}.toml: {profile}.{name}") for name, table in of.items()}
        for profile, of in tables.items()
    }
