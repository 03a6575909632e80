"""Read a user's images, with one folder per class, as a person sees them.

Images are rotated as their EXIF orientation requires, transparent pixels are shown on white, and a set is grey if all
images are. Hidden files and files of operating systems are ignored. Links to a file that is already read and copies
within a class are also left out. Any other file in a class folder is refused by name. The note of the set lists
everything that is left out.

Shapes: N images, C channels, H x W pixels.
"""

import contextlib
import functools
import hashlib
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from benchmark.data.reading import LabelledImages, Raw, files_below, is_visible, own_split
from benchmark.errors import ConfigError, DataError, one_line
from benchmark.plain import expanded

LARGEST = 1024  # largest side in pixels, also for ?size=
LARGE = 96  # side in pixels above which training is slow; the suite's sets have 8 to 96
GRAY = ("1", "L", "LA", "La", "I")  # Pillow's grey modes, in addition to I;16 in all byte orders
WITH_A_WHOLE_FIRST_FRAME = ("MPO", "PSD")  # formats with further frames that are not an animation


def path_and_option(name: str) -> tuple[str | None, str]:
    """Return ("PATH", "?size=32") for `folder:PATH?size=32`; the option is empty if the name has none.

    Return (None, "") for a data set that is not a folder.
    """
    path, mark, option = name.removeprefix("folder:").partition("?")
    return (path, mark + option) if name.startswith("folder:") else (None, "")


def public_name(name: str) -> str:
    """Return the name that may be published: `folder:pets?size=32`, without the path to the folder.

    Bytes that are not UTF-8 are escaped.
    """
    path, option = path_and_option(name)
    public = f"folder:{Path(path).name}{option}" if path else name
    return public.encode(errors="surrogateescape").decode(errors="backslashreplace")


def canonical_name(name: str) -> str:
    """Return the canonical name of a data set: for a folder, its absolute path without links, and its size.

    Return an impossible name unchanged; `read_folder` refuses it.
    """
    path, option = path_and_option(name)
    size = option.removeprefix("?size=")
    try:
        if option != size and size.isdecimal():
            option = f"?size={int(size)}"
        return f"folder:{expanded(path).resolve()}{option}" if path is not None else name
    except (OSError, RuntimeError, ValueError, ConfigError):  # a loop of links, no home, thousands of digits
        return name


@dataclass(frozen=True)
class Folder:
    """A user's folder of images (`Source`)."""

    name: str

    @property
    def folder(self) -> Path:
        return Path(path_and_option(canonical_name(self.name))[0] or "")

    def files(self) -> Iterable[Path]:
        return files_below(self.folder)

    def read(self) -> Raw:
        return read_folder(self.name)

    def is_listed(self) -> bool | None:
        return None


@dataclass(frozen=True, eq=False)
class _Part:
    """The images of train/, of test/ or of the whole folder, without copies within a class."""

    images_NCHW: np.ndarray  # with three channels, even if all images are grey
    keys: Sequence[tuple[int, str]]  # label and hash of each file
    all_gray: bool
    copies: int

    @property
    def labels_N(self) -> np.ndarray:
        return np.array([label for label, _ in self.keys])


def read_folder(name: str) -> Raw:
    """Read the set of `folder:PATH` or `folder:PATH?size=32`.

    The images are PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/*, which is split 80/20. They are resized to
    the size of the first image, or to size x size pixels. Raise ConfigError for a wrong option, and DataError for a
    folder that is not such a set.
    """
    path, side = _path_and_side(name)
    folder = expanded(path)
    _check_text(folder)
    listings, others = _listings(folder)
    classes = [*listings[0]]
    size = _size_of(listings[0][classes[0]][0]) if side is None else (side, side)
    number = 0
    for listing in listings:
        number += sum(map(len, listing.values()))
    _check_size(folder, size, number)
    if side is None and max(size) > LARGE:
        _tell(
            f"fssl: {folder}: training on {size[0]} x {size[1]} pixels is slow; append ?size=32 to the name to shrink "
            "the images"
        )
    parts = [_read_part(listing, size) for listing in listings]
    note = ", ".join(_left_out(parts, others))
    if note:
        _tell(f"fssl: {folder}: {note}")
    return _raw(folder, parts, classes, note)


def _path_and_side(name: str) -> tuple[str, int | None]:
    """Return ("PATH", 32) for `folder:PATH?size=32`; the side is None if the name has no size.

    Raise ConfigError for a wrong option.
    """
    path, option = path_and_option(name)
    key, _, value = option.removeprefix("?").partition("=")
    if option in ("", "?"):
        return path or "", None
    if key != "size" or not value.isdecimal() or not 1 <= int(value[:9]) <= LARGEST:
        raise ConfigError(
            f"data set {name!r}: option {option[1:]!r} must be size=PIXELS, from 1 to {LARGEST}, for example size=32"
        )
    return path or "", int(value)


def _listings(folder: Path) -> tuple[list[dict[str, list[Path]]], list[str]]:
    """Return the files of each class of train/ and test/, or of the folder itself, with equal orders of classes.

    Also return the names of the other folders next to train/ and test/. Raise DataError if the folder is not such a
    set.
    """
    folders, others = _parts(folder)
    listings = [_classes(part) for part in folders]
    _check_classes(folder, listings)
    classes = [*listings[0]]
    listings = [_in_order(listing, classes) for listing in listings]
    _tell_nested_parts(folder, folders)
    return listings, others


def _raw(folder: Path, parts: Sequence[_Part], classes: list[str], note: str) -> Raw:
    """Return the set, with one channel if all images are grey. A folder without train/ and test/ is split 80/20."""
    channels = 1 if all(part.all_gray for part in parts) else 3
    labelled = [LabelledImages(part.images_NCHW[:, :channels], part.labels_N) for part in parts]
    if len(labelled) == 2:
        train, test = labelled
        return Raw(train=train, test=test, classes=tuple(classes), note=note)
    (whole,) = labelled
    counts_d = np.bincount(whole.labels_N, minlength=len(classes))
    if counts_d.min() < 2:
        raise DataError(f"{folder}: class {classes[counts_d.argmin()]} has 1 image; add a second one for the test part")
    test_d = [max(1, round(0.2 * int(count))) for count in counts_d]
    raw = own_split(whole.images_NCHW, whole.labels_N, test_d, "folder", classes)
    return replace(raw, note=", ".join(filter(None, (raw.note, note))))


def number_of_classes(name: str) -> int:
    """Return the number of class folders of `folder:PATH`, or 0 for other names and for folders that cannot be read."""
    path, _ = path_and_option(name)
    if path is None:
        return 0
    try:
        parts, _ = _parts(expanded(path))
        return len(_visible_folders(parts[0]))
    except (DataError, ConfigError):  # `read_folder` reports the problem
        return 0


@functools.cache  # prints each line once per process, even if the set is read several times
def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _parts(folder: Path) -> tuple[list[Path], list[str]]:
    """Return train/ and test/, or the folder itself, and the names of the other folders next to train/ and test/.

    Raise DataError if the parts of the set have other names, such as train_images/ and test_images/, because they would
    be taken for classes.
    """
    names = [path.name for path in _visible_folders(folder)]
    if {"train", "test"} - {*names} and (pair := _named_as_parts(names)):
        raise DataError(
            f"{folder}: {pair[0]}/ and {pair[1]}/ look like parts of the set, but would be taken for classes; rename "
            "them to train/ and test/"
        )
    of_user = [name for name in ("train", "test") if name in names]
    if len(of_user) == 1:
        raise DataError(f"{folder} contains only {of_user[0]}/; add the other one of train/ and test/")
    if not of_user:
        return [folder], []
    beside = [name for name in names if name not in of_user]
    return [folder / name for name in of_user], beside


OF_PART = r"(set|data|images?|imgs?)?"  # may follow directly, as in "trainset" and "testset"
TRAINING = r"train(?:ing)?"
MEASURING = r"(?:test(?:ing)?|val(?:id|idation)?|dev(?:elopment)?|eval(?:uation)?|hold[-_ ]?out)"


def _named_as_parts(names: Sequence[str]) -> tuple[str, str] | None:
    """Find two names that differ only in a word for training and a word for testing, like "train_images" and
    "test_images"; return None if there are none.
    """

    def rest(name: str, word: str) -> str | None:
        """Return the name without the word; return None if it does not contain it separated from other letters."""
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # trainImages
        found = re.fullmatch(rf"((?:.*[^a-z])?){word}{OF_PART}((?:[^a-z].*)?)", spaced)
        return None if found is None else "/".join((part or "").strip("-_. 0123456789") for part in found.groups())

    of_training = {rest(name, TRAINING): name for name in names}
    of_measuring = {rest(name, MEASURING): name for name in names}
    both = [key for key in of_training if key is not None and key in of_measuring]
    return (of_training[both[0]], of_measuring[both[0]]) if both else None


def _tell_nested_parts(folder: Path, parts: Sequence[Path]) -> None:
    """Warn on standard error if all classes contain the same folders, which may be parts of the set."""
    below = []
    for part in parts:
        for path in _visible_folders(part):
            below.append({inner.name for inner in _visible_folders(path)})
    common = sorted(set.intersection(*below)) if below else []
    if len(common) > 1:
        names = ", ".join(path.name for path in _visible_folders(parts[0])[:5])
        _tell(
            f"fssl: {folder}: the classes are {names}; the folders {', '.join(common[:3])} in each class are read as "
            "one class"
        )


def _check_text(path: Path) -> None:
    """Raise DataError for a path that is not valid UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise DataError(f"{shown}: the name of this folder is not UTF-8; rename it") from None


def _check_size(folder: Path, size: tuple[int, int], files: int) -> None:
    """Raise DataError if images of this size have a side above `LARGEST` or would fill half of the memory."""
    width, height = size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = 3 * width * height * files
    if max(size) > LARGEST or needed > memory / 2:
        raise DataError(
            f"{folder}: {files} images of {width} x {height} pixels are too large to learn from "
            f"({needed / 1e9:.2g} GB); append ?size=32 to the name to shrink them"
        )


def _visible_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path.name))
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise DataError(f"{folder} is not an image set with one folder per class ({one_line(error)})") from None


def _classes(part: Path) -> dict[str, list[Path]]:
    """Map each class to its files; class names are in the composed form of Unicode on every file system.

    Raise DataError if there is no class, if a class has no files, or if two class names differ only in Unicode form.
    """
    listing: dict[str, list[Path]] = {}
    for path in _visible_folders(part):
        _check_text(path)
        name = unicodedata.normalize("NFC", path.name)
        if name in listing:
            raise DataError(
                f"{path}: a second folder has this name in a different form of Unicode; merge the two folders"
            )
        listing[name] = files_below(path)
    if not listing:
        raise DataError(f"{part} is not an image set with one folder per class")
    for name, files in listing.items():
        if not files:
            raise DataError(f"{part / name} has no images; add some, or remove the folder")
    return listing


def _check_classes(folder: Path, listings: Sequence[Mapping[str, object]]) -> None:
    first, other = listings[0].keys(), listings[-1].keys()
    if alone := sorted(first ^ other):
        where = "train/" if alone[0] in first else "test/"
        raise DataError(f"{folder}: class {alone[0]} is only in {where}; add it to both of train/ and test/")
    if len(first) < 2:
        raise DataError(f"{folder} has {len(first)} class folder, {next(iter(first))}, but at least two are needed")


def _in_order(listing: Mapping[str, list[Path]], classes: Iterable[str]) -> dict[str, list[Path]]:
    return {name: listing[name] for name in classes}


def _size_of(path: Path) -> tuple[int, int]:
    with _opened(path) as (image, _):
        return _as_seen(image).size


def _read_part(listing: Mapping[str, Sequence[Path]], size: tuple[int, int]) -> _Part:
    """Read the images of a part, resized to `size`, without copies within a class.

    Raise DataError for a file that is not an image or that contains several images.
    """
    files = [(label, path) for label, paths in enumerate(listing.values()) for path in paths]
    images_NCHW = np.empty((len(files), 3, size[1], size[0]), dtype=np.uint8)
    grays = []
    keys = dict[tuple[int, str], int]()
    for label, path in files:
        with _opened(path) as (image, digest):
            grays.append(_is_gray(image))
            if keys.setdefault((label, digest), len(keys)) == len(keys) - 1:
                seen = _as_seen(image).convert("RGB").resize(size, Image.Resampling.BILINEAR)
                images_NCHW[len(keys) - 1] = np.asarray(seen).transpose(2, 0, 1)
    return _Part(images_NCHW[: len(keys)], [*keys], all(grays), len(files) - len(keys))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Image.Image, str]]:
    """Yield the image of a file and the sha256 (hex) of its content. Raise DataError if it is not a readable image."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise DataError(f"{path} is not an image in a readable format; save it as PNG, or move it away")
    if not path.is_file():  # reading a pipe or a device might never end
        raise DataError(f"{path} is not a regular file; move it away")
    try:
        content = path.read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format not in WITH_A_WHOLE_FIRST_FRAME:
                raise ValueError(f"it has {frames} frames; save only one of them")
            yield image, hashlib.sha256(content).hexdigest()
    except DataError:
        raise
    except Exception as error:  # Pillow and its plugins raise various errors for damaged files
        raise DataError(f"{path} is not a readable image ({one_line(error)})") from error


def _is_gray(image: Image.Image) -> bool:
    if image.mode == "P":
        palette = image.getpalette("RGB") or []
        return palette[::3] == palette[1::3] == palette[2::3]
    return image.mode in GRAY or image.mode.startswith("I;16")


def _left_out(parts: Sequence[_Part], others: Sequence[str]) -> Iterator[str]:
    """Yield phrases about the folders and copies that are left out, and the images that appear several times."""
    if others:
        yield f"{', '.join(f'{name}/' for name in others)} left out"
    if copies := sum(part.copies for part in parts):
        yield f"{copies} copies left out"
    digests = [digest for part in parts for _, digest in part.keys]
    if in_several := len(digests) - len({*digests}):
        yield f"{in_several} images in several classes, or in train/ and test/"


UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _upright(opened: Image.Image) -> Image.Image:
    """Turn the image as its EXIF orientation requires.

    Pillow's `exif_transpose` also rewrites all other tags, and fails for tags that viewers ignore, such as a rational
    number -1/0.
    """
    opened.load()
    turn = UPRIGHT.get(opened.getexif().get(ExifTags.Base.Orientation))  # type: ignore[arg-type]
    return opened if turn is None else opened.transpose(turn)


def _as_seen(opened: Image.Image) -> Image.Image:
    """Return the image upright, on white instead of transparent pixels, and with eight bits per channel.

    Raise ValueError if its pixels are not integers from 0 to 65535.
    """
    image = _upright(opened)
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours).convert("RGB")
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are not integers from 0 to 65535; save it with 8 or 16 bits")
        return Image.fromarray((values // 257).astype(np.uint8))  # Pillow would clip to white
    return image
