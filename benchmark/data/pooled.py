"""Implement special requirements of FedMatch and FedSwitch: pooled images, streaming images and an image of noise.

Sources: FedMatch, data/generator.py, shuffles CIFAR-10's 60,000 images and cuts them into 56,000 + 2,000 test + 2,000
validation images. FedSwitch cuts Fashion-MNIST's 70,000 images into 63,000 + 3,500 + 3,500. `split.py` draws the
validation images, so that this module's training part has 58,000 or 66,500 images. Both papers have a "streaming
non-i.i.d." setting with 10 clients and 10 steps. FedMatch, models/fedmatch/server.py, compares models by their outputs
for one image, which is drawn once from a truncated normal distribution with mean 125 and standard deviation 125 on the
grey levels 0..255. This module normalises it like the data set's images.

Deviations:
* The order of the pool is a named draw; FedMatch uses Python's generator, which has no fixed seed unless one is given.
  Test images are last; in FedMatch, validation images are. Validation images are drawn in equal numbers from each
  class; FedMatch uses the last ones of the pool.
* Neither paper describes streaming in detail, and no code for it is released. In this module, a client's images are
  divided at random into equal steps, so that only clients are skewed. One round is one step, and a client sees only the
  images of the current step. The first step follows the last one.

Shapes: N images, C channels, H x W pixels.
"""

import hashlib
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmark.data.datasets import DataSet, statistics_of
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled, torch_stream

CENTER, SPREAD, BRIGHTEST = 125.0, 125.0, 255.0  # grey levels of the noise


def pooled(data: DataSet, test: int, seed: int) -> DataSet:
    """Return the same images with a new test set of `test` images, drawn from all images; the rest is for training.

    The content hash is computed from the old hash, `test` and the seed, which decide the order of the images. Raise
    ConfigError unless 1 <= test < N, where N is the number of training and test images together.
    """
    images_NCHW = torch.cat([data.train_images_NCHW, data.test_images_NCHW])
    labels_N = torch.cat([data.train_labels_N, data.test_labels_N])
    N = len(labels_N)
    if not 1 <= test < N:
        raise ConfigError(f"pooled_test is {test}, but {data.name} has {N:,} images; choose 1 to {N - 1}")
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
        note=f"{data.note}; {remark}".removeprefix("; "),
    )


def pooled_hash(content_hash: str, test: int, seed: int) -> str:
    """Return the content hash of the data set that `pooled` returns."""
    return hashlib.sha256(f"{content_hash} pooled test={test} seed={seed}".encode()).hexdigest()


def arrivals(positions_N: IntArray, steps: int, seed: int, client: int) -> tuple[IntArray, ...]:
    """Divide the client's images at random into steps of equal size, up to one; images of a step are ascending.

    The result depends on the set of images, but not on their order. Raise ConfigError if there are fewer images than
    steps.
    """
    if len(positions_N) < steps:
        raise ConfigError(
            f"data.streaming_steps is {steps}, but client {client} has {len(positions_N)} unlabelled images; "
            f"choose {len(positions_N)} or less"
        )
    order_N = shuffled(np.sort(positions_N), numpy_stream(seed, "streaming", "client", client))
    return tuple(np.sort(order_N[step::steps]) for step in range(steps))


def gaussian_image(shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...], seed: int) -> Tensor:
    """Return a float32 image of noise (1, C, H, W), normalised by each channel's mean and std on the 0..1 scale.

    The same seed gives the same image.
    """
    uniform_CHW = torch.rand(shape, generator=torch_stream(seed, "noise image"), dtype=torch.float64)
    low, high = (0.5 * (1 + math.erf((grey - CENTER) / SPREAD / math.sqrt(2))) for grey in (0.0, BRIGHTEST))
    grey_CHW = CENTER + SPREAD * torch.special.ndtri(low + (high - low) * uniform_CHW)
    mean_C11, std_C11 = (torch.tensor(value, dtype=torch.float64)[:, None, None] for value in (mean, std))
    return ((grey_CHW / BRIGHTEST - mean_C11) / std_C11).float()[None]
