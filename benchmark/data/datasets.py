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

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmark.config import nearest, shown
from benchmark.data.packed import cache_folder, is_packed, read_split
from benchmark.data.sources import (
    Original,
    Raw,
    cifar,
    download,
    mnist,
    read_digits,
    read_folder,
    read_original,
    stl10,
    svhn,
)
from benchmark.errors import ConfigError, DataError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, 0..1 scale


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a data set without loading it."""

    image_shape: tuple[int, int, int]  # channels, rows, columns
    num_classes: int
    train: int  # images
    test: int
    extra: int = 0  # images without labels
    flip: bool  # whether a mirrored image still shows its class
    statistics: Statistics | None = None  # None: computed from the training images
    original: Original | None = None  # how torchvision has it; None: it has not
    packed_sha256: Mapping[str, str] = field(default_factory=dict)  # of the packed files that are known
    packed_note: str = ""  # what a page that shows a number on the packed files has to say


_MNIST: Statistics = ((0.1307,), (0.3081,))  # of MNIST's training images (checked in the tests)

DATASETS: Mapping[str, Known] = {
    "digits": Known(image_shape=(1, 8, 8), num_classes=10, train=1397, test=400, flip=False),
    "cifar10": Known(
        image_shape=(3, 32, 32),
        num_classes=10,
        train=50_000,
        test=10_000,
        flip=True,
        statistics=((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),  # SSFL, released code
        original=Original(marker="cifar-10-batches-py", read=cifar("CIFAR10")),
        packed_note="127 training and 34 test images from a JPEG copy",
        packed_sha256={
            "test.npz": "8fe3b6ec21e5a7277a567a519b275f296fa1f831217dd8c3c18c46b1855afcd8",
            "train_0.npz": "f6b42cf8b928456e868e30f757eff84776a63219b8bac9291bd59135cd54f729",
            "train_1.npz": "b4545c89a6b117c2cacdf256e7c7243121e822393e92cb98065a957e787513ee",
        },
    ),
    "cifar100": Known(
        image_shape=(3, 32, 32),
        num_classes=100,
        train=50_000,
        test=10_000,
        flip=True,
        statistics=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),  # RSCFed, cifar_load.py:199-243
        original=Original(marker="cifar-100-python", read=cifar("CIFAR100")),
        packed_note="lossy WebP, own split: not comparable with published accuracy",
        packed_sha256={
            "test.npz": "e958a1cfcbdedc1c0f250b93b69411e2e636d20834de435038227508da69b6bd",
            "train.npz": "9d6ef0637b325cfd38c162f952a6fb3538a452144312532b5c4ffe9ebe187823",
        },
    ),
    "fashion_mnist": Known(
        image_shape=(1, 28, 28),
        num_classes=10,
        train=60_000,
        test=10_000,
        flip=True,
        statistics=((0.2860,), (0.3530,)),  # of its training images (checked in the tests)
        original=Original(marker="FashionMNIST/raw", read=mnist("FashionMNIST")),
        packed_note="own split",
        packed_sha256={
            "test.npz": "d5a3a56f184d5ece32da22130dce4c422745d97f52bec292bc93cf2b5bce711f",
            "train.npz": "8357ed31b21aefb1d13fdbb5c7738fd523fb676d2c3bfdc4b655295fc427a5d7",
        },
    ),
    "mnist": Known(
        image_shape=(1, 28, 28),
        num_classes=10,
        train=60_000,
        test=10_000,
        flip=False,
        statistics=_MNIST,
        original=Original(marker="MNIST/raw", read=mnist("MNIST")),
        packed_sha256={
            "test.npz": "6ff785fc71ee7032f668d84a317722438dc991f01edeb1db5ced21be8cb8d8d1",
            "train.npz": "6dd6fa93dc1c1067575cdfb6d98b0a917e5be68be755fe2e92be7636a0dc7a97",
        },
    ),
    "ham10000_64": Known(
        image_shape=(3, 64, 64),
        num_classes=7,
        train=5_984,
        test=1_512,
        flip=True,
        packed_note="shrunk to 64x64, one image a lesion: not comparable with published accuracy",
        packed_sha256={
            "test.npz": "e33e5acd2f46a0b512163049513488e794437ebccaa16a6ee1a9409ec0b183e7",
            "train.npz": "c74966f67bf69b5478a820b42e7f2fb15e9172bdb0b2b748f20cfcbdda921c20",
        },
    ),
    "emnist_balanced_small": Known(
        image_shape=(1, 28, 28),
        num_classes=47,
        train=2_000,
        test=2_000,
        flip=False,
        statistics=_MNIST,  # as the whole set
        packed_note="a sample of 2,000 + 2,000 images: not comparable with published accuracy",
        packed_sha256={
            "test.npz": "6a4df82856f4ad61244a6bc526e1fb1be1486d02c145b55402fb19b612d5a8d5",
            "train.npz": "b486987104122b8c7e751f38b86b52f3fe35dfc189c8da3fa05d1c8425704419",
        },
    ),
    "svhn": Known(
        image_shape=(3, 32, 32),
        num_classes=10,
        train=73_257,
        test=26_032,
        flip=False,
        statistics=((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),  # SemiFL, data.py:11-15; RSCFed the same
        original=Original(marker="train_32x32.mat", read=svhn),
    ),
    "emnist_balanced": Known(
        image_shape=(1, 28, 28),
        num_classes=47,
        train=112_800,
        test=18_800,
        flip=False,
        statistics=_MNIST,  # SSFL, released code
        original=Original(marker="EMNIST/raw", read=mnist("EMNIST", split="balanced", transposed=True)),
    ),
    "stl10": Known(
        image_shape=(3, 96, 96),
        num_classes=10,
        train=5_000,
        test=8_000,
        extra=100_000,
        flip=True,
        original=Original(marker="stl10_binary", read=stl10),
    ),
}


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
    """The set of that name (of `DATASETS`, or `folder:PATH` with an optional `?size=32`).

    Raises ConfigError for an unknown name, DataError for a set that is absent, damaged or not the expected one.
    """
    if name == "digits":
        return _build(name, read_digits())
    if name.startswith("folder:"):
        return _build(public_name(name), read_folder(name))
    original = known(name).original
    given = root or os.environ.get("FSSL_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise DataError(f"data folder {given} does not exist: --data-root or FSSL_DATA must name a folder with {name}")
    folder = find(name, root)
    if folder is None:
        searched = ", ".join(map(str, _places(root)))
        if original is None:
            raise DataError(
                f"data set {name} is not in {searched}: set FSSL_DATA to the folder that holds {name}/*.npz"
            )
        folder = download(name, original, searched)
    if original is not None and (folder / original.marker).exists():
        return _build(name, read_original(name, original, folder))
    return _build(name, _packed(name, folder))


def public_name(name: str) -> str:
    """As others are told it: a folder of images by its own name, `folder:pets?size=32`, without the path to it."""
    if not name.startswith("folder:"):
        return name
    path, mark, option = name.removeprefix("folder:").partition("?")
    return f"folder:{Path(path).name}{mark}{option}"


def known(name: str) -> Known:
    """Raises ConfigError for a name that is not in `DATASETS`."""
    if name not in DATASETS:
        hint = nearest(name, DATASETS)
        raise ConfigError(f"data.name: unknown data set {shown(name)}; {hint} (your own images: folder:PATH)")
    return DATASETS[name]


def find(name: str, root: Path | None = None) -> Path | None:
    """The folder from which `load` reads a set of `DATASETS`; None where it would have to be downloaded."""
    original = DATASETS[name].original
    for place in _places(root):
        for folder in (place / name, place):
            if original is not None and (folder / original.marker).exists():
                return folder
        if is_packed(place / name):
            return place / name
    return None


def at_hand(name: str, root: Path | None = None) -> bool:
    """Whether `load` finds a set of `DATASETS` without a download."""
    return name == "digits" or find(name, root) is not None  # scikit-learn brings the digits


def _places(root: Path | None) -> list[Path]:
    given = root or os.environ.get("FSSL_DATA")
    return [Path(given).expanduser(), cache_folder()] if given else [cache_folder()]


def image_shape_of(name: str, root: Path | None = None) -> tuple[tuple[int, int, int], int]:
    """(channels, rows, columns) and number of classes; only a folder of images is read. Raises as `load`."""
    if name.startswith("folder:"):
        data = load(name, root)
        return data.image_shape, data.num_classes
    return known(name).image_shape, known(name).num_classes


def statistics_of(name: str, train_images_NCHW: Tensor) -> Statistics:
    """The set's own statistics where it has some, else those of these images."""
    own = DATASETS[name].statistics if name in DATASETS else None
    return own or channel_statistics(train_images_NCHW)


def _build(name: str, raw: Raw) -> DataSet:
    train_images_NCHW, test_images_NCHW = (torch.as_tensor(part[0]).contiguous() for part in (raw.train, raw.test))
    train_labels_N, test_labels_N = (torch.as_tensor(part[1]).to(torch.int64) for part in (raw.train, raw.test))
    unlabelled = None if raw.unlabelled is None else torch.as_tensor(raw.unlabelled).contiguous()
    tensors = [train_images_NCHW, train_labels_N, test_images_NCHW, test_labels_N, unlabelled]
    mean, std = statistics_of(name, train_images_NCHW)
    return DataSet(
        name=name, train_images_NCHW=train_images_NCHW, train_labels_N=train_labels_N,
        test_images_NCHW=test_images_NCHW, test_labels_N=test_labels_N, unlabelled_images_NCHW=unlabelled,
        classes=raw.classes, mean=mean, std=std, note=raw.note,
        content_hash=_content_hash([tensor for tensor in tensors if tensor is not None]),
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


def _packed(name: str, folder: Path) -> Raw:
    sha256 = DATASETS[name].packed_sha256
    train, test = read_split(folder, "train", sha256), read_split(folder, "test", sha256)
    if train.classes != test.classes:
        raise DataError(f"{folder}: train and test name different classes: copy the whole folder again")
    return Raw(
        train=(train.images_NCHW, train.labels_N), test=(test.images_NCHW, test.labels_N), classes=train.classes,
        note=DATASETS[name].packed_note if train.known and test.known else "packed files of unknown origin",
    )  # fmt: skip
