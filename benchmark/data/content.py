"""What data sets hold that are on this machine: the hash of their content, and whether the suite knows their files.

Both take a read of the whole set. They are kept in the cache, by the size and the times of all files that the set is
read from. Without a cache folder, each process reads the set once.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmark.data.datasets import DATASETS, load, locate
from benchmark.data.folder import canonical_name
from benchmark.data.reading import UNKNOWN_ORIGIN, Source, cached, stamp_of
from benchmark.errors import DataError, FsslError


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
        return None if source is None else _kept(name, source, compute, _stamp(name, source))
    except (FsslError, OSError, RuntimeError, ValueError):  # whoever trains on it says what is wrong
        return None


@functools.cache
def _kept(name: str, source: Source, compute: Callable[[str, Source], str | bool], stamp: str) -> Any:
    def read() -> np.ndarray:
        value = compute(name, source)
        if stamp != _stamp(name, source):
            raise DataError(f"{source.folder}: was changed while it was read")
        return np.array(value)

    return cached(stamp_of(source.folder, (), stamp, compute.__name__), read).item()


def _stamp(name: str, source: Source) -> str:
    """Changes where a file was added, removed, renamed or written, or where the suite lists others."""
    entry = DATASETS.get(name)
    listed = None if entry is None else (sorted(entry.packed_sha256.items()), entry.content_sha256)
    folder = source.folder
    return stamp_of(folder, source.files(), canonical_name(name), str(folder.resolve()), listed)
