"""A user's own images, one folder a class, read as a person sees them.

Orientation by EXIF, transparency over white, gray where every image is gray. Hidden files and those of systems are
passed over, and so are links to a file that is there already and copies within a class. What else is in a class folder
is refused by name, and whatever is left out stands in the note of the set.

Shapes: N images, C channels, H x W pixels.
"""

import contextlib
import functools
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from benchmark.data.sources import Raw, own_split
from benchmark.errors import ConfigError, DataError, one_line
from benchmark.plain import expanded

LARGEST = 1024  # pixels of a side that ?size= may ask for
LARGE = 96  # pixels of a side; the suite's own sets have 8 to 64
OF_SYSTEMS = ("__MACOSX", "Thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "@eaDir")
GRAY = ("1", "L", "LA", "La", "I")  # of Pillow's modes; and I;16 in all byte orders
WITH_A_WHOLE_FIRST_FRAME = ("MPO", "PSD")  # formats in which further frames are no animation


@dataclass(kw_only=True)
class _Part:
    """The images of train/, of test/, or of the whole folder."""

    images: dict[tuple[int, str], Path] = field(default_factory=dict)  # (label, hash of the file) -> its path
    copies: int = 0  # left out
    all_gray: bool = True


def read_folder(name: str) -> Raw:
    """The set of `folder:PATH` or `folder:PATH?size=32`.

    PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/*, which is split 80/20. Images are resized to the first
    one's size, or to size x size pixels. Raises ConfigError for a bad option, DataError for a folder that cannot be
    such a set.
    """
    path, _, option = name.removeprefix("folder:").partition("?")
    key, _, value = option.partition("=")
    if option and (key != "size" or not value.isdecimal() or not 1 <= int(value[:9]) <= LARGEST):
        raise ConfigError(f"data set {name!r}: option {option!r} must be size=PIXELS, from 1 to {LARGEST}: size=32")
    folder = expanded(path)
    parts, others = _parts(folder)
    listings = [_classes(part) for part in parts.values()]
    _check_classes(folder, listings)
    read = [_looked_through(listing) for listing in listings]
    first = next(iter(read[0].images.values()))
    with _named_if_unreadable(first):
        size = (int(value), int(value)) if option else _as_seen(first).size
    if not option and max(size) > LARGE:
        _tell(f"fssl: {folder}: {size[0]} x {size[1]} pixels are slow to learn; ?size=32 after the name shrinks images")
    mode = "L" if all(part.all_gray for part in read) else "RGB"
    arrays = [_pixels(part, mode, size) for part in read]
    note = ", ".join(_left_out(read, others))
    if note:
        _tell(f"fssl: {folder}: {note}")
    classes = tuple(listings[0])
    if len(parts) == 2:
        return Raw(train=arrays[0], test=arrays[1], classes=classes, note=note)
    counts_d = np.bincount(arrays[0][1], minlength=len(classes))
    if counts_d.min() < 2:
        raise DataError(f"{folder}: class {classes[counts_d.argmin()]} has 1 image: add a second one for the test part")
    split = own_split(*arrays[0], [max(1, round(0.2 * int(count))) for count in counts_d], "folder")
    return Raw(classes=classes, **{**split, "note": ", ".join(filter(None, (split["note"], note)))})


def number_of_classes(name: str) -> int:
    """The number of class folders of `folder:PATH`. 0 for other names, and where the folder cannot be read."""
    if not name.startswith("folder:"):
        return 0
    try:
        parts, _ = _parts(expanded(name.removeprefix("folder:").partition("?")[0]))
        return len(_visible_folders(next(iter(parts.values()))))
    except (DataError, ConfigError):  # `read_folder` says what is wrong with it
        return 0


@functools.cache  # once a process, however often the set is read
def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _parts(folder: Path) -> tuple[Mapping[str, Path], Sequence[str]]:
    """train/ and test/, or the folder itself; and the folders beside them."""
    names = [path.name for path in _visible_folders(folder)]
    of_user = [name for name in ("train", "test") if name in names]
    if len(of_user) == 1:
        raise DataError(f"{folder}: has {of_user[0]}/ only: add the other of train/ and test/")
    if not of_user:
        return {"all": folder}, []
    return {name: folder / name for name in of_user}, [name for name in names if name not in of_user]


def _visible_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and _is_visible(path.name))
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise DataError(f"{folder}: no image set with one folder a class ({one_line(error)})") from None


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and not name.endswith("~") and name not in OF_SYSTEMS


def _classes(part: Path) -> dict[str, list[Path]]:
    """Class -> its files."""
    listing = {path.name: list(_files_below(path)) for path in _visible_folders(part)}
    if not listing:
        raise DataError(f"{part}: no image set with one folder a class")
    for name, files in listing.items():
        if not files:
            raise DataError(f"{part / name}: has no image: add some, or remove the folder")
    return listing


def _files_below(folder: Path) -> Iterator[Path]:
    """Each file once, whatever links lead to it."""
    seen: set[Path] = set()
    found: list[tuple[str, list[str]]] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        folders[:] = [name for name in folders if _is_visible(name) and real not in seen]
        if real not in seen:
            found.append((parent, names))
        seen.add(real)
    for parent, names in sorted(found):
        for path in (Path(parent, name) for name in sorted(names) if _is_visible(name)):
            if (real := path.resolve()) not in seen:
                seen.add(real)
                yield path


def _check_classes(folder: Path, listings: Sequence[Mapping[str, object]]) -> None:
    classes = listings[0].keys()
    for other in listings[1:]:
        if alone := sorted(classes ^ other.keys()):
            where = "train/" if alone[0] in classes else "test/"
            raise DataError(f"{folder}: class {alone[0]} is in {where} alone: train/ and test/ must have the same ones")
    if len(classes) < 2:
        raise DataError(f"{folder}: has {len(classes)} class folder, {next(iter(classes))}: two or more are needed")


def _looked_through(listing: Mapping[str, Sequence[Path]]) -> _Part:
    """Which files are images, without copies within a class, and whether all are gray. Raises DataError."""
    part, known = _Part(), Image.registered_extensions()
    for label, path in ((label, path) for label, files in enumerate(listing.values()) for path in files):
        if path.suffix.lower() not in known:
            raise DataError(f"{path}: is not an image that can be read here: save it as PNG, or move it away")
        with _named_if_unreadable(path):
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                part.all_gray = _is_gray(image) and part.all_gray
                frames = getattr(image, "n_frames", 1)
                if frames > 1 and image.format not in WITH_A_WHOLE_FIRST_FRAME:
                    raise ValueError(f"it has {frames} frames; save the one to learn")
        key = (label, hashlib.sha256(content).hexdigest())
        part.copies += key in part.images
        part.images.setdefault(key, path)
    return part


def _is_gray(image: Image.Image) -> bool:
    if image.mode == "P":
        palette = image.getpalette("RGB") or []
        return palette[::3] == palette[1::3] == palette[2::3]
    return image.mode in GRAY or image.mode.startswith("I;16")


def _left_out(read: Sequence[_Part], others: Sequence[str]) -> Iterator[str]:
    """What is not learned once, in words."""
    if others:
        yield f"{', '.join(f'{name}/' for name in others)} left out"
    if copies := sum(part.copies for part in read):
        yield f"{copies} copies left out"
    files = [{digest for _, digest in part.images} for part in read]
    if in_several := sum(len(part.images) for part in read) - len(set().union(*files)):
        yield f"{in_several} images in several classes, or in train/ and test/"


def _pixels(part: _Part, mode: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    images_NCHW = np.empty((len(part.images), 1 if mode == "L" else 3, size[1], size[0]), dtype=np.uint8)
    for index, path in enumerate(part.images.values()):
        with _named_if_unreadable(path):
            pixels = np.asarray(_as_seen(path).convert(mode).resize(size, Image.Resampling.BILINEAR))
        images_NCHW[index] = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
    return images_NCHW, np.array([label for label, _ in part.images])


def _as_seen(path: Path) -> Image.Image:
    """Upright, over white, with eight bits a channel."""
    with Image.open(path) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        if image.has_transparency_data:
            colours = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours).convert("RGB")
        if image.mode == "F" or image.mode.startswith("I"):
            values = np.asarray(image)
            if image.mode == "F" or values.min() < 0 or values.max() > 65535:
                raise ValueError("its pixels are not whole numbers from 0 to 65535; save it with 8 or 16 bits")
            return Image.fromarray((values // 257).astype(np.uint8))  # Pillow would clip to white
        image.load()
        return image


@contextlib.contextmanager
def _named_if_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # SyntaxError: a broken PNG
        raise DataError(f"{path}: not a readable image ({one_line(error)})") from error
