"""Give each claim the date of its registration: the first commit with its hash.

A claim's hash contains the keys of its cells. If the cells of a claim change, its sentence stays
the same, but it has a new hash and a new date. A claim's file has the date of the sentence.
`results/published/registry.toml` has the first commit of each hash with cells that are newer or
older than that.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache

from benchmark.papers.item import Item
from benchmark.papers.published import PUBLISHED

REGISTRY = PUBLISHED / "registry.toml"


@cache
def first_commits() -> Mapping[str, tuple[datetime, str]]:
    """Return the time and the name of the first commit for each hash of `registry.toml`."""
    commits = tomllib.loads(REGISTRY.read_text())["commits"]
    return {name: (entry["made"], entry["commit"]) for entry in commits for name in entry["hashes"]}


def registered(item: Item) -> Item:
    """Return the item with the registration date of each claim; a claim that is not in the registry
    keeps its file's date.
    """
    known = first_commits()
    claims = []
    for claim in item.claims:
        made, commit = known.get(item.hash_of(claim), (claim.made, claim.commit))
        claims.append(replace(claim, made=made, commit=commit))
    return replace(item, claims=tuple(claims))
