"""What data sets hold that are on this machine: the hash of their content, and whether the suite knows their files.

Both take a read of the whole set. They are kept in the cache, by the size and the times of all files that the set is
read from. Without a cache folder, each process reads the set once.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.data.datasets import DATASETS, find, load
from benchmark.data.folder import canonical_name, files_below
from benchmark.data.packed import is_packed
from benchmark.data.reading import UNKNOWN_ORIGIN, cached, file_sha256, stamp_of
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


def _hash(name: str, folder: Path) -> str:
    return load(name).content_hash


def _are_listed(name: str, folder: Path) -> bool:
    listed = DATASETS[name].packed_sha256
    if is_packed(folder) and listed:
        return all(file_sha256(path) == listed.get(path.name) for path in _files(name, folder))
    return UNKNOWN_ORIGIN not in load(name).note


def _look_up(name: str, compute: Callable[[str, Path], str | bool]) -> Any:
    try:
        folder = find(name)
        return None if folder is None else _kept(name, folder, compute, _stamp(name, folder))
    except (FsslError, OSError, RuntimeError, ValueError):  # whoever trains on it says what is wrong
        return None


@functools.cache
def _kept(name: str, folder: Path, compute: Callable[[str, Path], str | bool], stamp: str) -> Any:
    def read() -> np.ndarray:
        value = compute(name, folder)
        if stamp != _stamp(name, folder):
            raise DataError(f"{folder}: was changed while it was read")
        return np.array(value)

    return cached(stamp_of(folder, (), stamp, compute.__name__), read).item()


def _files(name: str, folder: Path) -> Iterable[Path]:
    """All files that the set is read from, and maybe others."""
    if name not in DATASETS:
        return files_below(folder)
    if not DATASETS[name].original_in(folder):
        return folder.glob("*.npz")
    top = folder / Path(DATASETS[name].original[0]).parts[0]
    return files_below(top) if top.is_dir() else folder.glob(f"*{top.suffix}")


def _stamp(name: str, folder: Path) -> str:
    """Changes where a file was added, removed, renamed or written, or where the suite lists others."""
    entry = DATASETS.get(name)
    listed = None if entry is None else (sorted(entry.packed_sha256.items()), entry.content_sha256)
    return stamp_of(folder, _files(name, folder), canonical_name(name), str(folder.resolve()), listed)
