"""Functions that methods share: means of weights, EMA, momentum, local work.

Sums run in job order in float64, so that a result depends neither on the number of workers nor on which is first.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from benchmark.losses import supervised_loss
from benchmark.methods import protocol as fl
from benchmark.models.tensors import tensors_of

Otherwise = TypeVar("Otherwise", bound=fl.Weights | None)

# The server's side of a round.


class RunningMean:
    """A weighted mean of weight sets, added one at a time. So a cohort's weights are never in memory all at once."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._like: fl.Weights = {}
        self.total = 0.0

    def add(self, weights: fl.Weights, weight: float = 1.0) -> None:
        if not self._sums:
            self._like = weights
            self._sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
        values = [self._less_first(name, value) for name, value in weights.items()]
        torch._foreach_add_([self._sums[name] for name in weights], values, alpha=weight)
        self.total += weight

    def _less_first(self, name: str, value: Tensor) -> Tensor:
        """The value; of whole numbers what is more than in the first set: float64 has none above 2^53 exactly."""
        return value if value.is_floating_point() else value.long() - self._like[name].long()

    def value(self) -> fl.Weights:
        """The mean, in its former dtype (whole numbers are rounded down). Needs a positive total."""
        means = {}
        for name, first in self._like.items():
            value = self._sums[name] / self.total
            if not first.is_floating_point():
                # A whole number is itself, although thirds of it add up to a little less.
                value = first.long() + torch.floor(value + 1e-6).long()
            means[name] = value.to(first.dtype)
        return means


def mean(weight_sets: Sequence[fl.Weights], coefficients: Sequence[float] | None = None) -> fl.Weights:
    """The weighted mean of `weight_sets`; equal weights where no coefficients are given."""
    running = RunningMean()
    for index, weights in enumerate(weight_sets):
        running.add(weights, 1.0 if coefficients is None else coefficients[index])
    return running.value()


def sent(outcomes: Iterable[fl.Outcome]) -> Iterator[tuple[int, fl.Tree]]:
    """Each client's number, and what it sent. Without the clients that sent nothing."""
    return ((outcome.key.client, outcome.sends) for outcome in outcomes if not outcome.sat_out)


def mean_of(
    outcomes: Iterable[fl.Outcome], otherwise: Otherwise, weight: Callable[[int], float] = lambda client: 1.0
) -> fl.Weights | Otherwise:
    """The mean of the weight set "student" over the clients that sent something. `otherwise` where no client did.
    `weight` of a client's number; default: all count alike."""
    average = RunningMean()
    for client, sends in sent(outcomes):
        average.add(sends["student"], weight(client))
    return average.value() if average.total else otherwise


def ema(teacher: fl.Weights, student: fl.Weights, decay: float) -> fl.Weights:
    """decay x teacher + (1 - decay) x student, in float64; counters are the student's. FedSwitch Eq. 1. `decay` is
    the teacher's share, here and in `ema_`."""
    return {
        name: (decay * teacher[name].double() + (1 - decay) * value.double()).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in student.items()
    }


@torch.no_grad()
def ema_(teacher: nn.Module, student: nn.Module, decay: float | Tensor, *, lerp: bool = False) -> None:
    """Set teacher <- decay x teacher + (1 - decay) x student, in place, also for running statistics.

    Counters are the student's. decay 0 gives the student bit by bit, 1 leaves the teacher. `lerp`: as teacher + (1 -
    decay) (student - teacher), which rounds differently in the last bit; RSCFed's records were made so. `decay` may be
    a scalar of float64 if `lerp`: a share that changes from step to step.
    """
    old, new = tensors_of(teacher), tensors_of(student)
    if isinstance(decay, Tensor) and decay.is_cpu:
        assert lerp
        for mine, theirs in zip(old.floats, new.floats, strict=True):
            mine.lerp_(theirs, (1 - decay).to(mine.dtype))
    elif isinstance(decay, Tensor):  # all tensors at once: there is no such lerp with a share on the device
        steps = torch._foreach_sub(new.floats, old.floats)
        torch._foreach_mul_(steps, (1 - decay).to(old.floats[0].dtype))
        torch._foreach_add_(old.floats, steps)
    elif lerp:
        torch._foreach_lerp_(old.floats, new.floats, 1 - decay)
    else:
        torch._foreach_mul_(old.floats, decay)
        torch._foreach_add_(old.floats, new.floats, alpha=1 - decay)
    if old.counters:
        torch._foreach_copy_(old.counters, new.counters)


def buffers_within(network: nn.Module, weights: fl.Weights) -> fl.Weights:
    """Return copies of the network's buffers for a pass with `weights` inside of a `torch.func` transform.

    A batch norm changes them in place, which a transform allows for its own tensors only. So they are made from
    `weights`, which are its own.
    """
    zero = torch.zeros_like(next(iter(weights.values())).flatten()[0])
    return {name: buffer + zero.to(buffer.dtype) for name, buffer in network.named_buffers()}


@torch.no_grad()
def put_buffers(network: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Copy running statistics and counters into the network, in place."""
    for name, buffer in network.named_buffers():
        buffer.copy_(buffers[name])


def momentum_step(
    weights: fl.Weights,
    target: fl.Weights | None,
    velocity: fl.Weights | None,
    beta: float,
    buffers: Collection[str] = (),
) -> tuple[fl.Weights, fl.Weights | None]:
    """v <- beta v + (w - target), w <- w - v for every trained parameter. Running statistics are the target's, and so
    are all `buffers` (`World.buffers`), whose names in a custom norm are its own.
    SemiFL's global momentum: SGD with rate 1 on w - mean of the clients (modules.py:39-60). beta = 0 gives `target`
    (up to rounding). Returns the new weights and v, in float64. Without a target both come back unchanged."""
    if target is None:
        return weights, velocity
    moved, kept = {}, {}
    for name, value in weights.items():
        if is_statistic(name) or name in buffers:
            moved[name] = target[name]
            continue
        change = value.double() - target[name].double()
        kept[name] = change if velocity is None else beta * velocity[name] + change
        moved[name] = (value.double() - kept[name]).to(value.dtype)
    return moved, kept


def is_statistic(name: str) -> bool:
    """Whether a tensor is a running statistic and not a trained parameter."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def layer_of(name: str) -> str:
    """The module that a tensor belongs to: "conv1" of "conv1.weight"."""
    return name.rpartition(".")[0]


# Local work.


@dataclass(frozen=True, kw_only=True)
class StudentUpdate(fl.LocalUpdate):
    """One weight set, received, trained and sent back. The holder may keep its momentum buffers."""

    keeps_momentum: bool = False

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        return self.begin(received, private, reader)

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        """`start` of a holder that does train."""
        return fl.Local(trainable={"student": received["student"]}, momentum=(private or {}).get("momentum"))

    def finish(self, local: fl.Local) -> fl.Tree:
        """The weights; nothing where nothing was trained."""
        if not local.trainable:
            return {}
        local.private = {"momentum": local.momentum} if self.keeps_momentum else None
        return {"student": local.trainable["student"]}


def with_own_labels(local: fl.Local, labels_N: Tensor, kept_N: Tensor, stream: str = "unlabelled") -> fl.Local:
    """Training on the kept images with labels that the client gave them on receipt. Without any it sits out."""
    at_N = kept_N.nonzero().flatten()
    local.pseudo = fl.PseudoLabelled(labels_N=labels_N, kept_N=kept_N)
    local.selected = {stream: fl.Selected(positions_N=at_N, labels_N=labels_N[at_N])}
    return local if len(at_N) else replace(local, trainable={})


@dataclass(frozen=True, kw_only=True)
class ReadOnlyUpdate(fl.LocalUpdate):
    """Trains nothing: the result of `read` is sent. Where it is empty, the holder sits out."""

    is_stateless = True

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        raise NotImplementedError(f"{type(self).__name__} has no read")

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        answer = self.read(received, reader)
        return fl.Local(trainable={}, notes=answer) if answer else None

    def finish(self, local: fl.Local) -> fl.Tree:
        return local.notes


@dataclass(frozen=True, kw_only=True)
class SupervisedUpdate(StudentUpdate):
    """Cross-entropy of the weak view with one stream's labels (SSFL Eqs. 3 and 6)."""

    stream: str = "labelled"
    reports: str = "client/labelled_loss"

    def loss(self, step: fl.Step) -> fl.Loss:
        loss = labelled_loss(step.student, step.batch[self.stream])
        return loss, {self.reports: loss}


@dataclass(frozen=True, kw_only=True)
class ServerUpdate(SupervisedUpdate):
    """The same work at the server."""

    reports: str = "server/loss"


def labelled_loss(network: nn.Module, batch: fl.Batch, view: str = "weak") -> Tensor:
    """Cross-entropy on that view, a scalar. The label setting has been checked: there are labels."""
    return supervised_loss(network(batch.views[view]), batch.known_N)


@torch.no_grad()
def predict_weak(network: nn.Module, weak_NCHW: Tensor, mode: str) -> Tensor:
    """Logits without a gradient, in training or in evaluation mode. Dropout and batch statistics are those of the
    mode."""
    if mode == "train":
        return network(weak_NCHW)
    network.eval()
    logits_ND = network(weak_NCHW)
    network.train()
    return logits_ND


def fit_each(
    world: fl.World,
    holders: Iterable[int],
    update: fl.LocalUpdate,
    receives: fl.Tree,
    data: Mapping[str, fl.Stream],
    *,
    learning_rate: Literal["client", "server"] | None = None,
) -> Iterator[fl.Outcome]:
    """The outcomes of the same local work at each of these holders. From the same weights, in the holders' order."""
    return world.fit([world.job(holder, update, receives, data, learning_rate=learning_rate) for holder in holders])


def trained_at_server(
    student: fl.Weights,
    world: fl.World,
    batch_size: int,
    draw: int = 0,
    times: int = 1,
    *,
    keeps_momentum: bool = False,
) -> fl.Weights:
    """The student after local work on the server's labelled images. It lasts `times` as long as a client's."""
    update, data = ServerUpdate(keeps_momentum=keeps_momentum), {"labelled": fl.Stream.whole("labelled", batch_size)}
    limit = world.limit.times(times)
    return world.fit_one(fl.SERVER, update, {"student": student}, data, draw=draw, limit=limit)["student"]


def trained_on_labels(
    update: fl.LocalUpdate, student: fl.Weights, world: fl.World, batch_size: int, view: str = "weak"
) -> Iterator[fl.Outcome]:
    """The outcomes of local work on labels, at the cohort's clients that have some."""
    data = {"labelled": fl.Stream.whole("labelled", batch_size, view)}
    return fit_each(world, labelled_cohort(world), update, {"student": student}, data)


def labelled_cohort(world: fl.World) -> list[int]:
    """The clients of the cohort that have labels. Where none of them has, up to C of those that do, drawn anew: a
    round without training would not be a baseline. Empty where no client has labels."""
    cohort = [client for client in world.cohort() if world.labelled[client]]
    if cohort:
        return cohort
    drawn = world.generator("cohort", "labelled").permutation(clients_with_labels(world))
    return [int(client) for client in drawn[: world.C]]


def clients_with_labels(known: fl.Setup | fl.World) -> list[int]:
    return [client for client in range(known.K) if known.labelled[client]]
