"""HeteroFL: supervised averaging of clients whose networks have several widths.

Each network is a leading slice of the whole one. Diao, Ding, Tarokh. HeteroFL: Computation and Communication Efficient
Federated Learning for Heterogeneous Clients. ICLR 2021, Algorithm 1. Released code: diaoenmao/HeteroFL-..., paths under
src/.

A client of width r trains the first r of each hidden layer's units. The server averages every entry over the clients
that have it; an entry that no client had stays. Training has static batch norms, a scaler, which divides by r after
each layer, and masked cross-entropy: logits of classes that a client does not hold are 0, and of the last layer only
the rows of its classes are averaged (fed.py:132-160).

Departures (of its runs: reports/semifl/departures.md, entry 16):
1. A client's width is drawn anew each round, uniformly of `widths` (released: model_split_mode "dynamic", fed.py:15-23;
   "fix" gives a client one for good).
2. The server asks a client for its classes when it first takes part; the released code knows them.
3. The scaler follows every convolution and linear layer but the last; the released ResNet has it before each norm
   (models/resnet.py:40-54), which before a batch norm is the same but for the norm's epsilon.
4. The released ResNet has its norms before the convolutions and none in shortcuts; ours is that of the suite, which has
   the printed size as well.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.config import Count
from benchmark.errors import ConfigError
from benchmark.losses import supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.shared import ReadOnlyUpdate, StudentUpdate, fit_each, labelled_cohort, layer_of, sent
from benchmark.methods.static_norm import with_static_statistics


@dataclass(frozen=True, kw_only=True)
class HeteroFL(fl.Method):
    """Algorithm 1."""

    widths: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)  # r  levels a to e (utils.py:process_control)
    batch_size: Count = 10  # B

    needs = frozenset({"everywhere", "every_client", "share"})  # every client holds labels
    asks_for_statistics = True

    def check(self, setup: fl.Setup) -> None:
        if not self.widths:
            raise ConfigError("method.widths: give one or more, such as 1, 0.5, 0.25")
        if setup.model.norm == "bn":
            raise ConfigError(
                "model.norm: 'bn' counts batches, which networks of several widths do not share; choose sbn"
            )
        whole = setup.initial_weights()
        for width in self.widths:
            own = setup.initial_weights(replace(setup.model, width=width))
            if any(own[name].shape != value.shape for name, value in leading_slices(whole, width).items()):
                raise ConfigError(
                    f"method.widths: {width:g} of {setup.model.network} with norm {setup.model.norm!r} leaves parts of "
                    "channels or groups; choose widths such as 1, 0.5, 0.25, and norm sbn"
                )

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"student": setup.initial_weights(), "classes": {}})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student, classes = state.server["student"], dict(state.server["classes"])
        cohort = labelled_cohort(world)
        unknown = [client for client in cohort if str(client) not in classes]
        for outcome in fit_each(world, unknown, ClassesUpdate(), {}, {}):
            classes[str(outcome.key.client)] = outcome.sends["classes"]
        drawn = world.generator("widths").choice(self.widths, size=len(cohort))
        data = {"labelled": fl.Stream.whole("labelled", self.batch_size)}
        jobs = [
            world.job(
                client,
                ClientUpdate(width=width),
                {"student": leading_slices(student, width)},
                data,
                network=replace(world.model, width=width),
            )
            for client, width in zip(cohort, map(float, drawn), strict=True)
        ]
        returned = ((sends["student"], classes[str(client)]) for client, sends in sent(world.fit(jobs)))
        student = with_static_statistics(averaged(student, returned), world, range(world.K))
        return fl.State(server={"student": student, "classes": classes}), {}


@dataclass(frozen=True, kw_only=True)
class ClassesUpdate(ReadOnlyUpdate):
    """Trains nothing: the classes of which the client has labels."""

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        return {"classes": classes_of(reader)}


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(StudentUpdate):
    """The client's lines of Algorithm 1."""

    width: float

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        local.notes["classes_M"] = classes_of(reader)
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        labelled = step.batch["labelled"]
        with scaler(step.student, self.width):
            logits_ND = step.student(labelled.views["weak"])
        loss = supervised_loss(masked(logits_ND, step.notes["classes_M"]), labelled.known_N)
        return loss, {"client/supervised_loss": loss}


def classes_of(reader: fl.Reader) -> Tensor:
    """classes_M, those of which the client has labels."""
    labels_N = reader.labels("labelled")
    assert labels_N is not None
    return labels_N.unique()


def masked(logits_ND: Tensor, classes_M: Tensor) -> Tensor:
    """0 in place of the logits of all other classes."""
    return logits_ND * logits_ND.new_zeros(logits_ND.shape[1]).index_fill_(0, classes_M, 1.0)


@contextmanager
def scaler(network: nn.Module, width: float) -> Iterator[None]:
    """Within it, outputs of each layer but the last are divided by the width."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)][:-1]
    hooks = [layer.register_forward_hook(lambda layer, given, out: out / width) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def leading_slices(weights: fl.Weights, width: float) -> fl.Weights:
    """The leading slices of the weights that a network of that width has. Of the first layer all inputs, of the last
    all outputs."""
    first, last = layer_of(next(iter(weights))), layer_of(list(weights)[-1])
    narrow = {}
    for name, value in weights.items():
        whole = layer_of(name) == last, layer_of(name) == first  # outputs, inputs
        sizes = zip(value.shape, whole, strict=False)
        narrow[name] = value[tuple(slice(size if all_ else math.ceil(size * width)) for size, all_ in sizes)].clone()
    return narrow


def averaged(weights: fl.Weights, returned: Iterable[tuple[fl.Weights, Tensor]]) -> fl.Weights:
    """Each entry's mean over the clients that returned it, in float64. An entry that no client returned stays. A
    client returns narrower weights, and counts in the last layer for the classes (int64) that it has."""
    last = layer_of(list(weights)[-1])
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
    counts = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
    for narrow, classes in returned:
        for name, value in narrow.items():
            rows = torch.arange(len(value), device=value.device)
            if layer_of(name) == last:
                rows = rows[torch.isin(rows, classes)]
            here: tuple[Any, ...] = (rows, *(slice(size) for size in value.shape[1:]))
            sums[name][here] += value[rows]
            counts[name][here] += 1
    return {
        name: torch.where(counts[name] > 0, sums[name] / counts[name].clamp(min=1), value.double()).to(value.dtype)
        for name, value in weights.items()
    }
