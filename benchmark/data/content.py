"""Look up the content hash of data sets on this machine, and whether the suite lists their files.

Both require reading the whole set. The results are cached under the sizes and times of all files of the set. Without a
cache folder, each process reads the set once.
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
    """Return `DataSet.content_hash` without a download, or None if the set is not on this machine or not readable.

    Also return None for scikit-learn's digits, which are equal everywhere.
    """
    return None if name == "digits" else _look_up(name, _hash)


@functools.cache
def has_known_files(name: str) -> bool | None:
    """Return whether the suite lists the files of a set of `DATASETS`; packed files need not be decoded for this.

    Return None if the set is not on this machine or cannot be read.
    """
    return True if name == "digits" else _look_up(name, _are_listed)


def data_hash(experiment: Mapping[str, Any]) -> str | None:
    """Return the hash of an experiment's data as in its record, from its JSON.

    Return None for digits, and for data that are not on this machine.
    """
    data = experiment["data"]
    content = content_hash(data["name"])
    pooled_test = data.get("pooled_test")
    return pooled_hash(content, pooled_test, experiment["seed"]) if content and pooled_test else content


def are_listed(name: str, recorded: Mapping[str, Any]) -> bool:
    """Return whether the suite lists both the files of a set on this machine and the files of the run record."""
    if name not in DATASETS or UNKNOWN_ORIGIN in recorded.get("note", ""):
        return False
    return has_known_files(name) is not False


def look_again() -> None:
    """Clear the results of this process, because files may have changed."""
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
        # The stamp must change if the suite lists different files.
        listed = None if entry is None else (sorted(entry.packed_sha256.items()), entry.content_sha256)
        also = (canonical_name(name), str(source.folder.resolve()), listed)
        return computed_from(source, partial(compute, name, source), compute.__name__, *also)
    except (FsslError, OSError, RuntimeError, ValueError):  # training on the set reports the problem
        return None
