"""Image shapes and numbers of classes of the known data sets, so that a plan needs no data at hand."""

from collections.abc import Mapping
from pathlib import Path

from benchmark.data.datasets import load

# (channels, rows, columns), classes; from the data sets' own papers, held to the loaded sets by a test.
SHAPES: Mapping[str, tuple[tuple[int, int, int], int]] = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion_mnist": ((1, 28, 28), 10),
    "emnist_balanced": ((1, 28, 28), 47),
    "emnist_balanced_small": ((1, 28, 28), 47),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "svhn": ((3, 32, 32), 10),
    "stl10": ((3, 96, 96), 10),
    "ham10000_64": ((3, 64, 64), 7),
}


def image_shape_of(name: str, root: Path | None = None) -> tuple[tuple[int, int, int], int]:
    """Shape and number of classes; a folder of images is read. Raises ConfigError and DataError."""
    if name in SHAPES:
        return SHAPES[name]
    data = load(name, root)
    return data.image_shape, data.num_classes
