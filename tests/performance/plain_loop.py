"""The yardstick of the engines: what a competent user would write in plain PyTorch, without this project.

One process, all threads, NCHW images, `torch.optim.SGD(fused=True)`, batched tensor augmentation of a client's whole
round in one call, one network that is loaded anew for each client, one client after another, then the average. No
allocator settings, no channels-last layout, no worker processes. From the project it takes the networks' definitions
(`benchmark.models`), the augmentation of tensors (`benchmark.data.augment`) and the experiment's rates and sizes, so
that both sides compute the same. That they do is tested: `tests/performance/test_plain_loop.py`.

Legend: N images, P positions of a client's round, C channels, H W pixels, D classes.
"""

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark.data.augment import Augmentation, make_views
from benchmark.federated.environment import Environment
from benchmark.methods.semifl import SemiFL
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import build
from benchmark.optim.sgd import SGD

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Images:
    """All images in memory, and who holds which."""

    images_NCHW: Tensor  # uint8
    labels_N: Tensor
    server_N: Tensor  # positions
    clients: Sequence[Tensor]  # positions of each
    mean: Sequence[float]
    std: Sequence[float]
    augmentation: Augmentation

    def views(self, at_P: Tensor, names: Sequence[str], draw: torch.Generator) -> dict[str, Tensor]:
        return make_views(self.images_NCHW[at_P], names, self.augmentation, self.mean, self.std, draw)


class PlainLoop(abc.ABC):
    """What the two loops share: a network, an optimizer for each client, batches, an average."""

    def __init__(self, images: Images, network: nn.Module, sgd: SGD, method: Any, seed: int = 0) -> None:
        self.images, self.network, self.sgd, self.method = images, network.train(), sgd, method
        self.draw = torch.Generator().manual_seed(seed)
        self.weights = self.state()

    @abc.abstractmethod
    def round(self, cohort: Sequence[int]) -> None:
        """One communication round with these clients."""

    def state(self) -> Weights:
        return {name: value.clone() for name, value in self.network.state_dict().items()}

    def optimizer(self) -> torch.optim.Optimizer:
        """Loads the global weights into the network; a fresh optimizer for it."""
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

    def order(self, count: int, batch_size: int, steps: int) -> Iterator[Tensor]:
        """Positions of `steps` batches from reshuffled passes; an incomplete batch at a pass's end is left out."""
        batch_size = min(batch_size, count)
        done = 0
        while done < steps:
            for at_N in torch.randperm(count, generator=self.draw).split(batch_size):
                if len(at_N) == batch_size and done < steps:
                    done += 1
                    yield at_N

    def average(self, total: Weights, count: int) -> Weights:
        return {name: value / count if value.is_floating_point() else value for name, value in total.items()}

    def add(self, total: Weights) -> None:
        for name, value in self.network.state_dict().items():
            if value.is_floating_point():
                total[name] += value


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


class CRLLoop(PlainLoop):
    """SSFL's round with FedAvg: T steps at the server and at each client, then the mean of all."""

    def __init__(self, images: Images, network: nn.Module, sgd: SGD, method: SSFL, T: int, seed: int = 0) -> None:
        super().__init__(images, network, sgd, method, seed)
        self.T = T

    def round(self, cohort: Sequence[int]) -> None:
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self.server()
        self.add(total)
        for client in cohort:
            self.client(self.images.clients[client])
            self.add(total)
        self.weights = self.average(total, len(cohort) + 1)

    def server(self) -> None:
        optimizer, held_N = self.optimizer(), self.images.server_N
        order = list(self.order(len(held_N), self.method.server_batch_size, self.T))
        at_P = held_N[torch.cat(order)]
        weak = self.images.views(at_P, ("weak",), self.draw)["weak"].split(len(order[0]))
        for images_NCHW, labels_N in zip(weak, self.images.labels_N[at_P].split(len(order[0])), strict=True):
            step(optimizer, functional.cross_entropy(self.network(images_NCHW), labels_N))

    def client(self, held_N: Tensor) -> None:
        optimizer = self.optimizer()
        order = list(self.order(len(held_N), self.method.batch_size, self.T))
        views = self.images.views(held_N[torch.cat(order)], ("weak", "strong"), self.draw)
        size = len(order[0])
        for weak_NCHW, strong_NCHW in zip(views["weak"].split(size), views["strong"].split(size), strict=True):
            with torch.no_grad():
                confidence_N, labels_N = self.network(weak_NCHW).softmax(dim=1).max(dim=1)
            losses_N = functional.cross_entropy(self.network(strong_NCHW), labels_N, reduction="none")
            step(optimizer, (losses_N * (confidence_N >= self.method.objective.threshold)).mean())


class SemiFLLoop(PlainLoop):
    """SemiFL's round: one pass at the server, statistics of batch norm, one pass at each client, global momentum."""

    def __init__(self, images: Images, network: nn.Module, sgd: SGD, method: SemiFL, seed: int = 0) -> None:
        super().__init__(images, network, sgd, method, seed)
        self.velocity = {name: torch.zeros_like(v) for name, v in self.weights.items()}

    def round(self, cohort: Sequence[int]) -> None:
        self.server()
        self.weights = self.state()
        self.statistics()
        self.weights = self.state()
        total, sent = {name: torch.zeros_like(value) for name, value in self.weights.items()}, 0
        for client in cohort:
            if self.client(self.images.clients[client]):
                self.add(total)
                sent += 1
        if not sent:
            return
        for name, mean in self.average(total, sent).items():
            if mean.is_floating_point():
                self.velocity[name] = self.method.server_momentum * self.velocity[name] + self.weights[name] - mean
                self.weights[name] = self.weights[name] - self.velocity[name]

    def server(self) -> None:
        optimizer, held_N, size = self.optimizer(), self.images.server_N, self.method.server_batch_size
        at_P = held_N[torch.randperm(len(held_N), generator=self.draw)]
        weak = self.images.views(at_P, ("weak",), self.draw)["weak"].split(size)
        for images_NCHW, labels_N in zip(weak, self.images.labels_N[at_P].split(size), strict=True):
            step(optimizer, functional.cross_entropy(self.network(images_NCHW), labels_N))

    @torch.no_grad()
    def statistics(self) -> None:
        """Running statistics as the mean over batches of 250 of everyone's images."""
        norms = [part for part in self.network.modules() if isinstance(part, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # cumulative
        for held_N in (self.images.server_N, *self.images.clients) if norms else ():
            for at_N in held_N.split(250):
                self.network(self.images.views(at_N, ("plain",), self.draw)["plain"])

    def client(self, held_N: Tensor) -> bool:
        """Labels once, then one pass of fix and mix. False where no image is confident."""
        optimizer, size = self.optimizer(), self.method.batch_size
        confidence_N, labels_N = self.label(held_N)
        kept_N = confidence_N >= self.method.threshold
        sure_N, unsure_N = kept_N.nonzero().flatten(), (~kept_N).nonzero().flatten()
        if not len(sure_N):
            return False
        sure_N = sure_N[torch.randperm(len(sure_N), generator=self.draw)]
        others_N = unsure_N if len(unsure_N) else sure_N
        drawn_N = others_N[torch.randint(len(others_N), (len(sure_N),), generator=self.draw)]
        fix = self.images.views(held_N[sure_N], ("weak", "strong"), self.draw)
        mix_NCHW = self.images.views(held_N[drawn_N], ("weak",), self.draw)["weak"]
        pieces = (fix["weak"], fix["strong"], mix_NCHW, labels_N[sure_N], labels_N[drawn_N])
        for weak, strong, other, y, other_y in zip(*(piece.split(size) for piece in pieces), strict=True):
            share = float(torch.distributions.Beta(self.method.beta, self.method.beta).sample())
            fix_loss = functional.cross_entropy(self.network(strong), y)
            mixed_ND = self.network(share * weak + (1 - share) * other)
            mix_loss = share * functional.cross_entropy(mixed_ND, y)
            mix_loss = mix_loss + (1 - share) * functional.cross_entropy(mixed_ND, other_y)
            step(optimizer, fix_loss + self.method.mix_weight * mix_loss)
        return True

    @torch.no_grad()
    def label(self, held_N: Tensor) -> tuple[Tensor, Tensor]:
        """Confidence and label of every image, from one weak view in evaluation mode."""
        self.network.eval()
        found = [self.network(self.images.views(at_N, ("weak",), self.draw)["weak"]) for at_N in held_N.split(128)]
        self.network.train()
        confidence_N, labels_N = torch.cat(found).softmax(dim=1).max(dim=1)
        return confidence_N, labels_N


def loop_of(environment: Environment) -> PlainLoop:
    """The plain loop on the images, holders, network and settings of an experiment with SSFL (CRL) or SemiFL."""
    experiment, method = environment.experiment, environment.experiment.method
    model, data = experiment.model, environment.data
    if model.norm == "sbn":  # PyTorch's own batch norm, with the statistics asked for in a pass
        model = replace(model, norm="bn")
    network = build(model, data.image_shape, data.num_classes, seed=experiment.seed)
    images = Images(
        images_NCHW=data.train_images_NCHW,
        labels_N=data.train_labels_N,
        server_N=torch.as_tensor(environment.split.server_N),
        clients=[torch.as_tensor(held_N) for held_N in environment.split.clients],
        mean=data.mean,
        std=data.std,
        augmentation=environment.augmentation,
    )
    if isinstance(method, SemiFL):
        return SemiFLLoop(images, network, experiment.optimizer, method)
    assert isinstance(method, SSFL)
    return CRLLoop(images, network, experiment.optimizer, method, experiment.federation.T)
