"""The yardstick of the engines: what a competent user would write in plain PyTorch, without this project.

One process, all threads, NCHW images, `torch.optim.SGD(fused=True)`, batched tensor augmentation of a client's whole
round in one call, one network that is loaded anew for each client, one client after another, then the average. No
allocator settings, no channels-last layout, no worker processes. From the project it takes the networks' definitions
(`benchmark.models`), the augmentation of tensors (`benchmark.data.augment`) and the experiment's rates and sizes, so
that both sides compute the same. That they do is tested: `tests/performance/test_tools.py`.

Legend: N images, P positions of a client's round, C channels, H W pixels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmark.data.augment import make_views
from benchmark.federated.environment import Environment
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import build

Weights = dict[str, Tensor]


class PlainLoop:
    """SSFL's round with FedAvg: T steps at the server and at each client, then the mean of all."""

    def __init__(self, environment: Environment, seed: int = 0) -> None:
        self.experiment, self.environment = environment.experiment, environment
        assert isinstance(self.experiment.method, SSFL)
        self.method = self.experiment.method
        data = environment.data
        self.network = build(self.experiment.model, data.image_shape, data.num_classes, self.experiment.seed).train()
        self.draw = torch.Generator().manual_seed(seed)
        self.weights = self.state()

    def state(self) -> Weights:
        return {name: value.clone() for name, value in self.network.state_dict().items()}

    def round(self, cohort: Sequence[int]) -> None:
        """One communication round with these clients."""
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self.server()
        self.add(total)
        for client in cohort:
            self.client(torch.as_tensor(self.environment.split.clients[client]))
            self.add(total)
        self.weights = {
            name: value / (len(cohort) + 1) if value.is_floating_point() else value for name, value in total.items()
        }

    def add(self, total: Weights) -> None:
        for name, value in self.network.state_dict().items():
            if value.is_floating_point():
                total[name] += value

    def server(self) -> None:
        optimizer = self.optimizer()
        at_P, size = self.order(torch.as_tensor(self.environment.split.server_N), self.method.server_batch_size)
        weak, labels_P = self.views(at_P, ("weak",))["weak"], self.environment.data.train_labels_N[at_P]
        for images_NCHW, labels_N in zip(weak.split(size), labels_P.split(size), strict=True):
            step(optimizer, functional.cross_entropy(self.network(images_NCHW), labels_N))

    def client(self, held_N: Tensor) -> None:
        optimizer, objective = self.optimizer(), self.method.objective
        assert isinstance(objective, CRL)
        at_P, size = self.order(held_N, self.method.batch_size)
        views = self.views(at_P, ("weak", "strong"))
        for weak_NCHW, strong_NCHW in zip(views["weak"].split(size), views["strong"].split(size), strict=True):
            with torch.no_grad():
                confidence_N, labels_N = self.network(weak_NCHW).softmax(dim=1).max(dim=1)
            losses_N = functional.cross_entropy(self.network(strong_NCHW), labels_N, reduction="none")
            step(optimizer, (losses_N * (confidence_N >= objective.threshold)).mean())

    def optimizer(self) -> torch.optim.Optimizer:
        """Loads the global weights into the network; a fresh optimizer for it."""
        self.network.load_state_dict(self.weights)
        s = self.experiment.optimizer
        return torch.optim.SGD(
            self.network.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay, nesterov=s.nesterov, fused=True
        )

    def order(self, held_N: Tensor, batch_size: int) -> tuple[Tensor, int]:
        """Positions of T batches, and the size of each. They come from reshuffled passes; an incomplete batch at a
        pass's end is left out."""
        size, steps = min(batch_size, len(held_N)), self.experiment.federation.T
        batches: list[Tensor] = []
        while len(batches) < steps:
            shuffled_N = held_N[torch.randperm(len(held_N), generator=self.draw)]
            batches += [at_N for at_N in shuffled_N.split(size) if len(at_N) == size]
        return torch.cat(batches[:steps]), size

    def views(self, at_P: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        data = self.environment.data
        augmentation = self.environment.augmentation
        return make_views(data.train_images_NCHW[at_P], names, augmentation, data.mean, data.std, self.draw)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
