"""The works that `fssl bench` times: experiments with all samples confident, and their images.

Images are real where the data set is at hand, else random: how long a step takes does not depend on them.

Legend: N images, C channels, H W pixels, K clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmark.data.datasets import DATASETS, DataSet, at_hand, load
from benchmark.data.labelling import held
from benchmark.data.partition import Iid
from benchmark.data.split import split
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.federated.environment import Environment
from benchmark.methods.objectives import CRL
from benchmark.methods.semifl import SemiFL
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD, Constant

NEVER = 10**6  # rounds between tests
EMNIST = "emnist_balanced_small"  # at hand as packed files; its shape and classes are EMNIST balanced's


@dataclass(frozen=True, kw_only=True)
class Work:
    """One round's work: an experiment, and how many images there are (None: all of the data set's)."""

    name: str
    what: str
    experiment: Experiment
    N_train: int | None = None
    N_test: int = 2_000  # of random images; a data set at hand keeps its own
    real: bool = True  # images of the data set where it is at hand

    @property
    def cohort(self) -> int:
        return self.experiment.federation.C


ALL_CONFIDENT = 0.0  # tau
OPTIMIZER = SGD(lr=0.03, weight_decay=5e-4, schedule=Constant())


def crl(name: str, what: str, data: Data, model: Model) -> Work:
    """10 clients and the server, T = 16, batches of 64, CRL."""
    experiment = Experiment(
        data=data,
        partition=Iid(),
        model=model,
        method=SSFL(objective=CRL(threshold=ALL_CONFIDENT), batch_size=64, server_batch_size=64),
        federation=Federation(K=10, C=10, T=16, rounds=1000),
        optimizer=OPTIMIZER,
        evaluation=Evaluation(every=NEVER),
        profile="bench",
    )
    return Work(name=name, what=what, experiment=experiment)


def semifl(name: str, what: str) -> Work:
    """10 clients of 100 images and a server with 50, one local pass in batches of 10."""
    experiment = Experiment(
        data=Data(name="cifar10", N_s=50),
        partition=Iid(),
        model=Model(network="wresnet28x2", norm="sbn"),
        method=SemiFL(threshold=ALL_CONFIDENT, nothing_below="draw_from_all"),
        federation=Federation(K=10, C=10, rounds=1000, epochs=1),
        optimizer=OPTIMIZER,
        evaluation=Evaluation(every=NEVER),
        profile="bench",
    )
    return Work(name=name, what=what, experiment=experiment, N_train=1_050)


WORKS: Mapping[str, Work] = {
    work.name: work
    for work in (
        crl(
            "A",
            "10 clients and the server, T 16, batch 64, EMNIST CNN, CRL",
            Data(name=EMNIST, N_s=470),
            Model(network="emnist_cnn", norm="none"),
        ),
        crl(
            "B",
            "10 clients and the server, T 16, batch 64, ResNet-8 with GN at 32x32x3, CRL",
            Data(name="cifar10", N_s=1000),
            Model(network="resnet8", norm="gn", norm_groups=8),
        ),
        semifl("C", "SemiFL: 10 clients of 100 images, batch 10, one local pass, WResNet-28x2 with static BN"),
    )
}


def quick(work: Work) -> Work:
    """The same kind of work, two clients and a few images: shows that everything runs, and measures nothing."""
    experiment = work.experiment
    small = replace(experiment.federation, K=2, C=2, T=2)
    classes = DATASETS[experiment.data.name].num_classes
    sizes = {"batch_size": 4, "server_batch_size": 4}
    return replace(
        work,
        experiment=replace(
            experiment,
            data=replace(experiment.data, N_s=classes),
            federation=small,
            method=replace(experiment.method, **sizes),
        ),
        N_train=classes + 2 * 10,
        N_test=20,
        real=False,
    )


def with_clients(work: Work, K: int, C: int, images: int) -> Work:
    """The work on random images, `images` for each of K clients of which C train in a round."""
    federation = replace(work.experiment.federation, K=K, C=C)
    N_train = work.experiment.data.N_s + K * images
    return replace(work, experiment=replace(work.experiment, federation=federation), N_train=N_train, real=False)


def environment_of(work: Work, data_root: Path | None = None) -> Environment:
    """The work's images, held by the server and by clients of equal size. Raises ConfigError and DataError."""
    experiment = work.experiment
    name = experiment.data.name
    if work.real and at_hand(name, data_root):
        data = cut(load(name, data_root), work.N_train)
    else:
        data = random_images(name, work.N_train or 50_000, work.N_test)
    labels_N = data.train_labels_N.numpy()
    divided = split(
        labels_N,
        num_classes=data.num_classes,
        N_s=experiment.data.N_s,
        K=experiment.federation.K,
        partition=experiment.partition,
        seed=experiment.seed,
    )
    holders = held(divided, labels_N, experiment.data.label_setting)
    environment = Environment(experiment=experiment, data=data, split=divided, held=holders)
    experiment.method.check(environment.setup())
    return environment


def cut(data: DataSet, N_train: int | None) -> DataSet:
    """The set with its first images of each class only, so that there are N_train (a multiple of the classes)."""
    if N_train is None:
        return data
    labels_N = data.train_labels_N.numpy()
    each = N_train // data.num_classes
    kept_N = np.sort(np.concatenate([np.flatnonzero(labels_N == label)[:each] for label in range(data.num_classes)]))
    at_N = torch.from_numpy(kept_N)
    return replace(
        data, train_images_NCHW=data.train_images_NCHW[at_N].clone(), train_labels_N=data.train_labels_N[at_N]
    )


def random_images(name: str, N_train: int, N_test: int) -> DataSet:
    """Random uint8 images in the shape and with the classes of a known data set; classes in turn."""
    shape, num_classes = DATASETS[name].image_shape, DATASETS[name].num_classes
    draw = torch.Generator().manual_seed(0)
    mean, std = DATASETS[name].statistics or ((0.5,) * shape[0], (0.5,) * shape[0])
    return DataSet(
        name=f"random images like {name}",
        train_images_NCHW=torch.randint(0, 256, (N_train, *shape), dtype=torch.uint8, generator=draw),
        train_labels_N=torch.arange(N_train) % num_classes,
        test_images_NCHW=torch.randint(0, 256, (N_test, *shape), dtype=torch.uint8, generator=draw),
        test_labels_N=torch.arange(N_test) % num_classes,
        classes=tuple(map(str, range(num_classes))),
        mean=mean,
        std=std,
        content_hash="random",
    )


def samples_of(work: Work, environment: Environment) -> int:
    """Images that the local steps of a round train on, all confident (CRL: SSFL Eq. 4; SemiFL: Algorithm 1)."""
    experiment, method = environment.experiment, environment.experiment.method
    C, T = experiment.federation.C, experiment.federation.T
    of_client, at_server = len(environment.split.clients[0]), len(environment.split.server_N)
    if isinstance(method, SemiFL):
        return at_server + 2 * C * of_client  # the strong view, and the mix
    return T * (min(method.server_batch_size, at_server) + C * min(method.batch_size, of_client))
