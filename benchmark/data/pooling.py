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
from torch import Tensor

from benchmark.data.datasets import DataSet, statistics_of
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled

CHUNK = 4096  # images copied at a time, so that no third copy of the pool is ever held


def pooled(data: DataSet, test: int, seed: int) -> DataSet:
    """The same images with another test set. `test` images, drawn from all of them, are the new one; the rest is for
    training. The content hash is one of the old hash, `test` and the seed, which decide the order of the images. Raises
    ConfigError unless 1 <= test < N, with N the training and test images together."""
    N_train = len(data.train_labels_N)
    N = N_train + len(data.test_labels_N)
    if not 1 <= test < N:
        raise ConfigError(f"pooled_test: {test} of the {N:,} images of {data.name}; choose 1 to {N - 1}")
    order_N = shuffled(np.arange(N), numpy_stream(seed, "pooling"))
    images = (data.train_images_NCHW, data.test_images_NCHW)
    labels_N = torch.cat([data.train_labels_N, data.test_labels_N])
    train_images_NCHW = _gather(images, order_N[: N - test])
    mean, std = statistics_of(data.name, train_images_NCHW)
    remark = f"training and test images pooled, {test:,} drawn for the test: not comparable on the official test set"
    return replace(
        data,
        train_images_NCHW=train_images_NCHW,
        train_labels_N=labels_N[torch.from_numpy(order_N[: N - test])],
        test_images_NCHW=_gather(images, order_N[N - test :]),
        test_labels_N=labels_N[torch.from_numpy(order_N[N - test :])],
        mean=mean,
        std=std,
        content_hash=pooled_hash(data.content_hash, test, seed),
        note=f"{data.note}; {remark}" if data.note else remark,
    )


def pooled_hash(content_hash: str, test: int, seed: int) -> str:
    """The content hash of `pooled`."""
    return hashlib.sha256(f"{content_hash} pooled test={test} seed={seed}".encode()).hexdigest()


def _gather(parts: tuple[Tensor, Tensor], positions_N: IntArray) -> Tensor:
    """(N, C, H, W) the images at these positions of two parts taken as one. The parts are not concatenated for it."""
    out_NCHW = torch.empty((len(positions_N), *parts[0].shape[1:]), dtype=parts[0].dtype)
    second_N = positions_N >= len(parts[0])
    for images_NCHW, here, offset in ((parts[0], ~second_N, 0), (parts[1], second_N, len(parts[0]))):
        for positions_M in torch.from_numpy(np.flatnonzero(here)).split(CHUNK):
            out_NCHW[positions_M] = images_NCHW[torch.from_numpy(positions_N)[positions_M] - offset]
    return out_NCHW
