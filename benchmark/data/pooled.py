"""What FedMatch and FedSwitch need besides: pooled images, images that arrive in steps, an image of noise.

Sources: FedMatch, data/generator.py: CIFAR-10's 60,000 images are shuffled and cut into 56,000 + 2,000 test + 2,000
validation; FedSwitch has Fashion-MNIST's 70,000 in 63,000 + 3,500 + 3,500. Validation images are taken in `split.py`,
so the training part here is 58,000 or 66,500. Both, "streaming non-i.i.d.": 10 clients, 10 steps. FedMatch,
models/fedmatch/server.py: models are compared by one image, a truncated normal of mean 125 and deviation 125 on the
grey levels 0..255, drawn once; here it is normalised as the data set's images are.

Departures:
* The pool's order is a named draw (there Python's generator; its seed is None unless given); test images come last
  (there the validation images do); validation images are drawn in equal numbers from each class (there, as they come).
* Neither paper released code for streaming or says: a client's images are cut into steps at random and equally, so that
  skew is between clients; one round is one step; a client sees only the images of the present step; after the last step
  the first one comes again.

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
        data, train_images_NCHW=train_images_NCHW, train_labels_N=labels_N[train_N],
        test_images_NCHW=images_NCHW[test_N], test_labels_N=labels_N[test_N], mean=mean, std=std,
        content_hash=pooled_hash(data.content_hash, test, seed), note=f"{data.note}; {remark}".removeprefix("; "),
    )  # fmt: skip


def pooled_hash(content_hash: str, test: int, seed: int) -> str:
    """The content hash of `pooled`."""
    return hashlib.sha256(f"{content_hash} pooled test={test} seed={seed}".encode()).hexdigest()


def arrivals(positions_N: IntArray, steps: int, seed: int, client: int) -> tuple[IntArray, ...]:
    """The client's images by step, in equal numbers up to one. Shuffled, then ascending inside each step. Depends on
    which images there are, not on their order. Raises ConfigError where there are fewer images than steps."""
    if len(positions_N) < steps:
        raise ConfigError(
            f"data.streaming_steps: {steps}, but client {client} has {len(positions_N)} unlabelled images; "
            f"choose {len(positions_N)} or less"
        )
    order_N = shuffled(np.sort(positions_N), numpy_stream(seed, "streaming", "client", client))
    return tuple(np.sort(order_N[step::steps]) for step in range(steps))


def gaussian_image(shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...], seed: int) -> Tensor:
    """noise_1CHW, float32, normalised by each channel's mean and std. These are on the 0..1 scale; the same seed gives
    the same image."""
    uniform_CHW = torch.rand(shape, generator=torch_stream(seed, "noise image"), dtype=torch.float64)
    low, high = (0.5 * (1 + math.erf((grey - CENTER) / SPREAD / math.sqrt(2))) for grey in (0.0, BRIGHTEST))
    grey_CHW = CENTER + SPREAD * torch.special.ndtri(low + (high - low) * uniform_CHW)
    mean_C11, std_C11 = (torch.tensor(value, dtype=torch.float64)[:, None, None] for value in (mean, std))
    return ((grey_CHW / BRIGHTEST - mean_C11) / std_C11).float()[None]
