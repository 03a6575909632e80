"""Find image data sets on disk or download them, check them, and load them as uint8 tensors.

A named set is searched for in the `root` argument or, without it, in FSSL_DATA, and then in the cache folder
(FSSL_CACHE, ~/.cache/fssl), into which torchvision downloads. In each folder, torchvision's layout of the original
files is recognised directly or in a subfolder with the name of the set, and packed files are recognised in such a
subfolder. `digits` comes with scikit-learn. `folder:PATH` is a user's set, with one folder per class. The root is never
written to. A set is identified by a hash of its content. Images keep their stored order, which is interleaved by class
in packed cifar10; `split` shuffles them.

Deviations: SVHN is normalised with SVHN's channel statistics, as in SemiFL, while the released SSFL code uses the
statistics of CIFAR-10. torchvision's EMNIST is turned upright, like the packed sample, while the released code trains
on the transposed images.

Shapes: N images, C channels, H x W pixels.
"""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmark.config import from_plain, nearest, quoted
from benchmark.data.folder import Folder, public_name
from benchmark.data.packed import Packed
from benchmark.data.reading import UNKNOWN_ORIGIN, LabelledImages, Raw, Source, cache_folder
from benchmark.data.sources import Digits, Original, download
from benchmark.errors import ConfigError, DataError
from benchmark.plain import expanded

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # means and standard deviations per channel, 0..1 scale


@dataclass(frozen=True, kw_only=True)
class ListedDataSet:
    """The properties of a data set that are known without loading it."""

    image_shape: tuple[int, int, int]  # channels, rows, columns
    num_classes: int
    train: int  # number of training images
    test: int  # number of test images
    extra: int = 0  # number of images without labels
    flip: bool  # whether a mirrored image still shows its class
    statistics: Statistics | None = None  # None if they are computed from the training images
    original: tuple[str, ...] = ()  # torchvision's layout: a path that identifies it, its reader, reader arguments
    by_hand: str = ""  # address of original files that torchvision does not download
    packed_sha256: Mapping[str, str] = field(default_factory=dict)  # hashes of the known packed files
    content_sha256: str = ""  # `DataSet.content_hash` of torchvision's files, if these have no other checksum
    packed_note: str = ""  # note for pages with numbers on the packed files

    def original_in(self, folder: Path, name: str) -> Original | None:
        """Return torchvision's files of the set, or None if the folder does not have them."""
        if not self.original:
            return None
        marker, reader, *arguments = self.original
        source = Original(name, marker, reader, tuple(arguments), folder)
        return source if source.is_here else None


# The entries of datasets.toml; README.md of this folder explains how to add one.
DATASETS: Mapping[str, ListedDataSet] = {
    name: from_plain(ListedDataSet, entry)
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """A data set with its images as stored and the statistics for their normalisation.

    Raise DataError if the images, labels and classes contradict each other.
    """

    name: str
    train_images_NCHW: Tensor  # uint8
    train_labels_N: Tensor  # int64
    test_images_NCHW: Tensor
    test_labels_N: Tensor
    unlabelled_images_NCHW: Tensor | None = None  # STL-10's
    classes: tuple[str, ...]
    # Names of unknown classes. Their labels follow the labels of `classes` (open_set.py). Empty if all classes are
    # known.
    unknown: tuple[str, ...] = ()
    mean: tuple[float, ...]  # per channel, on the 0..1 scale
    std: tuple[float, ...]
    content_hash: str  # sha256 of pixels and labels
    test_statistics: Statistics | None = None  # for the evaluation images, if they are normalised differently
    note: str = ""  # note for pages with numbers on this set

    def __post_init__(self) -> None:
        training, test = (self.train_images_NCHW, self.train_labels_N), (self.test_images_NCHW, self.test_labels_N)
        for part, (images_NCHW, labels_N) in {"training": training, "test": test}.items():
            if images_NCHW.dtype != torch.uint8 or images_NCHW.shape[1:] != self.image_shape or not len(images_NCHW):
                raise DataError(
                    f"{self.name}: {part} images are {images_NCHW.dtype} {tuple(images_NCHW.shape)}, "
                    f"but they must be torch.uint8 of shape (N, *{self.image_shape}) with N > 0"
                )
            if len(labels_N) != len(images_NCHW):
                raise DataError(f"{self.name} has {len(images_NCHW)} {part} images, but {len(labels_N)} labels")
            low, high = int(labels_N.min()), int(labels_N.max())
            named = self.num_classes + len(self.unknown)
            if low < 0 or high >= named:
                raise DataError(f"{self.name}: {part} labels range over {low}..{high}, but {named} classes are named")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train_images_NCHW.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """Count the classes that a network predicts, which are the known ones."""
        return len(self.classes)


def load(name: str, root: Path | None = None) -> DataSet:
    """Load a data set by name: an entry of `DATASETS`, or `folder:PATH`, optionally with `?size=32`.

    Raise ConfigError for an unknown name, and DataError for a set that is absent, damaged or not the expected one.
    """
    source = Folder(name) if name.startswith("folder:") else locate(name, root) or _downloaded(name, root)
    data = _build(public_name(name), source.read())
    if name in DATASETS:
        if data.note == UNKNOWN_ORIGIN and data.content_hash == DATASETS[name].content_sha256:
            data = replace(data, note="")
        check_counts(data)
    return data


def _downloaded(name: str, root: Path | None) -> Source:
    """Download a set that `locate` did not find. Raise as `load` does."""
    entry = entry_of(name)
    given = root or os.environ.get("FSSL_DATA")
    if given and not expanded(given).is_dir():
        raise DataError(f"data folder {given} does not exist; set --data-root or FSSL_DATA to a folder with {name}")
    searched = ", ".join(map(str, _folders_searched(root)))
    if entry.by_hand or not entry.original:
        unpack = f"unpack {entry.by_hand} there, as {name}/train and so on"
        remedy = unpack if entry.by_hand else f"set FSSL_DATA to the folder that contains {name}/*.npz"
        raise DataError(f"data set {name} is not in {searched}: {remedy}")
    source = entry.original_in(download(name, entry.original, searched), name)
    assert source is not None
    return source


def check_counts(data: DataSet) -> None:
    """Raise DataError if the set differs in size, classes or image shape from the listed set of its name."""
    entry = entry_of(data.name)
    words = "{:,} training and {:,} test images of {} classes and shape {}".format
    here = words(len(data.train_labels_N), len(data.test_labels_N), data.num_classes, data.image_shape)
    listed = words(entry.train, entry.test, entry.num_classes, entry.image_shape)
    if here != listed:
        raise DataError(
            f"{data.name} has {here}, but that set has {listed}; copy it again, or name your set as folder:PATH"
        )


def entry_of(name: str) -> ListedDataSet:
    """Return the entry of `DATASETS` with this name. Raise ConfigError for an unknown name."""
    if name not in DATASETS:
        hint = nearest(name, DATASETS)
        raise ConfigError(f"data.name: unknown data set {quoted(name)}; {hint} (for your images, type folder:PATH)")
    return DATASETS[name]


def locate(name: str, root: Path | None = None) -> Source | None:
    """Find the source that `load` reads a set from; return None if it is unknown or not on this machine."""
    if name == "digits":
        return Digits()
    if name.startswith("folder:"):
        return source if (source := Folder(name)).folder.is_dir() else None
    if (entry := DATASETS.get(name)) is None:
        return None
    for parent in _folders_searched(root):
        for folder in (parent / name, parent):
            if original := entry.original_in(folder, name):
                return original
        if (packed := Packed(parent / name, entry.packed_sha256, entry.packed_note)).is_here:
            return packed
    return None


def is_available(name: str) -> bool:
    """Return whether `load` finds the data without a download."""
    return locate(name) is not None


def _folders_searched(root: Path | None) -> list[Path]:
    given = root or os.environ.get("FSSL_DATA")
    return [expanded(given), cache_folder()] if given else [cache_folder()]


def shape_and_classes_of(name: str) -> tuple[tuple[int, int, int], int]:
    """Return (channels, rows, columns) and the number of classes; only a folder of images is loaded for this.

    Raise the same errors as `load`.
    """
    data = load(name) if name.startswith("folder:") else entry_of(name)
    return data.image_shape, data.num_classes


def statistics_of(name: str, train_images_NCHW: Tensor) -> Statistics:
    """Return the published channel statistics of the set, or the statistics of these images if none are listed."""
    own = DATASETS[name].statistics if name in DATASETS else None
    return own or channel_statistics(train_images_NCHW)


def as_released(data: DataSet) -> DataSet:
    """Return the same images, normalised as in SAGE's released code (dataset.py:123, SAGE.py:238-275).

    Training images are normalised with the statistics of CIFAR-10, and test images with the statistics of the set
    itself; the standard deviations for CIFAR-10's test images are a fifth smaller. For a set that is not RGB, the
    training statistics stay unchanged, and the standard deviation for test images is reduced by CIFAR-10's mean ratio.
    """
    rgb = DATASETS["cifar10"].statistics
    assert rgb is not None
    smaller = (0.2023, 0.1994, 0.2010)
    if data.name == "cifar10":
        return replace(data, test_statistics=(data.mean, smaller))
    if len(data.mean) == len(smaller):
        return replace(data, mean=rgb[0], std=rgb[1], test_statistics=(data.mean, data.std))
    ratio = sum(smaller) / sum(rgb[1])
    return replace(data, test_statistics=(data.mean, tuple(ratio * deviation for deviation in data.std)))


def _build(name: str, raw: Raw) -> DataSet:
    train, test = (_tensors_of(part) for part in (raw.train, raw.test))
    unlabelled = None if raw.unlabelled is None else torch.as_tensor(raw.unlabelled).contiguous()
    digest = hashlib.sha256()
    for tensor in (train.images_NCHW, train.labels_N, test.images_NCHW, test.labels_N, unlabelled):
        if tensor is not None:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(tensor.numpy().data)
    mean, std = statistics_of(name, train.images_NCHW)
    return DataSet(
        name=name,
        train_images_NCHW=train.images_NCHW,
        train_labels_N=train.labels_N,
        test_images_NCHW=test.images_NCHW,
        test_labels_N=test.labels_N,
        unlabelled_images_NCHW=unlabelled,
        classes=raw.classes,
        mean=mean,
        std=std,
        note=raw.note,
        content_hash=digest.hexdigest(),
    )


def _tensors_of(part: LabelledImages) -> LabelledImages:
    images_NCHW = torch.as_tensor(part.images_NCHW).contiguous()
    return LabelledImages(images_NCHW, torch.as_tensor(part.labels_N).to(torch.int64))


def channel_statistics(images_NCHW: Tensor) -> Statistics:
    """Compute the mean and standard deviation of each channel on the 0..1 scale.

    The sums are integers, so the result is equal on every machine. A standard deviation is at least one grey level, so
    that a constant channel can be divided by it.
    """
    means, stds = [], []
    for channel_NHW in images_NCHW.unbind(1):
        counts_V = np.bincount(channel_NHW.reshape(-1).numpy(), minlength=256)
        n, total, squares = (int(counts_V @ np.arange(256) ** power) for power in (0, 1, 2))
        means.append(total / n / 255)
        stds.append(max((n * squares - total**2) ** 0.5 / n, 1.0) / 255)
    return tuple(means), tuple(stds)
