"""Image sets as uint8 tensors, found on disk or downloaded, checked, and named by a hash of their content.

Search order for a named set: the `root` argument, else FSSL_DATA; then the cache folder (FSSL_CACHE, ~/.cache/fssl),
which torchvision's download fills. In each place torchvision's own layout (the originals) and packed files are
recognised, directly or in a subfolder of the set's name. `digits` comes with scikit-learn. `folder:PATH` is a user's
own set, one folder a class. The root is only read. The order within a set is as stored (packed cifar10 lies
interleaved by class): shuffling is the split's matter.

Departures: SVHN has its own channel statistics, as in SemiFL (the released SSFL code normalises it with CIFAR-10's);
torchvision's EMNIST is turned upright, as the packed sample is (the released code trains on the transposed images).

Shapes: N images, C channels, H x W pixels.
"""

import difflib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmark.data.packed import cache_folder, is_packed, read_split, remembered
from benchmark.data.sources import ORIGINALS, Raw, download, read_digits, read_folder, read_original
from benchmark.errors import ConfigError, DataError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

# Mean and standard deviation of each channel on the 0..1 scale; for a set not listed, computed on its training part.
_MNIST: Statistics = ((0.1307,), (0.3081,))
STATISTICS: Mapping[str, Statistics] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),  # SSFL, released code
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),  # RSCFed, cifar_load.py:199-243
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),  # SemiFL, data.py:11-15; RSCFed the same
    "emnist_balanced": _MNIST,  # SSFL, released code
    "emnist_balanced_small": _MNIST,  # as the whole set
    "mnist": _MNIST,  # its training images (checked in the tests)
    "fashion_mnist": ((0.2860,), (0.3530,)),  # its training images (checked in the tests)
}

PACKED_NOTES: Mapping[str, str] = {
    "cifar10": "127 training and 34 test images from a JPEG copy",
    "cifar100": "lossy WebP, own split: not comparable with published accuracy",
    "fashion_mnist": "own split",
    "mnist": "",
    "ham10000_64": "shrunk to 64x64, one image a lesion: not comparable with published accuracy",
    "emnist_balanced_small": "a sample of 2,000 + 2,000 images: not comparable with published accuracy",
}


NAMES = tuple(dict.fromkeys(["digits", *PACKED_NOTES, *ORIGINALS]))


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Pixels as stored and what is needed to normalise them. Raises DataError where the parts contradict each other."""

    name: str
    train_images_NCHW: Tensor  # uint8
    train_labels_N: Tensor  # int64
    test_images_NCHW: Tensor
    test_labels_N: Tensor
    unlabelled_images_NCHW: Tensor | None = None  # STL-10's
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, on the 0..1 scale
    std: tuple[float, ...]
    content_hash: str  # sha256 of pixels and labels
    note: str = ""  # what a page that shows a number on this set has to say

    def __post_init__(self) -> None:
        parts = {"training": self.train_images_NCHW, "test": self.test_images_NCHW}
        if self.unlabelled_images_NCHW is not None:
            parts["unlabelled"] = self.unlabelled_images_NCHW
        for part, images_NCHW in parts.items():
            shape = tuple(images_NCHW.shape)
            if images_NCHW.dtype != torch.uint8 or len(shape) != 4 or shape[1:] != self.image_shape or not shape[0]:
                raise DataError(
                    f"{self.name}: {part} images are {images_NCHW.dtype} {shape}, "
                    f"expected torch.uint8 of shape (N, *{self.image_shape}) with N > 0"
                )
        if not len(self.mean) == len(self.std) == self.image_shape[0]:
            raise DataError(
                f"{self.name}: images have {self.image_shape[0]} channels, "
                f"mean and std are given for {len(self.mean)} and {len(self.std)}"
            )
        for part, labels_N in {"training": self.train_labels_N, "test": self.test_labels_N}.items():
            if labels_N.dtype != torch.int64 or labels_N.shape != parts[part].shape[:1]:
                raise DataError(
                    f"{self.name}: {part} labels are {labels_N.dtype} {tuple(labels_N.shape)}, expected torch.int64, "
                    f"one for each of the {len(parts[part])} images"
                )
            low, high = int(labels_N.min()), int(labels_N.max())
            if low < 0 or high >= self.num_classes:
                raise DataError(f"{self.name}: {part} labels lie in {low}..{high}, {self.num_classes} classes named")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train_images_NCHW.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def load(name: str, root: Path | None = None) -> DataSet:
    """The set of that name (`NAMES`, or `folder:PATH` with an optional `?size=32`).

    Raises ConfigError for an unknown name, DataError for a set that is absent, damaged or not the expected one.
    """
    if name == "digits":
        return _build(name, read_digits())
    if name.startswith("folder:"):
        return _build(name, read_folder(name))
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
        known = ", ".join([*NAMES, "folder:PATH"])
        raise ConfigError(f"data set {name!r} is unknown: did you mean {near!r}? (known: {known})")
    given = root or os.environ.get("FSSL_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise DataError(f"data folder {given} (root or FSSL_DATA) does not exist: name a folder that holds {name}")
    places = [Path(given).expanduser(), cache_folder()] if given else [cache_folder()]
    for place in places:
        for folder in (place / name, place):
            if name in ORIGINALS and (folder / ORIGINALS[name].marker).exists():
                return _build(name, read_original(name, folder))
        if is_packed(place / name):
            return _build(name, _packed(place / name))
    searched = ", ".join(map(str, places))
    if name in ORIGINALS:
        return _build(name, read_original(name, download(name, searched)))
    raise DataError(f"data set {name} is not in {searched}: set FSSL_DATA to the folder that holds {name}/*.npz")


def at_hand(name: str, root: Path | None = None) -> bool:
    """Whether `load` would find the named set without a download: where it looks, in its order."""
    if name == "digits":  # scikit-learn brings it
        return True
    given = root or os.environ.get("FSSL_DATA")
    places = [Path(given).expanduser(), cache_folder()] if given else [cache_folder()]
    originals = [place / part / ORIGINALS[name].marker for place in places for part in (name, "") if name in ORIGINALS]
    return any(marker.exists() for marker in originals) or any(is_packed(place / name) for place in places)


def _build(name: str, raw: Raw) -> DataSet:
    as_images, as_labels = (lambda x: torch.as_tensor(x).contiguous()), (lambda x: torch.as_tensor(x).to(torch.int64))
    train_images_NCHW, test_images_NCHW = as_images(raw.train[0]), as_images(raw.test[0])
    train_labels_N, test_labels_N = as_labels(raw.train[1]), as_labels(raw.test[1])
    unlabelled = None if raw.unlabelled is None else as_images(raw.unlabelled)
    held = [train_images_NCHW, train_labels_N, test_images_NCHW, test_labels_N, unlabelled]
    tensors = [tensor for tensor in held if tensor is not None]
    mean, std = STATISTICS.get(name) or channel_statistics(train_images_NCHW)
    return DataSet(
        name=name, train_images_NCHW=train_images_NCHW, train_labels_N=train_labels_N,
        test_images_NCHW=test_images_NCHW, test_labels_N=test_labels_N, unlabelled_images_NCHW=unlabelled,
        classes=raw.classes, mean=mean, std=std, note=raw.note,
        content_hash=remembered(f"content {raw.fingerprint}", lambda: _content_hash(tensors))
        if raw.fingerprint else _content_hash(tensors),
    )  # fmt: skip


def _content_hash(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def channel_statistics(images_NCHW: Tensor) -> Statistics:
    """Mean and standard deviation of each channel on the 0..1 scale, from whole numbers: the same on every machine.

    The deviation of a channel is at least one grey level, so that a constant channel can be divided by it.
    """
    means, stds = [], []
    for channel_NHW in images_NCHW.unbind(1):
        counts = np.bincount(channel_NHW.reshape(-1).numpy(), minlength=256).tolist()
        n = sum(counts)
        total = sum(count * grey for grey, count in enumerate(counts))
        squares = sum(count * grey * grey for grey, count in enumerate(counts))
        means.append(total / n / 255)
        stds.append(max((n * squares - total**2) ** 0.5 / n, 1.0) / 255)
    return tuple(means), tuple(stds)


def _packed(folder: Path) -> Raw:
    train, test = read_split(folder, "train"), read_split(folder, "test")
    if train.classes != test.classes:
        raise DataError(f"{folder}: train and test name different classes: copy the whole folder again")
    known = train.known and test.known
    return Raw(
        train=(train.images_NCHW, train.labels_N), test=(test.images_NCHW, test.labels_N), classes=train.classes,
        note=PACKED_NOTES.get(folder.name, "") if known else "packed files of unknown origin",
        fingerprint=f"{train.fingerprint} {test.fingerprint}",
    )  # fmt: skip
