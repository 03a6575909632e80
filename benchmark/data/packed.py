"""Read packed image sets: NAME/SPLIT.npz, or NAME/SPLIT_0.npz, NAME/SPLIT_1.npz and so on.

A file contains `labels` (N) and `classes`, the names in label order. A grey set also has `images` uint8 (N,H,W). Other
sets have one of `webp` and `jpeg` (uint8, all encoded files concatenated) with `offsets` int64 (N+1). Nothing is ever
unpickled. The folder of the files is never written to. Decoded pixels are kept in the cache.

Shapes: N images, C channels, H x W pixels.
"""

import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmark.data.reading import UNKNOWN_ORIGIN, LabelledImages, Raw, cached, file_sha256
from benchmark.errors import DataError

LARGE = 256 << 20  # bytes; smaller contents are not checked
MOST_PACKED = 100  # largest credible compression ratio of an archive of images

Pixels = npt.NDArray[np.uint8]


class _Part(NamedTuple):
    """The content of a file, or of all files of train or of test."""

    images_NCHW: Pixels
    labels_N: npt.NDArray[np.int64]
    classes: tuple[str, ...]

    @property
    def labelled(self) -> LabelledImages:
        return LabelledImages(self.images_NCHW, self.labels_N)


@dataclass(frozen=True)
class Packed:
    """A folder of packed files (`Source`).

    `sha256` contains the hash of each listed file. `note` is the note on a set that exists only in packed form.
    """

    folder: Path
    sha256: Mapping[str, str] = field(compare=False)
    note: str = ""

    @property
    def is_here(self) -> bool:
        """Return whether the folder has packed files of at least one split."""
        return bool(_part_files(self.folder, "train") or _part_files(self.folder, "test"))

    def files(self) -> Iterable[Path]:
        return self.folder.glob("*.npz")

    def read(self) -> Raw:
        return read_packed(self.folder, self.sha256, self.note)

    def is_listed(self) -> bool | None:
        return all(file_sha256(path) == self.sha256.get(path.name) for path in self.files()) if self.sha256 else None


def read_packed(folder: Path, sha256: Mapping[str, str], note: str) -> Raw:
    """Read the set in a packed folder.

    `sha256` maps the names of known files to their hashes. The set gets the note `note` if all its files are known.
    Raise DataError for a missing file, for a hash that differs from the known one, and for contradictory contents.
    """
    train, test = (_read_split(folder, split, sha256) for split in ("train", "test"))
    if train.classes != test.classes:
        raise DataError(f"{folder}: train and test name different classes; copy the whole folder again")
    known = all(path.name in sha256 for split in ("train", "test") for path in _part_files(folder, split))
    return Raw(
        train=train.labelled,
        test=test.labelled,
        classes=train.classes,
        note=note if known else f"packed {UNKNOWN_ORIGIN}",
    )


def _read_split(folder: Path, split: str, sha256: Mapping[str, str]) -> _Part:
    files = _part_files(folder, split)
    found = {path.name for path in files}
    listed = {name for name in sha256 if re.fullmatch(rf"{split}(_\d+)?\.npz", name)}
    wanted = found or {f"{split}.npz"}
    if found & listed:  # a folder with one of the listed files needs all of them
        wanted = found | listed
    missing = sorted(name for name in wanted if not (folder / name).is_file())
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} is missing; copy the whole folder again")
    parts = [_read_file(path, sha256.get(path.name)) for path in files]
    first = parts[0]
    for path, part in zip(files[1:], parts[1:], strict=True):
        if part.classes != first.classes or part.images_NCHW.shape[1:] != first.images_NCHW.shape[1:]:
            raise DataError(
                f"{path} has different classes or a different image size than {files[0].name}; copy both again"
            )
    if len(parts) == 1:
        return first
    images_NCHW = np.concatenate([part.images_NCHW for part in parts])
    return _Part(images_NCHW, np.concatenate([part.labels_N for part in parts]), first.classes)


def _part_files(folder: Path, split: str) -> list[Path]:
    """Return [SPLIT.npz], or the files SPLIT_0.npz, SPLIT_1.npz, ...; return [] if there are none of both kinds.

    Raise DataError if there are files of both kinds.
    """
    whole = folder / f"{split}.npz"
    numbered = [path for path in folder.glob(f"{split}_*.npz") if re.fullmatch(rf"{split}_\d+", path.stem)]
    if whole.is_file() and numbered:
        raise DataError(f"{folder} contains both {whole.name} and {numbered[0].name}; remove one of the two copies")
    return [whole] if whole.is_file() else [folder / f"{split}_{number}.npz" for number in range(len(numbered))]


def _read_file(path: Path, expected: str | None) -> _Part:
    sha256 = file_sha256(path)
    if expected is not None and sha256 != expected:
        raise DataError(f"{path}: its sha256 is {sha256}, but {expected} is expected; copy the file again")
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as arrays:
            labels_N = _array(path, arrays, "labels", ("u", "i")).astype(np.int64)
            classes = tuple(map(str, _array(path, arrays, "classes", ("U",))))
            codec = next((key for key in ("webp", "jpeg") if key in arrays), None)
            if codec is None:
                images_NCHW = _array(path, arrays, "images", ("u1",), 3)[:, None]
            else:
                raw, offsets = _array(path, arrays, codec, ("u1",)), _array(path, arrays, "offsets", ("i8",))
                images_NCHW = cached(sha256, lambda: _decode(path, raw, offsets))
    except (*_BROKEN, MemoryError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a complete packed file ({error}); copy it again") from error
    if not len(images_NCHW) == len(labels_N) > 0:
        raise DataError(f"{path} has {len(images_NCHW)} images and {len(labels_N)} labels; copy it again")
    return _Part(images_NCHW, labels_N, classes)


_BROKEN = (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error)


def _check_size(path: Path) -> None:
    """Raise DataError for a small archive with contents that would fill the memory."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > LARGE and unpacked > MOST_PACKED * path.stat().st_size:
        raise DataError(
            f"{path} unpacks to {unpacked / 1e9:.1f} GB, but no image set has such a high compression; copy it again"
        )


def _array(path: Path, arrays: Mapping[str, np.ndarray], key: str, types: tuple[str, ...], axes: int = 1) -> np.ndarray:
    """Return the array named `key`.

    Raise DataError if its type, in NumPy's letters, or its number of axes is different.
    """
    array = arrays[key]
    if not array.dtype.str[1:].startswith(types) or array.ndim != axes:
        wanted = f"{' or '.join(types)} with {axes} axes"
        raise DataError(f"{path}: {key} are {array.dtype} {array.shape}, but {wanted} are expected; copy it again")
    return array


def _decode(path: Path, raw: np.ndarray, offsets: np.ndarray) -> Pixels:
    """Decode concatenated image files to (N,3,H,W) pixels on all cores.

    Threads are sufficient, because Pillow decodes without Python's global lock. Raise DataError for wrong offsets.
    """
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(raw) or (np.diff(offsets) <= 0).any():
        raise DataError(f"{path}: offsets do not divide the {len(raw)} encoded bytes into files; copy it again")
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        images_NHWC = np.stack(list(threads.map(_decode_one, np.split(raw, offsets[1:-1]))))
    return np.ascontiguousarray(images_NHWC.transpose(0, 3, 1, 2))


def _decode_one(encoded: np.ndarray) -> Pixels:
    with Image.open(io.BytesIO(encoded.tobytes())) as image:
        return np.asarray(image.convert("RGB"))
