"""The yardstick of the engines: what a competent user would write in plain PyTorch, without this project.

One process, all threads, NCHW images, `torch.optim.SGD(fused=True)`, batched tensor augmentation of a client's whole
round in one call, one network that is loaded anew for each client, one client after another, then the average. No
allocator settings, no channels-last layout, no worker processes. From the project it takes the networks' definitions
(`benchmark.models`), the augmentation of tensors (`benchmark.data.augment`) and the experiment's rates and sizes, so
that both sides compute the same. That they do is tested: `tests/federated/test_performance_tools.py`.

Legend: N images, P positions of a client's round, C channels, H W pixels, D classes.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmark.data.augment import make_views
from benchmark.federated.environment import Environment
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import build


class PlainLoop:
    """SSFL's round (CRL, FedAvg): T steps on labels at the server and T on pseudo-labels at each client."""

    def __init__(self, environment: Environment) -> None:
        experiment, data = environment.experiment, environment.data
        assert isinstance(experiment.method, SSFL) and isinstance(experiment.method.objective, CRL)
        self.data, self.augmentation, self.sgd = data, environment.augmentation, experiment.optimizer
        self.method, self.T = experiment.method, experiment.federation.T
        self.threshold = experiment.method.objective.threshold
        self.server_N = torch.as_tensor(environment.split.server_N)
        self.clients = [torch.as_tensor(held_N) for held_N in environment.split.clients]
        self.network = build(experiment.model, data.image_shape, data.num_classes, seed=experiment.seed).train()
        self.draw = torch.Generator().manual_seed(experiment.seed)
        self.weights = self.state()

    def round(self, cohort: Sequence[int]) -> None:
        """One communication round with these clients."""
        self.server()
        total = self.state()
        for client in cohort:
            self.client(self.clients[client])
            for name, value in self.network.state_dict().items():
                total[name] += value
        self.weights = {name: value / (len(cohort) + 1) for name, value in total.items()}

    def server(self) -> None:
        optimizer = self.optimizer()
        order = list(self.order(len(self.server_N), self.method.server_batch_size))
        at_P = self.server_N[torch.cat(order)]
        weak = self.views(at_P, ("weak",))["weak"].split(len(order[0]))
        for images_NCHW, labels_N in zip(weak, self.data.train_labels_N[at_P].split(len(order[0])), strict=True):
            step(optimizer, functional.cross_entropy(self.network(images_NCHW), labels_N))

    def client(self, held_N: Tensor) -> None:
        optimizer = self.optimizer()
        order = list(self.order(len(held_N), self.method.batch_size))
        views, size = self.views(held_N[torch.cat(order)], ("weak", "strong")), len(order[0])
        for weak_NCHW, strong_NCHW in zip(views["weak"].split(size), views["strong"].split(size), strict=True):
            with torch.no_grad():
                confidence_N, labels_N = self.network(weak_NCHW).softmax(dim=1).max(dim=1)
            losses_N = functional.cross_entropy(self.network(strong_NCHW), labels_N, reduction="none")
            step(optimizer, (losses_N * (confidence_N >= self.threshold)).mean())

    def state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.network.state_dict().items()}

    def views(self, at_P: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        images_NCHW = self.data.train_images_NCHW[at_P]
        return make_views(images_NCHW, names, self.augmentation, self.data.mean, self.data.std, self.draw)

    def optimizer(self) -> torch.optim.Optimizer:
        """A new one for the network, which gets the global weights."""
        self.network.load_state_dict(self.weights)
        s = self.sgd
        return torch.optim.SGD(
            self.network.parameters(),
            lr=s.lr,
            momentum=s.momentum,
            nesterov=s.nesterov,
            weight_decay=s.weight_decay,
            fused=True,
        )

    def order(self, count: int, batch_size: int) -> Iterator[Tensor]:
        """Positions of T batches; a holder's images are shuffled anew when they have all been taken."""
        batch_size = min(batch_size, count)
        left = torch.empty(0, dtype=torch.int64)
        for _ in range(self.T):
            if len(left) < batch_size:
                left = torch.randperm(count, generator=self.draw)
            batch, left = left[:batch_size], left[batch_size:]
            yield batch


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
