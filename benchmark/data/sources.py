"""Read published data sets: scikit-learn's digits, and sets in torchvision's layouts.

Shapes: N images, C channels, H x W pixels.
"""

import contextlib
import functools
import gzip
import os
import re
import shutil
import socket
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.data.reading import (
    UNKNOWN_ORIGIN,
    LabelledImages,
    Raw,
    cache_folder,
    cached,
    files_below,
    own_split,
    stamp_of,
)
from benchmark.data.tables import largest_remainders
from benchmark.errors import DataError, one_line

DOWNLOAD_TIMEOUT = 10.0  # seconds without an answer after which a server counts as unreachable


@functools.cache  # a plan prepares many experiments on digits
def read_digits() -> Raw:
    """Read scikit-learn's 1,797 handwritten digits of 8x8 pixels, 400 of them for the test.

    The test part has 400/1797 of each class, as nearly as possible.
    """
    from sklearn.datasets import load_digits  # needs seconds to import, and most runs do not use it

    digits = load_digits()
    images_NCHW = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    test_d = largest_remainders(np.bincount(digits.target) * 400 / len(digits.target), 400)
    return own_split(images_NCHW, digits.target, test_d.tolist(), "digits", [*"0123456789"])


def torchvision_set(name: str) -> Callable[..., Any]:
    from torchvision import datasets as tv  # needs seconds to import, which commands that only list sets avoid

    return getattr(tv, name)


def cifar(root: str, download: bool, kind: str) -> Raw:
    parts = [torchvision_set(kind)(root, train=train, download=download) for train in (True, False)]
    train, test = (LabelledImages(part.data.transpose(0, 3, 1, 2), part.targets) for part in parts)
    return Raw(train=train, test=test, classes=tuple(parts[0].classes))


def mnist(root: str, download: bool, kind: str, **options: str) -> Raw:
    parts = [torchvision_set(kind)(root, train=train, download=download, **options) for train in (True, False)]
    train, test = (LabelledImages(part.data[:, None], part.targets) for part in parts)
    note = "" if _are_of_archives(parts[0]) else UNKNOWN_ORIGIN
    return Raw(train=train, test=test, classes=tuple(name.split(" - ")[0] for name in parts[0].classes), note=note)


def emnist(root: str, download: bool, split: str) -> Raw:
    """Read a split of EMNIST and turn its images upright; torchvision's are transposed."""
    raw = mnist(root, download, "EMNIST", split=split)
    train, test = (LabelledImages(part.images_NCHW.mT, part.labels_N) for part in (raw.train, raw.test))
    return replace(raw, train=train, test=test)


def _are_of_archives(part: Any) -> bool:
    """Return whether the files that torchvision reads are equal to the contents of its archives in the same folder.

    The archives must have torchvision's checksums. torchvision itself checks these sets only when it downloads them.
    """
    from torchvision.datasets.utils import check_integrity

    raw = Path(part.raw_folder)
    split = getattr(part, "split", None)
    archives = [("gzip.zip", part.md5)] if split else part.resources  # EMNIST's files are in one archive
    if part._check_legacy_exist() or not all(check_integrity(raw / file, md5) for file, md5 in archives):
        return False  # in the legacy case, torchvision reads files that its older versions wrote
    packed = {file: (raw / file).read_bytes() for file, _ in archives}
    if split:
        with zipfile.ZipFile(raw / "gzip.zip") as archive:
            names = [name for name in archive.namelist() if re.fullmatch(rf"gzip/emnist-{split}-.*-ubyte\.gz", name)]
            packed = {Path(name).name: archive.read(name) for name in names}
    return all(
        (raw / file).with_suffix("").read_bytes() == gzip.decompress(content) for file, content in packed.items()
    )


def svhn(root: str, download: bool) -> Raw:
    train, test = (torchvision_set("SVHN")(root, split=split, download=download) for split in ("train", "test"))
    return Raw(
        train=LabelledImages(train.data, train.labels),
        test=LabelledImages(test.data, test.labels),
        classes=tuple("0123456789"),
    )


def stl10(root: str, download: bool) -> Raw:
    train, test, more = (
        torchvision_set("STL10")(root, split=split, download=download) for split in ("train", "test", "unlabeled")
    )
    return Raw(
        train=LabelledImages(train.data, train.labels),
        test=LabelledImages(test.data, test.labels),
        unlabelled=more.data,
        classes=tuple(train.classes),
    )


def class_folders(root: str, download: bool, name: str) -> Raw:
    """Read NAME/train/CLASS/* and NAME/test/CLASS/*, which must be images of one size."""
    train, test = (torchvision_set("ImageFolder")(os.path.join(root, name, part)) for part in ("train", "test"))
    if train.classes != test.classes:
        raise ValueError("train and test have different classes")
    return Raw(train=_kept(train), test=_kept(test), classes=tuple(train.classes), note=UNKNOWN_ORIGIN)


def _kept(folder: Any) -> LabelledImages:
    """Return the pixels and labels of a torchvision `ImageFolder`.

    Pixels are cached until a file changes, because opening 90,000 files needs minutes.
    """

    def decode() -> np.ndarray:
        images_NHWC = np.stack([np.asarray(folder.loader(path)) for path, _ in folder.samples])
        return np.ascontiguousarray(images_NHWC.transpose(0, 3, 1, 2))

    stamp = stamp_of(Path(folder.root), [Path(path) for path, _ in folder.samples])
    return LabelledImages(cached(stamp, decode), folder.targets)


# Name -> function that reads a set from (folder, whether to download, arguments).
READERS: Mapping[str, Callable[..., Raw]] = {
    reader.__name__: reader for reader in (cifar, mnist, emnist, svhn, stl10, class_folders)
}
_READ_ERRORS = (OSError, RuntimeError, ValueError, TypeError, EOFError, AssertionError, KeyError)


class Digits:
    """scikit-learn's digits, which are equal everywhere (`Source`)."""

    folder = Path()

    def files(self) -> Iterable[Path]:
        return ()

    def read(self) -> Raw:
        return read_digits()

    def is_listed(self) -> bool | None:
        return True


@dataclass(frozen=True)
class Original:
    """A set in torchvision's own layout, which is never written to (`Source`)."""

    name: str
    marker: str  # a path that exists if the set is in the folder
    reader: str
    arguments: tuple[str, ...]
    folder: Path

    @property
    def is_here(self) -> bool:
        return (self.folder / self.marker).exists()

    def files(self) -> Iterable[Path]:
        top = self.folder / Path(self.marker).parts[0]
        return files_below(top) if top.is_dir() else self.folder.glob(f"*{top.suffix}")

    def read(self) -> Raw:
        try:
            return READERS[self.reader](str(self.folder), False, *self.arguments)
        except _READ_ERRORS as error:
            raise DataError(
                f"{self.folder / self.marker}: {self.name} is incomplete ({one_line(error)}); "
                "delete it or copy it again"
            ) from error

    def is_listed(self) -> bool | None:
        return None


def download(name: str, original: Sequence[str], searched: str) -> Path:
    """Download a set with torchvision and return its folder in the cache, which appears complete or not at all.

    `searched` names the folders that were already searched, for the message. Raise DataError if the download fails, for
    example without a network or without free space.
    """
    if not hasattr(tarfile, "data_filter"):  # before 3.11.4, an archive could write files outside its target folder
        raise DataError(f"data set {name} cannot be downloaded safely by this Python; install Python 3.11.4 or later")
    # The default from Python 3.14 on. torchvision 0.24 unpacks archives without a filter.
    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    _, reader, *arguments = original
    target = cache_folder() / name
    fetching = cache_folder() / f".fetching-{name}-{os.getpid()}"
    before = socket.getdefaulttimeout()
    try:
        fetching.mkdir(parents=True, exist_ok=True)
        socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)  # torchvision sets no time limit for its downloads
        with contextlib.redirect_stdout(sys.stderr):  # standard output is reserved for --json
            READERS[reader](str(fetching), True, *arguments)
        with contextlib.suppress(OSError):  # if a different process was faster, its copy is equally good
            fetching.rename(target)
    except (*_READ_ERRORS, zipfile.BadZipFile, tarfile.TarError) as error:
        raise DataError(
            f"data set {name} is not in {searched} and cannot be downloaded ({one_line(error)}); "
            "set FSSL_DATA to a folder that contains it, or use a machine with a network"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
        shutil.rmtree(fetching, ignore_errors=True)
    return target
