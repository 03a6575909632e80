"""Provide the parts that all readers of images share: the form of a set, the split of sets without a test part, and the
cache.

The cache is in FSSL_CACHE or, without it, in ~/.cache/fssl. Its entries are named by the contents, or the sizes and
times, of their source files. It may be deleted at any time.

Shapes: N images, C channels, H x W pixels.
"""

import contextlib
import hashlib
import os
import warnings
import zipfile
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import PIL

from benchmark.errors import CannotWrite, ConfigError, DataError
from benchmark.files import replacing
from benchmark.plain import expanded
from benchmark.streams import numpy_stream, shuffled

UNKNOWN_ORIGIN = "files of unknown origin"  # part of a set's note if no list of checksums contains its files


class LabelledImages(NamedTuple):
    """NumPy or torch arrays of uint8 images and of their integer labels, which may also be a list."""

    images_NCHW: Any
    labels_N: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Raw:
    """The result of a reader."""

    train: LabelledImages
    test: LabelledImages
    classes: tuple[str, ...]
    unlabelled: Any = None
    note: str = ""


class Source(Hashable, Protocol):
    """A data set that was found on this machine, in one of four layouts.

    The layouts are scikit-learn's `digits`, torchvision's original files, packed .npz files, and a user's folder of
    images. Only `datasets.load` and `datasets.locate` decide which layout a set has.
    """

    @property
    def folder(self) -> Path:
        """Return the folder with its files."""

    def files(self) -> Iterable[Path]:
        """List all files that the set is read from, and possibly others."""

    def read(self) -> Raw:
        """Read the images. Raise DataError if the set is not complete."""

    def is_listed(self) -> bool | None:
        """Return whether the suite lists these files by their hashes, or None if that is known only after `read`."""


def own_split(images_NCHW: np.ndarray, labels_N: np.ndarray, test_d: list[int], name: str, classes: list[str]) -> Raw:
    """Split a set into a training and a test part, with `test_d` test images of each class.

    The stream that draws the test images does not depend on the path.
    """
    test_N = np.zeros(len(labels_N), dtype=bool)
    for label, count in enumerate(test_d):
        of_class_N = np.flatnonzero(labels_N == label)
        test_N[shuffled(of_class_N, numpy_stream(0, "data", name, "test", label))[:count]] = True
    train, test = (LabelledImages(images_NCHW[part_N], labels_N[part_N]) for part_N in (~test_N, test_N))
    return Raw(train=train, test=test, classes=tuple(classes), note="own split")


def cache_folder() -> Path:
    """Return FSSL_CACHE or, if it is not set, ~/.cache/fssl; the folder need not exist."""
    try:
        return expanded(os.environ.get("FSSL_CACHE") or "~/.cache/fssl")
    except ConfigError:
        return Path(os.devnull, "fssl")  # without a home folder, there is no cache to read or write


def cached(source: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the array that `compute` derives from contents with the sha256 `source`, from the cache if possible.

    A cache file that is absent or damaged is replaced atomically. If the cache cannot be written, a warning is printed,
    and the run continues.
    """
    # A different version of Pillow may decode a lossy file to different pixels.
    path = cache_folder() / "decoded" / f"{source[:32]}-pillow-{PIL.__version__}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:  # reading a zip archive checks its CRC
            return arrays["images"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        pass  # an absent or damaged file is computed again
    array = compute()
    try:
        with replacing(path, flushed=False) as file:
            np.savez(file, images=array)
    except CannotWrite as error:
        warnings.warn(f"the cache file {error}; its content will be computed again next time", stacklevel=2)
    return array


_known: dict[str, Any] = {}  # stamp of files -> result that this process has computed


def computed_from(source: Source, compute: Callable[[], Any], name: str, *also: object) -> Any:
    """Return a number, string or bool called `name` that `compute` derives from all files of a source.

    The result is kept in the cache and in this process, under the sizes and times of the files and `also`. Raise
    DataError if a file changes during the computation.
    """

    def stamp() -> str:
        return stamp_of(source.folder, source.files(), *also)

    def value() -> np.ndarray:
        computed = compute()
        if stamp() != before:
            raise DataError(f"{source.folder} was changed while it was read; run the command again")
        return np.array(computed)

    before = stamp()
    key = stamp_of(source.folder, (), before, name)
    if key not in _known:
        _known[key] = cached(key, value).item()
    return _known[key]


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of a file. Raise OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(folder: Path, files: Iterable[Path], *also: object) -> str:
    """Return a sha256 (hex) that changes if a file in the folder is added, removed, renamed or written."""
    seen = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # a link to nothing
            status = path.stat()
            seen.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return hashlib.sha256(repr((*also, sorted(seen))).encode(errors="surrogateescape")).hexdigest()


OF_SYSTEMS = ("__MACOSX", "Thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "@eaDir")  # never contain images


def is_visible(name: str) -> bool:
    """Return whether a file or folder of this name is part of a data set."""
    return not name.startswith(".") and not name.endswith("~") and name not in OF_SYSTEMS


def files_below(folder: Path) -> list[Path]:
    """List each visible file once, even if several links lead to it."""
    places = []
    walked = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        folders[:] = [name for name in folders if is_visible(name) and real not in walked]
        places += [(parent, name) for name in names if is_visible(name) and real not in walked]
        walked.add(real)
    files: dict[Path, Path] = {}
    for place in sorted(places):
        files.setdefault(Path(*place).resolve(), Path(*place))
    return list(files.values())
