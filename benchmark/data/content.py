"""What data sets hold that are on this machine: the hash of their content, and whether the suite knows their files.

Both take a read of the whole set. They are kept in one small file of the cache folder, by the size and the times of all
files that the set is read from. Without a cache folder, each process reads the set once.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import PIL

from benchmark.data.datasets import DATASETS, UNKNOWN_ORIGIN, find, load
from benchmark.data.folder import files_below, path_and_option
from benchmark.data.packed import cache_folder, file_sha256, is_packed, write_cache
from benchmark.errors import FsslError
from benchmark.plain import expanded

CACHE = "contents.json"  # {what is known of which set: [stamp of its files, value]}
_IN_THIS_PROCESS: dict[str, Any] = {}  # as in the file


@functools.cache
def content_hash(name: str, root: Path | None = None) -> str | None:
    """`DataSet.content_hash`; None for a set that is not here or cannot be read. Downloads nothing.

    None for scikit-learn's digits, too: they are the same everywhere.
    """
    return None if name == "digits" else _look_up(name, root, "hash", lambda folder: load(name, root).content_hash)


@functools.cache
def has_known_files(name: str, root: Path | None = None) -> bool | None:
    """Whether the suite lists the files of a set of `DATASETS`; None as above. Packed ones need not be decoded."""

    def look(folder: Path) -> bool:
        listed = DATASETS[name].packed_sha256
        if is_packed(folder) and listed:
            return all(file_sha256(path) == listed.get(path.name) for path in _files(name, folder))
        return UNKNOWN_ORIGIN not in load(name, root).note

    return True if name == "digits" else _look_up(name, root, "known", look)


def look_again() -> None:
    """Forget what this process knows: files may have changed."""
    content_hash.cache_clear()
    has_known_files.cache_clear()


def _look_up(name: str, root: Path | None, what: str, compute: Callable[[Path], Any]) -> Any:
    try:
        folder = _folder(name, root)
        if folder is None:
            return None
        file, stamp = cache_folder() / CACHE, _stamp(name, folder)
        key = f"{what} of {folder.resolve()} {name if name in DATASETS else path_and_option(name)[1]}".rstrip()
        for kept in (_IN_THIS_PROCESS.get(key), _read(file).get(key)):
            if isinstance(kept, list) and len(kept) == 2 and kept[0] == stamp:
                return kept[1]
        value = compute(folder)
        if stamp == _stamp(name, folder):  # else it was changed meanwhile
            _IN_THIS_PROCESS[key] = [stamp, value]
            content = json.dumps({**_read(file), key: [stamp, value]}, indent=1).encode()
            write_cache(file, lambda open_file: open_file.write(content), warn=False)
        return value
    except (FsslError, OSError, RuntimeError, ValueError):  # whoever trains on it says what is wrong
        return None


def _folder(name: str, root: Path | None) -> Path | None:
    if name in DATASETS:
        return find(name, root)
    path, _ = path_and_option(name)
    return None if path is None or not expanded(path).is_dir() else expanded(path)


def _files(name: str, folder: Path) -> Iterable[Path]:
    """All files that the set is read from, and maybe others."""
    if name not in DATASETS:
        return files_below(folder)
    if not DATASETS[name].original_in(folder):
        return folder.glob("*.npz")
    top = folder / Path(DATASETS[name].original[0]).parts[0]
    return files_below(top) if top.is_dir() else folder.glob(f"*{top.suffix}")


def _stamp(name: str, folder: Path) -> str:
    """Changes where a file was added, removed, renamed or written, or where the suite lists others.

    Another Pillow may decode to other pixels.
    """
    entry = DATASETS.get(name)
    listed = [] if entry is None else [*sorted(entry.packed_sha256.items()), entry.content_sha256]
    files = []
    for path in _files(name, folder):
        with contextlib.suppress(FileNotFoundError):  # a link to nothing
            status = path.stat()
            files.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    text = f"{PIL.__version__} {listed} {sorted(files)}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _read(path: Path) -> dict[str, Any]:
    """Empty if the file is missing or has another form."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
