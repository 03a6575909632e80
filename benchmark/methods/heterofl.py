"""HeteroFL: supervised averaging of clients with networks of different widths.

Each client's network is a leading slice of the full network. Diao, Ding, Tarokh. HeteroFL: Computation and
Communication Efficient Federated Learning for Heterogeneous Clients. ICLR 2021, Algorithm 1. Released code:
diaoenmao/HeteroFL-..., paths under src/.

A client of width r trains the first share r of the units of each hidden layer. The server averages every entry over the
clients that have it; an entry that no client has does not change. Training uses static batch norms, a scaler that
divides by r after each layer, and masked cross-entropy: the logits of classes without images at the client are 0, and
in the last layer only the rows of the client's classes are averaged (fed.py:132-160).

Deviations (for its runs see reports/semifl/departures.md, entry 16):
1. A client's width is drawn anew in each round, uniformly from `widths` (released code: model_split_mode "dynamic",
   fed.py:15-23; with "fix" a client keeps its width).
2. The server asks a client for its classes in the client's first round; in the released code it has this information
   from the start.
3. The scaler follows every convolution and linear layer except the last one. The released ResNet has it before each
   norm (models/resnet.py:40-54), which is equivalent before a batch norm, except for the epsilon of the norm.
4. The released ResNet has its norms before the convolutions, and no norms in shortcuts. This suite trains its usual
   ResNet-18, which also has the published size.
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
from benchmark.methods.shared import (
    ReadOnlyUpdate,
    StudentUpdate,
    fit_each,
    labelled_cohort,
    layer_of,
    refuse_fixed,
    sent,
)
from benchmark.methods.static_norm import with_static_statistics


@dataclass(frozen=True, kw_only=True)
class HeteroFL(fl.Method):
    """HeteroFL (Algorithm 1)."""

    widths: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)  # r  levels a to e (utils.py:process_control)
    batch_size: Count = 10  # B

    needs = frozenset({"everywhere", "every_client", "share"})  # settings with labels at every client
    asks_for_statistics = True

    def check(self, setup: fl.Setup) -> None:
        if not self.widths:
            raise ConfigError("method.widths is empty, but a client needs a width; type one or more, such as 1, 0.5")
        if setup.model.norm == "bn":
            raise ConfigError(
                "model.norm is 'bn', which counts batches, but networks of different widths cannot share this count; "
                "choose sbn"
            )
        refuse_fixed(setup, "clients train slices of all parameters")
        whole = setup.initial_weights()
        for width in self.widths:
            own = setup.initial_weights(replace(setup.model, width=width))
            if any(own[name].shape != value.shape for name, value in leading_slices(whole, width).items()):
                raise ConfigError(
                    f"method.widths contains {width:g}, which splits channels or groups of {setup.model.network} with "
                    f"norm {setup.model.norm!r}; choose widths such as 1, 0.5, 0.25, and norm sbn"
                )

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"student": setup.initial_weights(), "classes": {}})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        classes = dict(state.server["classes"])
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
    """Local work that trains nothing and sends the classes of the client's labels."""

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        return {"classes": classes_of(reader)}


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(StudentUpdate):
    """Local work of a client (its lines of Algorithm 1)."""

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
    """Return classes_M, the classes of the client's labels."""
    labels_N = reader.labels("labelled")
    assert labels_N is not None
    return labels_N.unique()


def masked(logits_ND: Tensor, classes_M: Tensor) -> Tensor:
    """Set the logits of all classes that are not in `classes_M` to 0."""
    return logits_ND * logits_ND.new_zeros(logits_ND.shape[1]).index_fill_(0, classes_M, 1.0)


@contextmanager
def scaler(network: nn.Module, width: float) -> Iterator[None]:
    """Divide the outputs of each layer except the last one by the width, within the `with` block."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)][:-1]
    hooks = [layer.register_forward_hook(lambda layer, given, out: out / width) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def leading_slices(weights: fl.Weights, width: float) -> fl.Weights:
    """Slice the weights to the entries of a network of this width.

    All inputs of the first layer and all outputs of the last layer are kept.
    """
    first, last = layer_of(next(iter(weights))), layer_of(list(weights)[-1])
    narrow = {}
    for name, value in weights.items():
        whole = layer_of(name) == last, layer_of(name) == first  # outputs, inputs
        sizes = zip(value.shape, whole, strict=False)
        narrow[name] = value[tuple(slice(size if all_ else math.ceil(size * width)) for size, all_ in sizes)].clone()
    return narrow


def averaged(weights: fl.Weights, returned: Iterable[tuple[fl.Weights, Tensor]]) -> fl.Weights:
    """Average each entry over the clients that returned it, in float64.

    `returned` contains the sliced weights and the classes (int64) of each client. In the last layer a client only
    counts for its classes. An entry that no client returned does not change.
    """
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
