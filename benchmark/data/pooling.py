"""Training and test images pooled and split again, for FedMatch and FedSwitch.

Source: FedMatch, data/generator.py: CIFAR-10's 60,000 images are shuffled and cut into 56,000 + 2,000 test + 2,000
validation; FedSwitch has Fashion-MNIST's 70,000 in 63,000 + 3,500 + 3,500. Validation images are taken in `split.py`,
so the training part here is 58,000 or 66,500.

Departures: the order is a named draw (there Python's generator; its seed is None unless given); test images come last
(there the validation images do); validation images are drawn in equal numbers from each class (there, as they come).

Shapes: N images, C channels, H x W pixels.
"""

import hashlib
from dataclasses import replace

import numpy as np
import torch

from benchmark.data.datasets import DataSet, statistics_of
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled


def pooled(data: DataSet, test: int, seed: int) -> DataSet:
    """The same images with another test set. `test` images, drawn from all of them, are the new one; the rest is for
    training. The content hash is one of the old hash, `test` and the seed, which decide the order of the images. Raises
    ConfigError unless 1 <= test < N, with N the training and test images together."""
    images_NCHW = torch.cat([data.train_images_NCHW, data.test_images_NCHW])
    labels_N = torch.cat([data.train_labels_N, data.test_labels_N])
    N = len(labels_N)
    if not 1 <= test < N:
        raise ConfigError(f"pooled_test: {test} of the {N:,} images of {data.name}; choose 1 to {N - 1}")
    order_N = torch.from_numpy(shuffled(np.arange(N), numpy_stream(seed, "pooling")))
    train_N, test_N = order_N[: N - test], order_N[N - test :]
    train_images_NCHW = images_NCHW[train_N]
    mean, std = statistics_of(data.name, train_images_NCHW)
    remark = f"training and test images pooled, {test:,} drawn for the test: not comparable on the official test set"
    return replace(
        data,
        train_images_NCHW=train_images_NCHW,
        train_labels_N=labels_N[train_N],
        test_images_NCHW=images_NCHW[test_N],
        test_labels_N=labels_N[test_N],
        mean=mean,
        std=std,
        content_hash=pooled_hash(data.content_hash, test, seed),
        note=f"{data.note}; {remark}" if data.note else remark,
    )


def pooled_hash(content_hash: str, test: int, seed: int) -> str:
    """The content hash of `pooled`."""
    return hashlib.sha256(f"{content_hash} pooled test={test} seed={seed}".encode()).hexdigest()
