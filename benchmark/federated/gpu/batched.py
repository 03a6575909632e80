"""Candidate "batched": the clients' networks stacked, and one step of all of them through torch.func.vmap.

Every convolution becomes one of K groups, every matrix product a batched one; a step has as many launches as one
client's, whatever K. The stacked tensors are the branches' own memory, so that loading, steps of another shape and
results are those of `Group`; only the step of all together differs.

Legend: K clients of the group, N images of a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmark.federated.gpu.branch import Found, descend, found_of
from benchmark.federated.gpu.examine import Verdict
from benchmark.federated.gpu.group import Group, Inputs
from benchmark.federated.gpu.replay import FoundTogether
from benchmark.federated.local import LocalModule
from benchmark.methods.protocol import Batch, Networks, Training

Tensors = dict[str, Tensor]


class Networked(nn.Module):
    """All networks of a job under one roof, for `functional_call`."""

    def __init__(self, trainable: Networks, frozen: Networks) -> None:
        super().__init__()
        self.trainable, self.frozen = trainable, frozen

    def forward(self, work: Callable[[Networks, Networks], Any]) -> Any:
        return work(self.trainable, self.frozen)


class BatchedGroup(Group):
    """A `Group` whose clients are slices of stacked tensors."""

    def __init__(self, width: int, build: Callable[[], LocalModule], verdict: Verdict, device: torch.device) -> None:
        super().__init__(width, build, verdict, device)
        self._streams = []
        module = build()
        self._shell = Networked(module.trainable, module.frozen)
        owners = [_named(branch.module) for branch in self.branches]
        self._stacks: Tensors = {name: _stacked([own[name] for own in owners]) for name in owners[0]}
        self._learned = [name for name, _ in self._shell.named_parameters() if name.startswith("trainable.")]
        momentum = [_stacked(list(buffers)) for buffers in zip(*(b.momentum for b in self.branches), strict=True)]
        self._momentum = dict(zip(self._learned, momentum, strict=True))

    def take(self, count: int, phase: int, inputs: Inputs) -> FoundTogether:
        """One step of the first `count` clients, all in the same operations."""
        learned = {name: self._stacks[name][:count] for name in self._learned}
        rest = {name: stack[:count] for name, stack in self._stacks.items() if name not in learned}
        gradients, (found, rest_after) = vmap(grad(self._loss(phase), has_aux=True))(
            learned, rest, _sliced(inputs, count)
        )
        for name, tensor in rest_after.items():
            if tensor.data_ptr() != rest[name].data_ptr():
                rest[name].copy_(tensor)
        reached = self.verdict.reached[phase]
        used = [name for name, is_reached in zip(self._learned, reached, strict=True) if is_reached]
        self._descend(count, learned, {name: gradients[name] for name in used})
        if self.verdict.after_inside:
            self._after({**learned, **rest})
        return FoundTogether(
            names=self._names, scalars_KA=found["scalars"], labels_KN=found.get("labels"), kept_KN=found.get("kept")
        )

    def _loss(self, phase: int) -> Callable[[Tensors, Tensors, Any], Any]:
        """The loss of one client as a function of its tensors, which `vmap` makes one of all clients."""
        module = self.branches[0].module

        def loss(learned: Tensors, rest: Tensors, batch: Mapping[str, Any]) -> Any:
            streams = {name: Batch(**{"labels_N": None, **tensors}) for name, tensors in batch.items()}
            take = getattr(module.update, module.update.phases[phase])

            def work(trainable: Networks, frozen: Networks) -> tuple[Tensor, Found]:
                value, aux = take(trainable, frozen, streams, module.draw)
                return value, found_of(value, aux)

            value, found = functional_call(self._shell, {**learned, **rest}, (work,))
            self._names = found.names
            reported = {"scalars": found.scalars_A, "labels": found.labels_N, "kept": found.kept_N}
            return value, ({name: tensor for name, tensor in reported.items() if tensor is not None}, rest)

        return loss

    def _descend(self, count: int, learned: Tensors, gradients: Tensors) -> None:
        sgd, names = self.branches[0].module.sgd, list(gradients)
        steps = [gradients[name] for name in names]
        if sgd.clip is not None:
            squares_K = torch.stack([step.flatten(1).square().sum(1) for step in steps]).sum(0)
            factor_K = (sgd.clip / (squares_K.sqrt() + 1e-6)).clamp(max=1.0)
            steps = [step * _beside(factor_K, step) for step in steps]
        parameters = [learned[name] for name in names]
        momentum = [self._momentum[name][:count] for name in names]
        rates = [_beside(self.rates_K[:count], step) for step in steps]
        descend(parameters, steps, momentum, rates, sgd)

    def _after(self, tensors: Tensors) -> None:
        """`after_step` of all clients, in place on the stacked tensors."""
        update = self.branches[0].module.update

        def work(trainable: Networks, frozen: Networks) -> None:
            update.after_step(Training(trainable=trainable, frozen=frozen, private={}, step=0))

        def after(own: Tensors) -> Tensors:
            functional_call(self._shell, own, (work,))
            return own

        with torch.no_grad():
            changed = vmap(after)(tensors)
        for name, tensor in changed.items():
            if tensor.data_ptr() != tensors[name].data_ptr():
                tensors[name].copy_(tensor)


def _named(module: LocalModule) -> Tensors:
    """Every tensor of the module's networks, under the name that it has in `Networked`."""
    networks = {"trainable": module.trainable, "frozen": module.frozen}
    return {
        f"{kind}.{name}": tensor
        for kind, sets in networks.items()
        for name, tensor in [*sets.named_parameters(), *sets.named_buffers()]
    }


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor of K slices; each of `tensors` becomes its slice, with the memory of the stack."""
    stack = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, own in zip(tensors, stack.unbind(), strict=True):
        tensor.data = own
    return stack


def _beside(values_K: Tensor, tensor: Tensor) -> Tensor:
    """One value a client, shaped to be multiplied with the clients' tensors."""
    return values_K.view(-1, *[1] * (tensor.ndim - 1))


def _sliced(inputs: Inputs, count: int) -> dict[str, Any]:
    """The first clients' buffers by the fields of `Batch`, without those that the stream does not have."""
    return {
        name: {
            "views": {view: tensor[:count] for view, tensor in views.items()},
            **({} if labels is None else {"labels_N": labels[:count]}),
            **({} if pseudo is None else {"pseudo_labels_N": pseudo[:count]}),
        }
        for name, (views, labels, pseudo) in inputs.streams.items()
    }
