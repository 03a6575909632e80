"""A data set, its split and its readers without images, so that a run's work can be counted without any data file.

Legend: N images, D classes.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.data.datasets import DATASETS, DataSet, load
from benchmark.data.partition import Iid
from benchmark.data.split import Split, SplitSpec, split
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.jobs import JobReader
from benchmark.methods.protocol import Job, PartName, Weights
from benchmark.streams import torch_stream

SURE = 50.0  # a logit that has probability 1 in float32 if all other logits are 0


def blank_environment(experiment: Experiment) -> Environment:
    """Return the run's environment over a data set of the same size without images.

    Its classes and clients are equally large, and all images share one array. A custom image folder is loaded to find
    its size. Raise ConfigError if the method does not suit the setting.
    """
    settings = experiment.data
    even = replace(experiment, partition=Iid(), data=replace(settings, pooled_test=0))
    data = blank_data_set(settings.name, settings.pooled_test)
    return prepare(even, data=data, split=lambda labels_N, spec: _split_of(len(labels_N), spec))


@cache
def blank_data_set(name: str, pooled_test: int) -> DataSet:
    """Return a data set with equally large classes and one array of zeros for all images.

    A custom image folder is loaded to find its size.
    """
    known = DATASETS.get(name) or load(name)
    shape, num_classes = known.image_shape, known.num_classes
    if isinstance(known, DataSet):
        N_train, N_test, N_extra = len(known.train_labels_N), len(known.test_labels_N), 0
    else:
        N_train, N_test, N_extra = known.train, known.test, known.extra
    if pooled_test:  # only the numbers of images change
        if pooled_test >= N_train + N_test:
            raise ConfigError(
                f"data.pooled_test is {pooled_test}, but {name} has only {N_train + N_test:,} images; choose fewer"
            )
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
def _split_of(N: int, spec: SplitSpec) -> Split:
    """Return the split of a data set of N images with equally large classes. Many runs share it."""
    return split(np.arange(N) % spec.num_classes, spec)


class SureReader(JobReader):
    """A reader without images, which counts images and predicts the classes in turn, with probability 1."""

    def __init__(self, environment: Environment, job: Job, number: int) -> None:
        draw = torch_stream(0, "cost", number, job.key.client, job.key.draw)
        super().__init__(environment, nn.Identity(), job.key.client, number, draw)
        self.images_read = Counter[str]()  # numbers of images by view
        self.predicted = False

    def _read(self, part: PartName, view: str = "plain") -> int:
        N = len(self._images(part))
        self.images_read[view] += N
        return N

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        self.predicted = True
        N = self._read(part, view)
        D = self._environment.data.num_classes
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
