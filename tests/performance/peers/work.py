"""What peers and we do in turn, written plainly, and how a driver takes its turns.

A round is the server's T supervised steps (SSFL Eq. 3), T FixMatch steps of each client (Eq. 4, every image sure, so
that the work does not depend on what is learned) and the plain mean of all models; the server is one holder more.
Batches and initial weights are the project's own, so that everybody trains on the same numbers and must arrive at the
same mean. Images are random; the optimizer starts anew in every job.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from multiprocessing.connection import Client
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import Environment, weights_of
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Stream
from benchmark.methods.shared import ServerUpdate
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import build
from tests.performance.works import ALL_CONFIDENT, WORKS, environment_of, quick, sgd_of

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a driver is told."""

    work: str  # of WORKS
    rounds: int
    processes: int  # that train at the same time
    threads: int = 1  # of each
    small: bool = False
    channels_last: bool = False
    address: str = ""  # of who gives the turns


@cache
def environment_for(setup: Setup) -> Environment:
    return environment_of(quick(WORKS[setup.work]) if setup.small else WORKS[setup.work])


def holders(environment: Environment) -> tuple[int, ...]:
    return (SERVER, *range(environment.experiment.federation.C))


def network_for(setup: Setup) -> nn.Module:
    """Return a network with the run's initial weights, in PyTorch's memory format unless the setup asks for channels
    last.
    """
    known = environment_for(setup)
    network = build(known.experiment.model, known.data.image_shape, known.data.num_classes, known.experiment.seed)
    return network.to(memory_format=torch.channels_last) if setup.channels_last else network


@cache
def reused_network(setup: Setup) -> nn.Module:
    """Return one network for all jobs of a process; the caller loads weights into it before training."""
    return network_for(setup)


def images_for(environment: Environment, holder: int, round_number: int) -> tuple[dict[str, Tensor], int]:
    """List a participant's images of the round in order ("weak", and "labels" or "strong"); count those of a step."""
    method, steps = environment.experiment.method, environment.experiment.federation.T
    assert isinstance(method, SSFL)
    if holder == SERVER:
        part, stream = "labelled", Stream(part="labelled", batch_size=method.server_batch_size, views=("weak",))
    else:
        part, stream = "unlabelled", Stream(part="unlabelled", batch_size=method.batch_size, views=("weak", "strong"))
    limit = Limit(steps=steps)
    job = Job(key=Key(client=holder), update=ServerUpdate(), receives={}, data={part: stream}, limit=limit)
    batches = [batch.streams[part] for batch in JobBatches(environment, job, round_number)]
    found = {}
    for view in stream.views:
        found[view] = torch.cat([batch.views[view] for batch in batches])
    if holder == SERVER:
        found["labels"] = torch.cat([batch.labels_N for batch in batches if batch.labels_N is not None])
    return found, len(found["weak"]) // steps


def loss_of(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Compute the loss of a batch: Eq. 3 if it has labels, and Eq. 4 if not.

    Eq. 4 is the cross-entropy of the strong view with the weak view's confident labels.
    """
    if "labels" in batch:
        return F.cross_entropy(network(batch["weak"]), batch["labels"])
    with torch.no_grad():
        confidence_N, labels_N = network(batch["weak"]).softmax(dim=1).max(dim=1)
    losses_N = F.cross_entropy(network(batch["strong"]), labels_N, reduction="none")
    return (losses_N * (confidence_N >= ALL_CONFIDENT)).mean()


def train(network: nn.Module, environment: Environment, holder: int, round_number: int) -> None:
    """Take the participant's T local steps in place."""
    network.train()
    optimizer = sgd_of(environment.experiment.optimizer, network)
    images, size = images_for(environment, holder, round_number)
    pieces = zip(*(values.split(size) for values in images.values()), strict=True)
    for piece in pieces:
        optimizer.zero_grad()
        loss_of(network, dict(zip(images, piece, strict=True))).backward()
        optimizer.step()


def by_hand(setup: Setup, round_number: int = 1, start: Weights | None = None) -> Weights:
    """Return the mean of all models after this round, trained in sequence.

    The network has the memory format of the contender, because a different format rounds differently and moves some
    image's label or activation across a threshold.
    """
    known, network = environment_for(setup), reused_network(setup)
    start = weights_of(network_for(setup)) if start is None else start
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    for holder in holders(known):
        network.load_state_dict(start)
        train(network, known, holder, round_number)
        for name, value in network.named_parameters():
            total[name] += value.detach()
    return {name: (value / len(holders(known))).float() for name, value in total.items()}


class Turns:
    """A driver's end: it does a round whenever it is its turn. Ends with EOFError where nobody asks any more."""

    def __init__(self, setup: Setup, packages: tuple[str, ...]) -> None:
        self._connection = Client(setup.address)
        self._left, self._first = setup.rounds, True
        self._connection.send({name: version(name) for name in packages} | {"python": sys.version.split()[0]})
        self._connection.recv()

    def lap(self, mean: Weights) -> None:
        """Report the end of a round with this mean, and return at the next turn."""
        self._connection.send({name: value.numpy() for name, value in mean.items()} if self._first else None)
        self._left, self._first = self._left - 1, False
        if self._left:
            self._connection.recv()


def setup_given(**changed: Any) -> Setup:
    """Return the setup that this driver got, and set the number of threads of its process."""
    setup = Setup(**json.loads(sys.argv[1]), **changed)
    torch.set_num_threads(setup.threads)
    return setup
