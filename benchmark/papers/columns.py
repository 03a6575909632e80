"""What an experiment shows in a table without a run: its factors, and sizes of its network."""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from benchmark.data.datasets import image_shape_of, known
from benchmark.data.partition import Partition
from benchmark.data.tables import IntArray
from benchmark.experiment import Experiment
from benchmark.models.build import Model, build, count_parameters, forward_flops

Factor = str | int | float
WORDS = {  # names of the suite -> as papers print them
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "cinic10": "CINIC-10",
    "emnist_balanced": "EMNIST",
    "stl10": "STL-10",
    "isic2018": "ISIC 2018",
    "wresnet28x2": "WResNet28x2",
    "resnet18": "ResNet18",
    "resnet9": "ResNet9",
    "fedavg_cnn": "CNN",
}
# The papers' letters and words -> what runs, whatever is printed.
FACTORS: Mapping[str, Callable[[Experiment], Factor]] = {
    "R": lambda e: e.partition.R_nominal or 0.0,
    "T": lambda e: e.federation.T,
    "N_s": lambda e: e.data.N_s,
    "K": lambda e: e.federation.K,
    "C": lambda e: e.federation.C,
    "rounds": lambda e: e.federation.rounds,
    "network": lambda e: WORDS.get(e.model.network, e.model.network),
}


@functools.cache
def _parameters(model: Model, data: str) -> int:
    return count_parameters(build(model, *image_shape_of(data), seed=0))


@functools.cache
def _flops(model: Model, data: str) -> int:
    shape, classes = image_shape_of(data)
    return forward_flops(build(model, shape, classes, seed=0), shape)


def clients_of(e: Experiment, *, pooled: bool = False) -> IntArray:
    """(K, d) images of each class at each client, for one draw of the partition with equal classes.

    `pooled`: test images count where they are not drawn from a pool, too, as in the keys of the arena's cells.
    """
    data, K, of_set = e.data, e.federation.K, known(e.data.name)
    training = of_set.train + of_set.test - data.pooled_test if data.pooled_test or pooled else of_set.train
    at_clients = K * of_set.num_classes * data.labels_per_client if data.label_setting == "every_client" else 0
    left = min(training, data.images or training) - data.N_s - data.N_validation - at_clients
    return _drawn(e.partition, K, of_set.num_classes, left // of_set.num_classes)


@functools.cache
def _drawn(partition: Partition, K: int, classes: int, images_of_a_class: int) -> IntArray:
    return partition.shares(np.full(classes, images_of_a_class), K, seed=0)


# Columns of any paper.
COMPUTED: Mapping[str, Callable[[Experiment], float | str]] = {
    "classes a client": lambda e: round(float((clients_of(e) > 0).sum(axis=1).mean()), 2),
    "parameters": lambda e: _parameters(e.model, e.data.name),
    "MFLOP": lambda e: _flops(e.model, e.data.name) / 1e6,  # of one image; 2 a multiplication with its addition
    "MB": lambda e: 4 * _parameters(e.model, e.data.name) / 2**20,  # of one model sent, float32
}
