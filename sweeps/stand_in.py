"""A data set, its split and its readers without images: a run's work can be counted without any file.

Legend: N images, D classes.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.data.datasets import DATASETS, DataSet, load
from benchmark.data.partition import Iid
from benchmark.data.split import Split, split
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.jobs import JobReader
from benchmark.methods.protocol import Job, PartName, Weights
from benchmark.streams import torch_stream

SURE = 50.0  # a logit among zeros: probability 1 in float32


def stand_in(experiment: Experiment) -> Environment:
    """The run's environment over a set of the data set's size: equally large classes and clients, one image for all.

    A user's own folder of images is loaded for its size. Raises ConfigError where method and setting do not fit.
    """
    settings = experiment.data
    even = replace(experiment, partition=Iid(), data=replace(settings, pooled_test=0))
    data = stand_in_set(settings.name, settings.pooled_test)
    return prepare(even, data=data, split=lambda labels_N, **rule: _split_of(len(labels_N), **rule))


@cache
def stand_in_set(name: str, pooled_test: int) -> DataSet:
    """Return a set of equally large classes whose images are one; a user's own folder is loaded for its size."""
    known = DATASETS.get(name) or load(name)
    shape, num_classes = known.image_shape, known.num_classes
    if isinstance(known, DataSet):
        N_train, N_test, N_extra = len(known.train_labels_N), len(known.test_labels_N), 0
    else:
        N_train, N_test, N_extra = known.train, known.test, known.extra
    if pooled_test:  # no image is moved for it
        if pooled_test >= N_train + N_test:
            raise ConfigError(f"pooled_test: {pooled_test} of the {N_train + N_test:,} images of {name}; choose fewer")
        N_train, N_test = N_train + N_test - pooled_test, pooled_test
    image_CHW = torch.zeros((), dtype=torch.uint8).expand(shape)
    return DataSet(
        name=name,
        train_images_NCHW=image_CHW.expand(N_train, *shape),
        train_labels_N=torch.arange(N_train) % num_classes,
        test_images_NCHW=image_CHW.expand(N_test, *shape),
        test_labels_N=torch.arange(N_test) % num_classes,
        unlabelled_images_NCHW=image_CHW.expand(N_extra, *shape) if N_extra else None,
        classes=tuple(map(str, range(num_classes))),
        mean=(0.5,) * shape[0],
        std=(0.5,) * shape[0],
        content_hash="stand-in",
    )


@cache
def _split_of(N: int, *, num_classes: int, **rule: Any) -> Split:
    """How a stand-in of N images is divided; many runs share it."""
    return split(np.arange(N) % num_classes, num_classes, **rule)


class SureReader(JobReader):
    """A reader without images: every prediction is certain, the classes in turn; images are only counted."""

    def __init__(self, environment: Environment, job: Job, number: int) -> None:
        draw = torch_stream(0, "cost", number, job.key.client, job.key.draw)
        super().__init__(environment, nn.Identity(), job.key.client, number, draw)
        self.images_read = Counter[str]()  # by their view
        self.predicted = False

    def _read(self, part: PartName, view: str = "plain") -> int:
        N = len(self._images(part))
        self.images_read[view] += N
        return N

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        self.predicted = True
        N, D = self._read(part, view), self._environment.data.num_classes
        return SURE * nn.functional.one_hot(torch.arange(N) % D, D).float()

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        N = self._read(part)
        if not N:
            return {}, 0
        of_norms = [name for name in weights if name.endswith(("running_mean", "running_var"))]
        statistics = {name: torch.ones_like(weights[name], dtype=torch.float64) for name in of_norms}
        return statistics, N if pooled else -(-N // batch_size)

    def on_noise(self, weights: Weights) -> Tensor:
        self.images_read["plain"] += 1
        return torch.zeros(self._environment.data.num_classes)
