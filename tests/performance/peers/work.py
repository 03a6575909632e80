"""The work that peers and we do in turn, written plainly: what a user of any framework brings along.

One round: the server's T supervised steps (SSFL Eq. 3), T FixMatch steps at each client (SSFL Eq. 4; every image is
sure enough, so that the work does not depend on learning), and the plain mean of all models (Eq. 8). The EMNIST CNN on
synthetic uint8 images. Momentum starts at zero in every round.

Batches, views and initial weights come from the same named streams as in `benchmark.federated.batches`, so that every
system here trains on the same numbers and must arrive at the same mean. Needs torch, NumPy, `benchmark.data`,
`benchmark.models` and `benchmark.streams`, none of which imports Lightning.

Legend: N images of a holder in a round (T x B), C channels, H W pixels, D classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.data.augment import Augmentation, make_views
from benchmark.errors import ConfigError
from benchmark.models.build import Model, build
from benchmark.streams import numpy_stream, torch_stream

SERVER = -1
IMAGE_SHAPE = (1, 28, 28)
NUM_CLASSES = 47
MEAN, STD = (0.1307,), (0.3081,)
MODEL = Model(network="emnist_cnn", norm="none")
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.03, 0.9, 5e-4
THRESHOLD = 0.0  # tau: every image is kept
SPAN = 512  # images augmented in one go, as in benchmark.federated.batches

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much is done in a round. The defaults are work A of `fssl bench`."""

    clients: int = 10  # C, all of them in every cohort
    steps: int = 16  # T
    batch: int = 64  # B, at clients and at the server
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clients", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)}; 1 or more would be right")

    @property
    def holders(self) -> tuple[int, ...]:
        """The server and the clients: one job each."""
        return (SERVER, *range(self.clients))

    @property
    def images(self) -> int:
        """N: each holder has as many images as a round takes."""
        return self.steps * self.batch


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a process computes: what a user of the framework can choose."""

    threads: int = 1
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads: {self.threads}; 1 or more would be right")

    def apply(self) -> None:
        """Set this process's number of threads."""
        torch.set_num_threads(self.threads)


@cache
def images_of(work: Work, holder: int) -> tuple[Tensor, Tensor]:
    """The holder's images_NCHW (uint8, uniform noise) and labels_N (int64; clients do not look at theirs)."""
    draw = torch_stream(work.seed, "synthetic", holder)
    images_NCHW = torch.randint(0, 256, (work.images, *IMAGE_SHAPE), dtype=torch.uint8, generator=draw)
    return images_NCHW, torch.randint(0, NUM_CLASSES, (work.images,), generator=draw)


def views_of(work: Work, holder: int, round_number: int) -> dict[str, Tensor]:
    """What the holder trains on in that round, in order: "weak" and, at the server "labels", at a client "strong"."""
    part, views = ("labelled", ("weak",)) if holder == SERVER else ("unlabelled", ("weak", "strong"))
    names = ("train", "round", round_number, "client", holder, "draw", 0, part)
    order_N = torch.from_numpy(numpy_stream(work.seed, *names, "order").permutation(work.images))
    draw = torch_stream(work.seed, *names, "augmentation")
    images_NCHW, labels_N = images_of(work, holder)
    span = max(1, SPAN // work.batch) * work.batch
    pieces = [
        make_views(images_NCHW[at_P], views, Augmentation(), MEAN, STD, draw)  # P images of a span
        for at_P in order_N.split(span)
    ]
    found = {view: torch.cat([piece[view] for piece in pieces]) for view in views}
    return {**found, "labels": labels_N[order_N]} if holder == SERVER else found


def batches_of(work: Work, holder: int, round_number: int) -> Iterable[dict[str, Tensor]]:
    """`views_of` cut into T batches."""
    pieces = {name: values.split(work.batch) for name, values in views_of(work, holder, round_number).items()}
    return [dict(zip(pieces, batch, strict=True)) for batch in zip(*pieces.values(), strict=True)]


def loss_of(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Eq. 3 where there are labels; else Eq. 4: cross-entropy of the strong view with the weak view's sure labels."""
    if "labels" in batch:
        return F.cross_entropy(network(batch["weak"]), batch["labels"])
    with torch.no_grad():
        confidence_N, labels_N = network(batch["weak"]).softmax(dim=1).max(dim=1)
    losses_N = F.cross_entropy(network(batch["strong"]), labels_N, reduction="none")
    return (losses_N * (confidence_N >= THRESHOLD)).mean()


def sgd(parameters: Iterable[nn.Parameter], lr: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """A new optimizer for each job, which resets the momentum."""
    return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY, fused=True)


def train(network: nn.Module, work: Work, holder: int, round_number: int) -> None:
    """The holder's T local steps, in place."""
    network.train()
    optimizer = sgd(network.parameters())
    for batch in batches_of(work, holder, round_number):
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def network_of(work: Work, channels_last: bool = False) -> nn.Module:
    """A network with the run's initial weights."""
    network = build(MODEL, IMAGE_SHAPE, NUM_CLASSES, work.seed)
    return network.to(memory_format=torch.channels_last) if channels_last else network


@cache
def reused_network(work: Work, channels_last: bool) -> nn.Module:
    """One network for all jobs of this process; whoever trains it loads weights into it first."""
    return network_of(work, channels_last)


def weights_of(network: nn.Module) -> Weights:
    """A copy of its parameters; the network has no buffers."""
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def serial_round(work: Work, start: Weights, round_number: int, channels_last: bool = False) -> Weights:
    """The mean of all models after one round, one job after another; summed in float64.

    In the memory order of whoever is compared: another order rounds otherwise, some ReLU of millions near zero then
    falls to the other side, and after 12 steps single weights differ by 4e-4 of the largest change.
    """
    network = network_of(work, channels_last)
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    for holder in work.holders:
        network.load_state_dict(start)
        train(network, work, holder, round_number)
        for name, value in network.named_parameters():
            total[name] += value.detach()
    return {name: (value / len(work.holders)).float() for name, value in total.items()}


def relative_difference(found: Weights, expected: Weights, start: Weights) -> float:
    """The largest difference of any weight, as a share of the largest change of any weight in that round.

    Raises KeyError where the names differ: a tensor that nobody compared must not count as equal.
    """
    if found.keys() != expected.keys():
        raise KeyError(f"the weights have other names: {sorted(found.keys() ^ expected.keys())}")
    return largest_distance(found, expected) / largest_distance(expected, start)


def largest_distance(left: Weights, right: Weights) -> float:
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)
