"""Compute rounds without the suite's local step, losses or averages: batches are from the suite, the rest is plain
torch.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.experiment import Experiment
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.methods.protocol import SERVER, Job, Key, Limit, LocalUpdate, Selected, Stream, Weights
from benchmark.optimizer import Constant, Optimizer
from tests.federated.helpers import difference
from tests.methods.watch import tiny_with, watched

SGD_OF_TWO_RATES = Optimizer(lr=0.02, server_lr=0.05, schedule=Constant(), weight_decay=0.0, nesterov=False)
LR = 0.02


def experiment_of(method: Any, setting: Any = "some_clients", **changes: Any) -> Experiment:
    """Build an experiment of 4 clients on the 8x8 digits, of which one is labelled or all are partly labelled."""
    return replace(tiny_with(method, setting), optimizer=SGD_OF_TWO_RATES, **changes)


def partly_labelled(method: Any, norm: Any = "gn", *, T: int = 8, images: int = 120, **factors: Any) -> Experiment:
    """Build an experiment of 4 clients with 2 or 4 labelled and 22 or 32 other images.

    Its batch norms distinguish a joint forward pass from separate ones.
    """
    e = tiny_with(method, "share", T=T, **factors)
    sgd = Optimizer(lr=LR, schedule=Constant(), weight_decay=0.0, nesterov=False)
    return replace(e, data=replace(e.data, images=images), model=replace(e.model, norm=norm), optimizer=sgd)


def batches(
    environment: Environment,
    number: int,
    holder: int | Key,
    T: int,
    streams: Mapping[str, Stream],
    selected: Mapping[str, Selected] | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Return the T batches of a participant's job in this round."""
    key = holder if isinstance(holder, Key) else Key(client=holder)
    job = Job(key=key, update=LocalUpdate(), receives={}, data=streams, limit=Limit(steps=T))
    for batch in JobBatches(environment, job, number, selected=selected):
        yield batch.streams


def plain_images(environment: Environment, client: int, part: Any = "unlabelled") -> Tensor:
    """Return images_NCHW of the client, normalised and without augmentation."""
    data, assignment = environment.data, environment.assignment
    at_N = torch.as_tensor((assignment.labelled if part == "labelled" else assignment.unlabelled)[client])
    return (data.train_images_NCHW[at_N].to(torch.get_default_dtype()) / 255 - data.mean[0]) / data.std[0]


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def mean(students: Sequence[Weights], shares: Sequence[float] | None = None) -> Weights:
    """Average in float64, with equal shares by default."""
    pairs = list(zip(shares or [1 / len(students)] * len(students), students, strict=True))
    average = {}
    for name, value in students[0].items():
        terms = [share * student[name].double() for share, student in pairs]
        average[name] = torch.stack(terms).sum(0).to(value.dtype)
    return average


class PlainRounds:
    """Rounds of the cohort's clients, each with T steps of SGD from the mean, which is `now`.

    `job` is the local work of a client. `ends` computes the next mean from the results of the jobs.
    """

    def __init__(self, experiment: Experiment, rounds: int = 2) -> None:
        self.method: Any = experiment.method
        self.environment = prepare(experiment)
        self.T = experiment.federation.T
        self.rounds = rounds
        self.now = weights_of(self.environment.network())
        self.momentum: dict[Any, Any] = {}
        self.begin()
        for self.number in range(1, rounds + 1):
            cohort = self.environment.world(self.number, None).cohort()  # type: ignore[arg-type]
            self.play(cohort)

    def play(self, cohort: list[int]) -> None:
        self.ends([self.job(client) for client in cohort])

    def begin(self) -> None:
        """Prepare the rounds."""

    def job(self, client: int) -> Any:
        raise NotImplementedError

    def ends(self, returned: list[Any]) -> None:
        self.now = mean(returned)

    def network(self) -> Any:
        network = self.environment.network()
        network.load_state_dict(self.now)
        return network

    def optimizer(self, client: int, *networks: nn.Module, name: str = "", lr: float = LR) -> torch.optim.SGD:
        """Build the optimizer, with the momentum buffers that `keep` stored if the method keeps them."""
        sgd = torch.optim.SGD([p for network in networks for p in network.parameters()], lr=lr, momentum=0.9)
        if (former := self.momentum.get(self._state_key(client, name))) is not None:
            sgd.load_state_dict(former)
        return sgd

    def keep(self, client: int, sgd: torch.optim.SGD, name: str = "") -> None:
        if (state_key := self._state_key(client, name)) is not None:
            self.momentum[state_key] = sgd.state_dict()

    def _state_key(self, client: int, name: str) -> Any:
        return {"reset": None, "kept": (client, name), "released_code": name}[self.method.momentum]

    def batches(self, client: int, views: tuple[str, ...] = ("weak", "strong"), **selected: Any) -> Any:
        """Return the batches of a job, with 8 unlabelled images and a batch of labelled images per step."""
        size = self.method.labelled_batch_size
        streams = {"labelled": Stream(part="labelled", batch_size=size, views=("weak",))}
        if views:
            streams["unlabelled"] = Stream(part="unlabelled", batch_size=8, views=views)
        return batches(self.environment, self.number, client, self.T, streams, selected)

    def passed(self, network: Any, views: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute the logits of each view, in one joint or several separate forward passes."""
        if self.method.forward == "apart":
            return [network(view) for view in views]
        return network(torch.cat(list(views))).split([len(view) for view in views])


class AlternatingRounds(PlainRounds):
    """Rounds in which server and clients train alternately, with momentum in the server's step.

    Each participant keeps its momentum buffers.
    """

    def begin(self) -> None:
        self.velocity: dict[str, Any] = {}

    def _state_key(self, client: int, name: str) -> Any:
        return client if self.method.momentum == "released_code" else None

    def serve(self, draw: int, T: int = 2, *, keeps: bool = False) -> None:
        server = self.network().train()
        sgd = self.optimizer(SERVER, server, lr=0.05)
        streams = {"labelled": Stream.whole("labelled", 8)}
        key = Key(client=SERVER, draw=draw)
        for batch in batches(self.environment, self.number, key, T, streams):
            step(sgd, F.cross_entropy(server(batch["labelled"].views["weak"]), batch["labelled"].labels_N))
        if keeps:
            self.keep(SERVER, sgd)
        self.now = weights_of(server)

    def follow(self, target: Weights) -> None:
        """Set the statistics of norms to the target's."""
        trained = dict(self.environment.network().named_parameters())
        for name, w in self.now.items():
            if name in trained:
                change = w.double() - target[name].double()
                self.velocity[name] = self.method.server_momentum * self.velocity.get(name, 0.0) + change
            self.now[name] = (w.double() - self.velocity[name] if name in trained else target[name]).to(w.dtype)


class MeanTeachers(PlainRounds):
    """Rounds of RSCFed, Fed-Consist and FedIRM with all clients, labelled ones first.

    Only labelled clients train in a warm start.
    """

    def begin(self) -> None:
        self.teachers: dict[int, nn.Module] = {}
        self.steps: Counter[int] = Counter()

    def play(self, cohort: list[int]) -> None:
        labelled = self.environment.labelled
        warm = self.number <= self.method.warm_start_rounds
        clients = [k for k in range(self.environment.K) if labelled[k] or not warm]
        states = {k: self.job(k) for k in sorted(clients, key=lambda k: not labelled[k])}
        weights = self.weights(states)
        self.now = mean(list(states.values()), [weights[k] for k in states])

    def weights(self, states: Mapping[int, Weights]) -> Mapping[int, float]:
        """Return the weights of the clients' trained students in the mean."""
        total = sum(self.environment.sizes[k] for k in states)
        return {k: self.environment.sizes[k] / total for k in states}

    def loss_on_labels(self, student: nn.Module, images: Any) -> Tensor:
        return F.cross_entropy(student(images.views["weak"]), images.labels_N)

    def loss_of(self, student: nn.Module, teacher: nn.Module, views: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError

    def job(self, client: int) -> Weights:
        student = self.network()
        teacher = self.teachers.setdefault(client, self.network()).eval()
        labelled = bool(self.environment.labelled[client])
        alpha = self.method.alpha
        part: Any = "labelled" if labelled else "unlabelled"
        sgd = self.optimizer(client, student, lr=0.05 if labelled else LR)
        streams = {part: Stream.whole(part, 8, "weak", "weak2")}
        for batch in batches(self.environment, self.number, client, 2, streams):
            images = batch[part]
            step(
                sgd, self.loss_on_labels(student, images) if labelled else self.loss_of(student, teacher, images.views)
            )
            self.steps[client] += 1
            share = alpha if self.method.ema_warm_up == "paper" else max(alpha, 1 / self.steps[client])
            with torch.no_grad():
                for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                    mine.copy_(mine + share * (theirs - mine))
        return weights_of(student)


@functools.cache
def played(kind: Callable[[Experiment, int], PlainRounds], experiment: Experiment, rounds: int) -> Any:
    return kind(experiment, rounds)


def compared(
    kind: Callable[[Experiment, int], PlainRounds],
    experiment: Experiment,
    other: Experiment,
    rounds: int = 2,
    *,
    least: float = 1e-5,
) -> tuple[FederatedModule, Any]:
    """Compare the module after this number of rounds with plain torch, and return the module and the plain rounds.

    In plain torch the model must also differ from the model of a different setting, if one is given.
    """
    plain = played(kind, experiment, rounds)
    module, _ = watched(experiment, rounds)
    model = next(iter(module.models().values()))
    trained = {name: value for name, value in model.items() if value.is_floating_point()}
    assert difference(trained, plain.now) < 1e-6
    assert difference(trained, weights_of(module.environment.network())) > 1e-3
    assert (difference(trained, played(kind, other, rounds).now) > least) == (experiment != other)
    return module, plain
