"""Functions that methods share: means of weights, EMA, momentum and local work.

Sums are computed in job order and in float64, so that a result depends neither on the number of workers nor on the
order of their results.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.losses import supervised_loss
from benchmark.methods import protocol as fl
from benchmark.models.tensors import tensors_of

Otherwise = TypeVar("Otherwise", bound=fl.Weights | None)

# The server's part of a round.


class RunningMean:
    """A weighted mean of weight sets that are added one at a time.

    The weights of a whole cohort are therefore never in memory at the same time.
    """

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
        """Return the value; for an integer tensor, its difference from the first set's tensor.

        Float64 cannot represent all integers above 2^53.
        """
        return value if value.is_floating_point() else value.long() - self._like[name].long()

    def value(self) -> fl.Weights:
        """Return the mean in the dtypes of the first set; integers are rounded down. The total must be positive."""
        means = {}
        for name, first in self._like.items():
            value = self._sums[name] / self.total
            if not first.is_floating_point():
                # 1e-6 keeps the mean of equal integers exact, although weights such as thirds add up to a little less.
                value = first.long() + torch.floor(value + 1e-6).long()
            means[name] = value.to(first.dtype)
        return means


def mean(weight_sets: Sequence[fl.Weights], coefficients: Sequence[float] | None = None) -> fl.Weights:
    """Compute the weighted mean of `weight_sets`. Without coefficients all weights are equal."""
    running = RunningMean()
    for index, weights in enumerate(weight_sets):
        running.add(weights, 1.0 if coefficients is None else coefficients[index])
    return running.value()


def sent(outcomes: Iterable[fl.Outcome]) -> Iterator[tuple[int, fl.Tree]]:
    """Iterate over the number of each client and the tree that it sent, without clients that sent nothing."""
    return ((outcome.key.client, outcome.sends) for outcome in outcomes if not outcome.sat_out)


def mean_of(
    outcomes: Iterable[fl.Outcome], otherwise: Otherwise, weight: Callable[[int], float] = lambda client: 1.0
) -> fl.Weights | Otherwise:
    """Compute the weighted mean of the weight set "student" over the clients that sent something.

    `weight` maps a client's number to its weight; by default all clients have the same weight. Return `otherwise` if no
    client sent anything.
    """
    average = RunningMean()
    for client, sends in sent(outcomes):
        average.add(sends["student"], weight(client))
    return average.value() if average.total else otherwise


def ema(teacher: fl.Weights, student: fl.Weights, decay: float) -> fl.Weights:
    """Compute decay x teacher + (1 - decay) x student in float64 (FedSwitch Eq. 1).

    `decay` is the teacher's share, as in `ema_`. Integer counters are taken from the student.
    """
    return {
        name: (decay * teacher[name].double() + (1 - decay) * value.double()).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in student.items()
    }


@torch.no_grad()
def ema_(teacher: nn.Module, student: nn.Module, decay: float | Tensor, *, lerp: bool = False) -> None:
    """Set teacher <- decay x teacher + (1 - decay) x student in place, including running statistics.

    Integer counters are copied from the student. With decay 0 the teacher becomes the student bit by bit; with decay 1
    it does not change. With `lerp` the result is computed as teacher + (1 - decay) (student - teacher), and its last
    bit may differ; the run records of RSCFed were computed like this. With `lerp`, `decay` may also be a float64 scalar
    tensor, for a share that changes from step to step.
    """
    old, new = tensors_of(teacher), tensors_of(student)
    if isinstance(decay, Tensor) and decay.is_cpu:
        assert lerp
        for mine, theirs in zip(old.floats, new.floats, strict=True):
            mine.lerp_(theirs, (1 - decay).to(mine.dtype))
    elif isinstance(decay, Tensor):  # all tensors at once: `_foreach_lerp_` does not accept a weight on the device
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
    """Return copies of the network's buffers for a forward pass with `weights` inside a `torch.func` transform.

    A batch norm changes its buffers in place, which a transform only allows for tensors that it tracks. The copies are
    therefore computed from `weights`, which it tracks.
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
    """Update v <- beta v + (w - target) and w <- w - v for every trained parameter.

    This is the global momentum of SemiFL: SGD with rate 1 on w - mean of the clients (modules.py:39-60). Running
    statistics are copied from the target, and so are all `buffers` (`World.buffers`), since a custom norm may give its
    buffers any name. With beta = 0 the new weights are `target`, up to rounding.

    Return the new weights, and v in float64. Without a target return both unchanged.
    """
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


def refuse_fixed(setup: fl.Setup, reason: str) -> None:
    """Raise ConfigError if the network has parameters that are not trained, for a method that cannot use it."""
    if fixed := setup.fixed():
        raise ConfigError(
            f"model.network {setup.model.network} has {fixed[0]}, which is not trained, but with this method {reason}; "
            "choose a network that trains all its parameters, or a different method"
        )


def is_statistic(name: str) -> bool:
    """Return whether the tensor of this name is a running statistic and not a trained parameter."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def layer_of(name: str) -> str:
    """Return the name of the module that a tensor belongs to: "conv1" for "conv1.weight"."""
    return name.rpartition(".")[0]


# Local work.


@dataclass(frozen=True, kw_only=True)
class StudentUpdate(fl.LocalUpdate):
    """Local work on one weight set, which is received, trained and sent back.

    The participant keeps its momentum buffers if `keeps_momentum`.
    """

    keeps_momentum: bool = False

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        return self.begin(received, private, reader)

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        """Build the weight sets to train, for a participant that does not skip the round."""
        return fl.Local(trainable={"student": received["student"]}, momentum=(private or {}).get("momentum"))

    def finish(self, local: fl.Local) -> fl.Tree:
        """Return the weights; an empty tree if nothing was trained."""
        if not local.trainable:
            return {}
        local.private = {"momentum": local.momentum} if self.keeps_momentum else None
        return {"student": local.trainable["student"]}


def with_own_labels(local: fl.Local, labels_N: Tensor, kept_N: Tensor, stream: str = "unlabelled") -> fl.Local:
    """Limit a stream to the selected images, with the pseudo-labels that the client computed before training.

    Without a selected image nothing is trained, and the client skips the round.
    """
    at_N = kept_N.nonzero().flatten()
    local.pseudo = fl.PseudoLabelled(labels_N=labels_N, kept_N=kept_N)
    local.selected = {stream: fl.Selected(positions_N=at_N, labels_N=labels_N[at_N])}
    return local if len(at_N) else replace(local, trainable={})


@dataclass(frozen=True, kw_only=True)
class ReadOnlyUpdate(fl.LocalUpdate):
    """Local work that trains nothing and sends the result of `read`.

    If the result is empty, the participant skips the round.
    """

    is_stateless = True

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        """Return the tree to send."""
        raise NotImplementedError(f"{type(self).__name__} has no read")

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        answer = self.read(received, reader)
        return fl.Local(trainable={}, notes=answer) if answer else None

    def finish(self, local: fl.Local) -> fl.Tree:
        return local.notes


@dataclass(frozen=True, kw_only=True)
class SupervisedUpdate(StudentUpdate):
    """Local work that minimises the cross-entropy of the weak view with the labels of one stream (SSFL Eqs. 3, 6)."""

    stream: str = "labelled"
    reports: str = "client/labelled_loss"

    def loss(self, step: fl.Step) -> fl.Loss:
        loss = labelled_loss(step.student, step.batch[self.stream])
        return loss, {self.reports: loss}


@dataclass(frozen=True, kw_only=True)
class ServerUpdate(SupervisedUpdate):
    """Supervised local work at the server. Its loss is reported as `server/loss`."""

    reports: str = "server/loss"


def labelled_loss(network: nn.Module, batch: fl.Batch, view: str = "weak") -> Tensor:
    """Compute the cross-entropy on this view, a scalar. The batch must have labels."""
    return supervised_loss(network(batch.views[view]), batch.known_N)


@torch.no_grad()
def predict_weak(network: nn.Module, weak_NCHW: Tensor, mode: str) -> Tensor:
    """Compute logits_ND without a gradient, with dropout and batch norms in the mode "train" or "eval".

    The network must be in training mode, and it is in training mode afterwards.
    """
    if mode == "train":
        return network(weak_NCHW)
    network.eval()
    logits_ND = network(weak_NCHW)
    network.train()
    return logits_ND


def fit_each(
    world: fl.World,
    participants: Iterable[int],
    update: fl.LocalUpdate,
    receives: fl.Tree,
    data: Mapping[str, fl.Stream],
    *,
    learning_rate: Literal["client", "server"] | None = None,
) -> Iterator[fl.Outcome]:
    """Run the same local work from the same weights at each of these participants.

    Return the outcomes in the order of the participants.
    """
    return world.fit(
        [world.job(participant, update, receives, data, learning_rate=learning_rate) for participant in participants]
    )


def trained_at_server(
    student: fl.Weights,
    world: fl.World,
    batch_size: int,
    draw: int = 0,
    times: int = 1,
    *,
    keeps_momentum: bool = False,
) -> fl.Weights:
    """Train the student on the server's labelled images for `times` the length of a client's job, and return it."""
    update = ServerUpdate(keeps_momentum=keeps_momentum)
    data = {"labelled": fl.Stream.whole("labelled", batch_size)}
    limit = world.limit.times(times)
    return world.fit_one(fl.SERVER, update, {"student": student}, data, draw=draw, limit=limit)["student"]


def trained_on_labels(
    update: fl.LocalUpdate, student: fl.Weights, world: fl.World, batch_size: int, view: str = "weak"
) -> Iterator[fl.Outcome]:
    """Run local work on labels at the clients of `labelled_cohort`, and return the outcomes."""
    data = {"labelled": fl.Stream.whole("labelled", batch_size, view)}
    return fit_each(world, labelled_cohort(world), update, {"student": student}, data)


def labelled_cohort(world: fl.World) -> list[int]:
    """Return the clients of the cohort that have labels.

    If there are none, draw up to C of all clients with labels, since a baseline needs training in every round. The
    result is empty if no client has labels.
    """
    cohort = [client for client in world.cohort() if world.labelled[client]]
    if cohort:
        return cohort
    drawn = world.generator("cohort", "labelled").permutation(clients_with_labels(world))
    return [int(client) for client in drawn[: world.C]]


def clients_with_labels(known: fl.Setup | fl.World) -> list[int]:
    """List the clients that have at least one visible label."""
    return [client for client in range(known.K) if known.labelled[client]]
