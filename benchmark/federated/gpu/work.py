"""What the GPU engine's parts hand each other: a job that has started, and what its training left.

Legend: N images, S local steps of a job, A reported scalars.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmark.federated.batches import LocalBatch
from benchmark.federated.local import LocalModule
from benchmark.federated.pseudo import PseudoLabelQuality
from benchmark.methods.protocol import Job, Local, Outcome, Weights
from benchmark.optim.sgd import Place


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """A job after `start`. `local` is on the host, the images of `batches` are on the device."""

    job: Job
    round_number: int
    local: Local
    place: Place
    given: PseudoLabelQuality  # of the pseudo-labels that `start` gave
    batches: list[LocalBatch]  # one a local step and phase; `truth_N` stays on the host


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What a job's local steps left, on the host. On CUDA it may still be on its way: synchronise before it is read."""

    trainable: dict[str, Weights]
    frozen: dict[str, Weights]
    momentum: dict[str, Weights]
    private: Any
    losses_S: Tensor
    sums: list[tuple[tuple[str, ...], Tensor]]  # names and (A,) sums over the steps that report them
    pseudo: PseudoLabelQuality
    steps: int
    counts: Mapping[str, int]  # in how many steps each was reported

    def outcome(self, work: Work) -> tuple[Outcome, list[Tensor]]:
        """What the job sends and keeps, with its metrics, as `local.outcome` makes it; and the loss of each step."""
        local, totals = work.local, dict[str, float]()
        for names, sums_A in self.sums:
            for name, value in zip(names, sums_A.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + value
        local.trainable, local.frozen, local.momentum = self.trainable, self.frozen, self.momentum
        if local.private is not None or self.private:
            local.private = self.private
        local.totals, local.steps = totals, self.steps
        sends = work.job.update.finish(local)
        work.given.extend(self.pseudo)
        means = {name: total * (self.steps / self.counts[name]) for name, total in totals.items()}
        metrics = {**means, **work.given.metrics()}
        found = Outcome(
            key=work.job.key, sends=pageable(sends), private=pageable(local.private), metrics=metrics, steps=self.steps
        )
        return found, list(self.losses_S.unbind())


def result_of(module: LocalModule, momentum: dict[str, Weights], **reported: Any) -> Result:
    """The result of a module's training, copied to the host without waiting for it."""
    return Result(
        trainable={name: host_weights(network.state_dict()) for name, network in module.trainable.items()},
        frozen={name: host_weights(network.state_dict()) for name, network in module.frozen.items()},
        momentum={name: host_weights(weights) for name, weights in momentum.items()},
        private=mapped(module.training_state.private, to_host),
        steps=module.steps,
        **reported,
    )


def host_weights(weights: Mapping[str, Tensor]) -> Weights:
    return {name: to_host(value) for name, value in weights.items()}


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host, in pinned memory and without waiting where the tensor is on a CUDA device."""
    tensor = tensor.detach()
    return tensor.to("cpu", non_blocking=True) if tensor.device.type != "cpu" else tensor.clone()


def pageable(tree: Any) -> Any:
    """The tree out of pinned memory, which is scarce, since what is sent or kept may stay for long."""
    return mapped(tree, lambda tensor: tensor.clone() if tensor.is_pinned() else tensor)


def mapped(tree: Any, change: Any) -> Any:
    """The tree with `change` made to every tensor."""
    if isinstance(tree, Mapping):
        return {name: mapped(value, change) for name, value in tree.items()}
    return change(tree) if isinstance(tree, Tensor) else tree


@dataclass(eq=False)
class Placer:
    """Brings weights to the device, every distinct tensor once: the jobs of a round share most of what they receive."""

    device: torch.device
    _known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by id, with the tensor whose id it is

    def placed(self, local: Local) -> Local:
        """`local` with weights on the device; private state as a copy of its own, since steps may change it."""
        return replace(
            local,
            trainable=mapped(local.trainable, self._once),
            frozen=mapped(local.frozen, self._once),
            momentum=mapped(local.momentum, self._once),
            private=mapped(local.private, lambda tensor: tensor.to(self.device, copy=True)),
        )

    def _once(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = (tensor, tensor.to(self.device, non_blocking=True))
        return self._known[id(tensor)][1]
