"""Compute the columns of a table that need no run, such as parameters and classes per client."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from benchmark.data.datasets import entry_of, shape_and_classes_of
from benchmark.data.partition import Partition
from benchmark.data.split import with_unknown_share
from benchmark.data.tables import IntArray
from benchmark.experiment import Experiment
from benchmark.models.build import Model, build, count_parameters, forward_flops


@cache
def _parameters(model: Model, data: str) -> int:
    return count_parameters(build(model, *shape_and_classes_of(data), seed=0))


@cache
def _flops(model: Model, data: str) -> int:
    shape, classes = shape_and_classes_of(data)
    return forward_flops(build(model, shape, classes, seed=0), shape)


def clients_of(e: Experiment, *, pooled: bool = False) -> IntArray:
    """Return the images of each class at each client, (K, d), for one draw of the partition with equal class sizes.

    With `pooled`, test images always count as part of the pool that is divided, as in the cell keys
    of the method comparison; without it, they count only if the test set is drawn from that pool.
    """
    data = e.data
    K = e.federation.K
    of_set = entry_of(e.data.name)
    training = of_set.train + of_set.test - data.pooled_test if data.pooled_test or pooled else of_set.train
    at_clients = K * of_set.num_classes * data.labels_per_client if data.label_setting == "every_client" else 0
    left = min(training, data.images or training) - data.N_s - data.N_validation - at_clients
    counts_Kd = _drawn(e.partition, K, of_set.num_classes, left // of_set.num_classes)
    if data.label_setting == "open":  # classes in the order known, unknown
        return with_unknown_share(counts_Kd, of_set.num_classes - len(data.unknown_classes), data.unknown_share)
    return counts_Kd


@cache
def _drawn(partition: Partition, K: int, classes: int, images_of_a_class: int) -> IntArray:
    return partition.shares(np.full(classes, images_of_a_class), K, seed=0)


# Columns that any paper can have.
COMPUTED: Mapping[str, Callable[[Experiment], float | str]] = {
    "classes a client": lambda e: round(float((clients_of(e) > 0).sum(axis=1).mean()), 2),
    "parameters": lambda e: _parameters(e.model, e.data.name),
    "MFLOP": lambda e: _flops(e.model, e.data.name) / 1e6,  # per image; a multiplication with its addition counts as 2
    "MB": lambda e: 4 * _parameters(e.model, e.data.name) / 2**20,  # of one transmitted model in float32
}
