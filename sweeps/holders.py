"""How many images each holder has, for a plan: from the data set where it is at hand, else from a stand-in of its size.

Pixels are never kept: a plan's environment holds one image, seen as often as there are images.

Legend: N images, C channels, H W pixels, D classes, K clients.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmark.data import datasets
from benchmark.data.datasets import DataSet
from benchmark.data.labelling import held
from benchmark.data.shapes import image_shape_of
from benchmark.data.split import Split
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare, with_extra

# Training and test images, from the data sets' own papers; of the packed ones, as packed.
COUNTS = {
    "mnist": (60_000, 10_000),
    "fashion_mnist": (60_000, 10_000),
    "emnist_balanced": (112_800, 18_800),
    "emnist_balanced_small": (2_000, 2_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "svhn": (73_257, 26_032),
    "stl10": (5_000, 8_000),
    "ham10000_64": (5_984, 1_512),
}
EXTRA = {"stl10": 100_000}  # images without labels
_prepared: dict[tuple[object, ...], Environment] = {}


def environment_of(experiment: Experiment, data_root: Path | None = None) -> tuple[Environment, bool]:
    """The experiment's environment without its pixels, and whether its sizes are the data set's own.

    Where the data set is not at hand (nothing is downloaded for a plan), classes and clients are equally large.
    Raises ConfigError where the method, the label setting or the numbers of images do not fit.
    """
    own = at_hand(experiment.data.name, data_root)
    key = (experiment.data, experiment.partition, experiment.federation.K, experiment.seed, data_root, own)
    if key not in _prepared:
        _prepared[key] = without_pixels(prepare(experiment, data_root)) if own else stand_in(experiment)
    environment = replace(_prepared[key], experiment=experiment)
    experiment.method.check(environment.setup())
    return environment, own


def at_hand(name: str, data_root: Path | None) -> bool:
    """Whether loading the set would need no download."""
    return name not in COUNTS or datasets.at_hand(name, data_root)


def without_pixels(environment: Environment) -> Environment:
    """The same holders over one random image that stands for all."""
    data = environment.data
    train_NCHW = _one_for_all(data.image_shape, len(data.train_labels_N))
    test_NCHW = _one_for_all(data.image_shape, len(data.test_labels_N))
    extra = data.unlabelled_images_NCHW
    bare = replace(
        data,
        train_images_NCHW=train_NCHW,
        test_images_NCHW=test_NCHW,
        unlabelled_images_NCHW=None if extra is None else _one_for_all(data.image_shape, len(extra)),
    )
    return replace(environment, data=bare)


def stand_in(experiment: Experiment) -> Environment:
    """An environment of the data set's size: classes as large as each other, clients as well."""
    settings = experiment.data
    shape, num_classes = image_shape_of(settings.name)
    N_train, N_test = COUNTS[settings.name]
    if settings.pooled_test:
        N_train, N_test = N_train + N_test - settings.pooled_test, settings.pooled_test
    labels_N = torch.arange(N_train) % num_classes
    channels = shape[0]
    data = DataSet(
        name=settings.name,
        train_images_NCHW=_one_for_all(shape, N_train),
        train_labels_N=labels_N,
        test_images_NCHW=_one_for_all(shape, N_test),
        test_labels_N=torch.arange(N_test) % num_classes,
        unlabelled_images_NCHW=_one_for_all(shape, EXTRA[settings.name]) if settings.name in EXTRA else None,
        classes=tuple(map(str, range(num_classes))),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        content_hash="stand-in",
    )
    divided = _equal_shares(experiment, min(N_train, settings.images or N_train), num_classes)
    holders = held(
        divided,
        labels_N.numpy(),
        settings.label_setting,
        labelled_clients=settings.labelled_clients,
        labelled_choice=settings.labelled_choice,
        labelled_share=settings.labelled_share,
    )
    if settings.unlabelled == "extra":
        holders = with_extra(experiment, holders, EXTRA.get(settings.name, 0))
    return Environment(experiment=experiment, data=data, split=divided, held=holders)


def _equal_shares(experiment: Experiment, N: int, num_classes: int) -> Split:
    """N images cut into the server's, the validation's, each client's labelled and its other images."""
    settings, K = experiment.data, experiment.federation.K
    own = settings.labels_per_client * num_classes if settings.label_setting == "every_client" else 0
    left = N - settings.N_s - settings.N_validation - K * own
    if left < K:
        raise ConfigError(
            f"federation.K: {K} clients share {max(left, 0)} images of {settings.name}; fewer would be right"
        )
    sizes = [settings.N_s, settings.N_validation, *[own] * K, *(left // K + (k < left % K) for k in range(K))]
    server_N, validation_N, *clients = np.split(np.arange(N), np.cumsum(sizes)[:-1])
    return Split(
        server_N=server_N,
        validation_N=validation_N,
        labelled=tuple(clients[:K]) if own else (),
        clients=tuple(clients[K:]),
        num_classes=num_classes,
        partition=experiment.partition,
        seed=experiment.seed,
    )


def _one_for_all(shape: tuple[int, int, int], count: int) -> Tensor:
    image_CHW = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return image_CHW.expand(count, *shape)
