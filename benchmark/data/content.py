"""What data sets hold that are on this machine: the hash of their content, and whether the suite knows their files.

Both take a read of the whole set. They are kept in the cache, by the size and the times of all files that the set is
read from. Without a cache folder, each process reads the set once.
"""

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmark.data.datasets import DATASETS, find, load
from benchmark.data.folder import canonical_name, files_below
from benchmark.data.reading import UNKNOWN_ORIGIN, cached, stamp_of
from benchmark.errors import DataError, FsslError


def content_hash(name: str) -> str | None:
    """`DataSet.content_hash`; None for a set that is not here or cannot be read. Downloads nothing.

    None for scikit-learn's digits, too: they are the same everywhere.
    """
    found = _look_up(name)
    return None if found is None else found[0]


def has_known_files(name: str) -> bool | None:
    """Whether the suite lists the files of a set of `DATASETS`; None as above."""
    found = _look_up(name)
    return None if found is None else UNKNOWN_ORIGIN not in found[1]


def look_again() -> None:
    """Forget what this process knows: files may have changed."""
    _look_up.cache_clear()


@functools.cache
def _look_up(name: str) -> list[str] | None:
    """The content's hash and the set's note."""
    try:
        folder = None if name == "digits" else find(name)
        return None if folder is None else _kept(name, folder, _stamp(name, folder))
    except (FsslError, OSError, RuntimeError, ValueError):  # whoever trains on it says what is wrong
        return None


@functools.cache
def _kept(name: str, folder: Path, stamp: str) -> list[str]:
    def read() -> np.ndarray:
        data = load(name)
        if stamp != _stamp(name, folder):
            raise DataError(f"{folder}: was changed while it was read")
        return np.array([data.content_hash, data.note])

    hash_and_note: list[str] = cached(stamp_of(folder, (), stamp, "hash and note"), read).tolist()
    return hash_and_note


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
