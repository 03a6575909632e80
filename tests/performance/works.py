"""Define the timed works: experiments on random images with all samples confident.

How long a step takes does not depend on the images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from benchmark.data.datasets import DATASETS, DataSet
from benchmark.data.partition import Iid
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.federated.environment import Environment, prepare
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import Model
from benchmark.optimizer import Constant, Optimizer

NEVER = 10**6  # rounds between tests
ALL_CONFIDENT = 0.0  # tau


@dataclass(frozen=True, kw_only=True)
class Work:
    """One round's work: an experiment, and how many random images it is on."""

    what: str
    experiment: Experiment
    images: int  # of each client

    @property
    def samples(self) -> int:
        """Return the number of images in the local steps of a round; all are confident."""
        federation, method, N_s = self.experiment.federation, self.experiment.method, self.experiment.data.N_s
        at_client = min(method.batch_size, self.images)
        return federation.T * (min(method.server_batch_size, N_s) + federation.C * at_client)  # SSFL Eqs. 3 and 4


def work_of(what: str, images: int, **settings: Any) -> Work:
    common = Experiment(
        partition=Iid(),
        optimizer=Optimizer(lr=0.03, weight_decay=5e-4, schedule=Constant()),
        evaluation=Evaluation(every=NEVER),
        profile="bench",
        method=SSFL(objective=CRL(threshold=ALL_CONFIDENT), batch_size=64, server_batch_size=64),
        federation=Federation(K=10, C=10, T=16, rounds=1000),
    )
    return Work(what=what, experiment=replace(common, **settings), images=images)


WORKS: Mapping[str, Work] = {
    "A": work_of(
        "10 clients and the server, T 16, batch 64, EMNIST CNN, CRL",
        1000,
        data=Data(name="emnist_balanced_small", N_s=470),
        model=Model(network="emnist_cnn", norm="none"),
    ),
    "B": work_of(
        "10 clients and the server, T 16, batch 64, ResNet-8 with GN at 32x32x3, CRL",
        1000,
        data=Data(name="cifar10", N_s=1000),
        model=Model(network="resnet8", norm="gn", norm_groups=8),
    ),
    "laptop": work_of(
        "10 clients and the server, T 16, batch 16, small_cnn with GN at 28x28x1, CRL",
        1000,
        data=Data(name="mnist", N_s=100),
        model=Model(network="small_cnn", norm="gn", norm_groups=4),
        method=SSFL(objective=CRL(threshold=ALL_CONFIDENT), batch_size=16, server_batch_size=16),
    ),
}


def sgd_of(s: Optimizer, network: nn.Module) -> torch.optim.Optimizer:
    """Build SGD in one kernel."""
    return torch.optim.SGD(
        network.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay, nesterov=s.nesterov, fused=True
    )


def quick(work: Work) -> Work:
    """Return the same kind of work with two clients and a few images; it shows that everything runs and measures
    nothing.
    """
    experiment = work.experiment
    small = replace(
        experiment,
        data=replace(experiment.data, N_s=DATASETS[experiment.data.name].num_classes),
        federation=replace(experiment.federation, K=2, C=2, T=2),
        method=replace(experiment.method, batch_size=4, server_batch_size=4),
    )
    return replace(work, experiment=small, images=10)


def environment_of(work: Work) -> Environment:
    """Prepare the work's images for the server and for clients of equal size."""
    experiment = work.experiment
    N_train = experiment.data.N_s + experiment.federation.K * work.images
    return prepare(experiment, data=random_images(experiment.data.name, N_train))


def random_images(name: str, N_train: int) -> DataSet:
    """Return random uint8 images with the shape and the classes of a known data set; classes follow in turn."""
    shape, num_classes = DATASETS[name].image_shape, DATASETS[name].num_classes
    draw = torch.Generator().manual_seed(0)
    mean, std = DATASETS[name].statistics or ((0.5,) * shape[0], (0.5,) * shape[0])
    return DataSet(
        name=f"random images like {name}",
        train_images_NCHW=torch.randint(0, 256, (N_train, *shape), dtype=torch.uint8, generator=draw),
        train_labels_N=torch.arange(N_train) % num_classes,
        test_images_NCHW=torch.randint(0, 256, (num_classes, *shape), dtype=torch.uint8, generator=draw),  # unused
        test_labels_N=torch.arange(num_classes),
        classes=tuple(map(str, range(num_classes))),
        mean=mean,
        std=std,
        content_hash="random",
    )
