"""What a run trains in: images, who holds which, and the network; the same for every method at equal settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.data.augment import Augmentation
from benchmark.data.datasets import DataSet, load
from benchmark.data.split import Split, split
from benchmark.experiment import Experiment
from benchmark.methods.protocol import CENTRAL, SERVER, Setup, Weights
from benchmark.models.build import build


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The images of one holder that a stream draws from: positions in `images_NCHW`.

    `labels_N` is None wherever the label setting hides labels; `truth_N` has them for measuring pseudo-labels only.
    """

    images_NCHW: Tensor  # uint8, the whole set: never copied per holder
    positions_N: Tensor  # int64
    labels_N: Tensor | None  # of the whole set
    truth_N: Tensor | None

    def __len__(self) -> int:
        return len(self.positions_N)


@dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """The data set, its split, and the parts that each holder trains on."""

    experiment: Experiment
    data: DataSet
    split: Split

    @property
    def augmentation(self) -> Augmentation:
        return self.experiment.data.augmentation

    def part(self, holder: int, name: str) -> Part:
        """The images of `holder` (a client, SERVER or CENTRAL) under that name. Raises KeyError where it has none."""
        labelled, validation, clients = self.split.server_N, self.split.validation_N, self.split.clients
        everywhere = self.experiment.data.label_setting == "everywhere"
        if name == "labelled" and holder in (SERVER, CENTRAL):
            return self._part(labelled, has_labels=True)
        if name == "validation" and holder in (SERVER, CENTRAL):
            return self._part(validation, has_labels=True)
        if name == "unlabelled" and holder >= 0:
            return self._part(clients[holder], has_labels=everywhere)
        if name == "unlabelled" and holder == CENTRAL:
            return self._part(np.concatenate(clients), has_labels=everywhere)
        raise KeyError(f"holder {holder} has no {name} images")

    def _part(self, positions: np.ndarray, *, has_labels: bool) -> Part:
        return Part(
            images_NCHW=self.data.train_images_NCHW,
            positions_N=torch.as_tensor(positions, dtype=torch.int64),
            labels_N=self.data.train_labels_N if has_labels else None,
            truth_N=self.data.train_labels_N,
        )

    @property
    def sizes(self) -> Mapping[int, int]:
        sizes = {client: len(positions) for client, positions in enumerate(self.split.clients)}
        return {**sizes, SERVER: len(self.split.server_N)}

    def network(self) -> nn.Module:
        """A network with the run's initial weights: the same for the same seed.

        Channels last: max-pooling and convolutions run about twice as fast on a CPU as in NCHW order.
        """
        model, data = self.experiment.model, self.data
        network = build(model, data.image_shape, data.num_classes, seed=self.experiment.seed)
        return network.to(memory_format=torch.channels_last)

    def setup(self) -> Setup:
        federation = self.experiment.federation
        return Setup(
            initial_weights=lambda: weights_of(self.network()),
            K=federation.K,
            C=federation.C,
            T=federation.T,
            sizes=self.sizes,
        )


def weights_of(network: nn.Module) -> Weights:
    """A copy of the network's parameters and buffers."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def prepare(experiment: Experiment, data_root: Path | None = None) -> Environment:
    """Load and split the data, and check the method against it. Raises ConfigError or DataError before any training."""
    data = load(experiment.data.name, data_root)
    divided = split(
        data.train_labels_N.numpy(),
        num_classes=data.num_classes,
        N_s=experiment.data.N_s,
        K=experiment.federation.K,
        partition=experiment.partition,
        seed=experiment.seed,
        N_validation=experiment.data.N_validation,
    )
    environment = Environment(experiment=experiment, data=data, split=divided)
    experiment.method.check(environment.setup())
    return environment
