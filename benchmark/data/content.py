"""What data sets hold that are on this machine: the hash of their content, and whether the suite knows their files.

Both take a read of the whole set. They are kept in the cache, by the size and the times of all files that the set is
read from. Without a cache folder, each process reads the set once.
"""

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmark.data.datasets import DATASETS, load, locate
from benchmark.data.folder import canonical_name
from benchmark.data.pooled import pooled_hash
from benchmark.data.reading import UNKNOWN_ORIGIN, Source, computed_from
from benchmark.errors import FsslError


@functools.cache
def content_hash(name: str) -> str | None:
    """`DataSet.content_hash`; None for a set that is not here or cannot be read. Downloads nothing.

    None for scikit-learn's digits, too: they are the same everywhere.
    """
    return None if name == "digits" else _look_up(name, _hash)


@functools.cache
def has_known_files(name: str) -> bool | None:
    """Whether the suite lists the files of a set of `DATASETS`; None as above. Packed ones need not be decoded."""
    return True if name == "digits" else _look_up(name, _are_listed)


def data_hash(experiment: Mapping[str, Any]) -> str | None:
    """Return the hash of the data of an experiment's JSON, as its record has it; None if the data are not here."""
    data = experiment["data"]
    content, pooled_test = content_hash(data["name"]), data.get("pooled_test")
    return pooled_hash(content, pooled_test, experiment["seed"]) if content and pooled_test else content


def are_listed(name: str, recorded: Mapping[str, Any]) -> bool:
    """Return whether the suite lists the files of a set that are here and those of the record."""
    if name not in DATASETS or UNKNOWN_ORIGIN in recorded.get("note", ""):
        return False
    return has_known_files(name) is not False


def look_again() -> None:
    """Forget what this process knows: files may have changed."""
    content_hash.cache_clear()
    has_known_files.cache_clear()


def _hash(name: str, source: Source) -> str:
    return load(name).content_hash


def _are_listed(name: str, source: Source) -> bool:
    known = source.is_listed()
    return UNKNOWN_ORIGIN not in load(name).note if known is None else known


def _look_up(name: str, compute: Callable[[str, Source], str | bool]) -> Any:
    try:
        source = locate(name)
        if source is None:
            return None
        entry = DATASETS.get(name)
        # Another value where the suite lists other files.
        listed = None if entry is None else (sorted(entry.packed_sha256.items()), entry.content_sha256)
        also = (canonical_name(name), str(source.folder.resolve()), listed)
        return computed_from(source, partial(compute, name, source), compute.__name__, *also)
    except (FsslError, OSError, RuntimeError, ValueError):  # whoever trains on it says what is wrong
        return None
