"""Rounds without the suite's local step, losses or averages: batches are the suite's, all else is plain torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.experiment import Experiment
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.methods.protocol import SERVER, Job, Key, Limit, LocalUpdate, Selected, Stream, Weights
from benchmark.optim.sgd import SGD, Constant
from tests.federated.helpers import difference
from tests.methods.watch import tiny_with, watched

SGD_OF_TWO_RATES = SGD(lr=0.02, server_lr=0.05, schedule=Constant(), weight_decay=0.0, nesterov=False)
LR = 0.02


def experiment_of(method: Any, setting: Any = "some_clients", **changes: Any) -> Experiment:
    """4 clients on the 8x8 digits, of whom one is labelled, or each partly."""
    return replace(tiny_with(method, setting), optimizer=SGD_OF_TWO_RATES, **changes)


def partly_labelled(method: Any, norm: Any = "gn", *, T: int = 8, images: int = 120, **factors: Any) -> Experiment:
    """4 clients of 2 or 4 labelled and 22 or 32 other images. Batch norm tells a joint forward from several."""
    e = tiny_with(method, "share", T=T, **factors)
    sgd = SGD(lr=LR, schedule=Constant(), weight_decay=0.0, nesterov=False)
    return replace(e, data=replace(e.data, images=images), model=replace(e.model, norm=norm), optimizer=sgd)


def batches(
    environment: Environment,
    number: int,
    holder: int | Key,
    T: int,
    streams: Mapping[str, Stream],
    selected: Mapping[str, Selected] | None = None,
) -> Iterator[Mapping[str, Any]]:
    """The T batches of a holder's job in that round."""
    key = holder if isinstance(holder, Key) else Key(client=holder)
    job = Job(key=key, update=LocalUpdate(), receives={}, data=streams, limit=Limit(steps=T))
    for batch in JobBatches(environment, job, number, selected=selected):
        yield batch.streams


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def mean(students: Sequence[Weights], shares: Sequence[float] | None = None) -> Weights:
    """In float64, of equal shares by default."""
    pairs = list(zip(shares or [1 / len(students)] * len(students), students, strict=True))
    return {
        name: torch.stack([share * student[name].double() for share, student in pairs]).sum(0).to(value.dtype)
        for name, value in students[0].items()
    }


class PlainRounds:
    """Rounds of the cohort's clients, each with T steps of SGD from the mean, which is `now`.

    `job` is a client's local work. `ends` makes the next mean of what jobs returned.
    """

    def __init__(self, experiment: Experiment, rounds: int = 2) -> None:
        self.method: Any = experiment.method
        self.environment = prepare(experiment)
        self.T, self.rounds, self.now = experiment.federation.T, rounds, weights_of(self.environment.network())
        self.momentum: dict[Any, Any] = {}
        self.begin()
        for self.number in range(1, rounds + 1):
            cohort = self.environment.world(self.number, None).cohort()  # type: ignore[arg-type]
            self.play(cohort)

    def play(self, cohort: list[int]) -> None:
        self.ends([self.job(client) for client in cohort])

    def begin(self) -> None:
        """Before the first round."""

    def job(self, client: int) -> Any:
        raise NotImplementedError

    def ends(self, returned: list[Any]) -> None:
        self.now = mean(returned)

    def network(self) -> Any:
        network = self.environment.network()
        network.load_state_dict(self.now)
        return network

    def optimizer(self, client: int, *networks: nn.Module, name: str = "") -> torch.optim.SGD:
        """With the momentum that `keep` left, where the method keeps it."""
        sgd = torch.optim.SGD([p for network in networks for p in network.parameters()], lr=LR, momentum=0.9)
        if (former := self.momentum.get(self._keeper(client, name))) is not None:
            sgd.load_state_dict(former)
        return sgd

    def keep(self, client: int, sgd: torch.optim.SGD, name: str = "") -> None:
        if (keeper := self._keeper(client, name)) is not None:
            self.momentum[keeper] = sgd.state_dict()

    def _keeper(self, client: int, name: str) -> Any:
        return {"reset": None, "kept": (client, name), "released_code": name}[self.method.momentum]

    def batches(self, client: int, views: tuple[str, ...] = ("weak", "strong"), **selected: Any) -> Any:
        """A batch of 8 unlabelled and one of labelled images a step."""
        size = self.method.labelled_batch_size
        streams = {"labelled": Stream(part="labelled", batch_size=size, views=("weak",))}
        if views:
            streams["unlabelled"] = Stream(part="unlabelled", batch_size=8, views=views)
        return batches(self.environment, self.number, client, self.T, streams, selected)

    def passed(self, network: Any, views: Sequence[Tensor]) -> Sequence[Tensor]:
        """Logits of each of the views, which pass together or apart."""
        if self.method.forward == "apart":
            return [network(view) for view in views]
        return network(torch.cat(list(views))).split([len(view) for view in views])


class AlternatingRounds(PlainRounds):
    """The server and the clients in turn, with momentum of the server's step. Buffers stay with their holder."""

    def begin(self) -> None:
        self.velocity: dict[str, Any] = {}

    def _keeper(self, client: int, name: str) -> Any:
        return client if self.method.momentum == "released_code" else None

    def serve(self, draw: int, T: int = 2, *, keeps: bool = False) -> None:
        server = self.network().train()
        sgd = self.optimizer(SERVER, server)
        sgd.param_groups[0]["lr"] = 0.05
        streams, key = {"labelled": Stream.whole("labelled", 8)}, Key(client=SERVER, draw=draw)
        for batch in batches(self.environment, self.number, key, T, streams):
            step(sgd, F.cross_entropy(server(batch["labelled"].views["weak"]), batch["labelled"].labels_N))
        if keeps:
            self.keep(SERVER, sgd)
        self.now = weights_of(server)

    def follow(self, target: Weights) -> None:
        """Statistics of norms are the target's."""
        trained = dict(self.environment.network().named_parameters())
        for name, w in self.now.items():
            if name in trained:
                change = w.double() - target[name].double()
                self.velocity[name] = self.method.server_momentum * self.velocity.get(name, 0.0) + change
            self.now[name] = (w.double() - self.velocity[name] if name in trained else target[name]).to(w.dtype)


def compared(experiment: Experiment, plain: PlainRounds, other: PlainRounds, *, least: float = 1e-5) -> Any:
    """The module after as many rounds, whose model is that of plain torch. By plain torch, too, it differs from that of
    another setting, unless it is the same."""
    module, _ = watched(experiment, plain.number)
    model = next(iter(module.models().values()))
    trained = {name: value for name, value in model.items() if value.is_floating_point()}
    assert difference(trained, plain.now) < 1e-6
    assert (difference(trained, other.now) > least) == (plain is not other)
    return module


def rounds_by_plain_torch(
    experiment: Experiment,
    rounds: int,
    *,
    weights: Callable[[Environment, Mapping[int, Weights]], Mapping[int, float]],
    loss_of: Callable[[nn.Module, nn.Module, Mapping[str, Tensor], int], Tensor],
    alpha: float,
    on_labels: Callable[[Environment, nn.Module, int], None] = lambda environment, student, client: None,
    label_views: tuple[str, ...] = ("weak",),
    smoothing: float = 0.0,
    warm: int = 0,
) -> tuple[Weights, dict[int, Weights]]:
    """Of mean teachers (RSCFed, Fed-Consist, FedIRM): the mean, and the teachers. All clients once a round, T = 2, from
    the mean; teachers from the first mean.

    `weights` of the clients' trained students in the mean; `loss_of` student, teacher and views in a round, without
    labels; `on_labels` is called with the trained student of each labelled client, before any other trains. Losses of
    labels, smoothed, are added over `label_views`. In the first `warm` rounds the one labelled client is alone.
    """
    environment = prepare(experiment)
    now, clients = weights_of(environment.network()), range(environment.K)
    students, teachers = ({k: environment.network() for k in clients} for _ in range(2))
    labelled = environment.labelled
    for number in range(1, rounds + 1):
        if number == warm + 1:
            for teacher in teachers.values():
                teacher.load_state_dict(now)
        for k in sorted((k for k in clients if labelled[k] or number > warm), key=lambda k: not labelled[k]):
            student, teacher = students[k], teachers[k].eval()
            student.load_state_dict(now)
            part: Any = "labelled" if labelled[k] else "unlabelled"
            views = label_views if labelled[k] else ("weak", "weak2")
            optimizer = torch.optim.SGD(student.parameters(), lr=0.05 if labelled[k] else 0.02, momentum=0.9)
            for batch in batches(environment, number, k, 2, {part: Stream.whole(part, 8, *views)}):
                images = batch[part]
                if labelled[k]:
                    loss = torch.zeros(())
                    for view in label_views:
                        log_ND = student(images.views[view]).log_softmax(1)
                        right_N = log_ND.gather(1, images.labels_N[:, None])
                        loss = loss - (1 - smoothing) * right_N.mean() - smoothing * log_ND.mean()
                else:
                    loss = loss_of(student, teacher, images.views, number)
                step(optimizer, loss)
                with torch.no_grad():
                    for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                        mine.copy_(mine + alpha * (theirs - mine))
            if labelled[k]:
                on_labels(environment, student, k)
        if number <= warm:
            (alone,) = (k for k in clients if labelled[k])
            now = weights_of(students[alone])
            continue
        states = {k: weights_of(students[k]) for k in clients}
        weight = weights(environment, states)
        now = {name: torch.stack([weight[k] * states[k][name] for k in clients]).sum(0) for name in now}
    return now, {k: weights_of(teachers[k]) for k in clients}
