"""Loaded sets: the digits, real packed sets, channel statistics, names, checks.

Real packed sets are in FSSL_DATA or in ../shared/data next to the project; their tests skip without them.
Shapes: N images, C channels, H x W pixels.
"""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from benchmark.data.datasets import DATASETS, DataSet, as_released, channel_statistics, load, shape_and_classes_of
from tests.data.places import REAL, own_cache  # noqa: F401 - a fixture for every test here


def test_digits_are_scikit_learns_scaled_and_split():
    """Grey levels 0..16 become 0..255; of the n_c images of a class, n_c 400/1797 go to the test, up to one."""
    digits = load("digits")
    original = load_digits()
    assert digits.image_shape == (1, 8, 8) and digits.num_classes == 10
    assert len(digits.train_labels_N) == 1397 and len(digits.test_labels_N) == 400
    every_NHW = torch.cat([digits.train_images_NCHW, digits.test_images_NCHW])[:, 0].numpy()
    expected_NHW = np.floor(original.images * 255 / 16 + 0.5).astype(np.uint8)
    assert sorted(map(bytes, every_NHW)) == sorted(map(bytes, expected_NHW))
    exact_d = np.bincount(original.target) * 400 / 1797
    assert (abs(torch.bincount(digits.test_labels_N).numpy() - exact_d) < 1).all()
    assert load("digits").content_hash == digits.content_hash


def test_statistics_by_hand():
    """Half the pixels 0, half 255: mean 1/2, deviation 1/2. A constant channel of 51: mean 1/5, deviation one level."""
    images_NCHW = torch.tensor([[[[0, 255]], [[51, 51]]]], dtype=torch.uint8)
    mean, std = channel_statistics(images_NCHW)
    assert mean == pytest.approx((0.5, 0.2)) and std == pytest.approx((0.5, 1 / 255))


@pytest.mark.parametrize(
    "name", ["digits", "mnist", "fashion_mnist", pytest.param("ham10000_64", marks=pytest.mark.slow)]
)
def test_what_is_known_of_a_set_is_what_is_loaded(name):
    """Shape, classes and numbers of images, which plans go by where a set is not here; and statistics, to the four
    decimals printed (Fashion-MNIST's 60,000 are our own choice of the 70,000: within 0.0005)."""
    if name != "digits" and not (REAL / name).is_dir():
        pytest.skip(f"no {name} in FSSL_DATA or ../shared/data")
    data = load(name, REAL if REAL.is_dir() else None)
    known = DATASETS[name]
    assert (known.image_shape, known.num_classes) == (data.image_shape, data.num_classes) == shape_and_classes_of(name)
    assert (known.train, known.test) == (len(data.train_labels_N), len(data.test_labels_N))
    for computed, printed in zip(channel_statistics(data.train_images_NCHW), known.statistics or (), strict=False):
        assert computed == pytest.approx(printed, abs=5e-5 if name == "mnist" else 5e-4)
    assert known.statistics in (None, (data.mean, data.std))


@pytest.mark.parametrize(
    ("name", "own", "training", "test"),
    [
        ("cifar10", ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)), "own", (0.2023, 0.1994, 0.2010)),
        ("svhn", ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)), "cifar10", (0.1980, 0.2010, 0.1970)),
        ("mnist", ((0.1307,), (0.3081,)), "own", (0.3081 * (0.2023 + 0.1994 + 0.2010) / (0.2471 + 0.2435 + 0.2616),)),
    ],
)
def test_statistics_of_sage_s_released_code(name, own, training, test):
    """By its files: all training images as CIFAR-10's, test images by their own mean and these deviations."""
    image_NCHW = torch.zeros(1, len(own[0]), 2, 2, dtype=torch.uint8)
    label_N = torch.zeros(1, dtype=torch.int64)
    data = DataSet(
        name=name,
        train_images_NCHW=image_NCHW,
        train_labels_N=label_N,
        test_images_NCHW=image_NCHW,
        test_labels_N=label_N,
        classes=("a", "b"),
        mean=own[0],
        std=own[1],
        content_hash="",
    )
    released = as_released(data)
    assert (released.mean, released.std) == (own if training == "own" else DATASETS["cifar10"].statistics)
    assert released.test_statistics is not None and released.test_statistics[0] == own[0]
    assert released.test_statistics[1] == pytest.approx(test)
