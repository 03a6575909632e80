"""One client's local step on fixed memory: its networks, momentum and learning rate stay where they are.

Everything is a tensor operation on static buffers, so that a CUDA graph of the step can be replayed with other content.

Legend: N images of a batch, A reported scalars, K clients that take their steps together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.federated.gpu.work import Placer, Result, Work, result_of, to_host
from benchmark.federated.local import LocalModule
from benchmark.federated.pseudo import PseudoLabelQuality
from benchmark.methods.protocol import Batch, Weights
from benchmark.optim.sgd import SGD


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a step reports. `names` belong to `scalars_A`, of which the first is the loss."""

    names: tuple[str, ...]
    scalars_A: Tensor  # float64
    labels_N: Tensor | None
    kept_N: Tensor | None


def found_of(loss: Tensor, aux: Mapping[str, Tensor]) -> Found:
    names = tuple(name for name in aux if name not in ("labels_N", "kept_N"))
    scalars = [loss.detach().double(), *(aux[name].detach().double() for name in names)]
    return Found(names=names, scalars_A=torch.stack(scalars), labels_N=aux.get("labels_N"), kept_N=aux.get("kept_N"))


@torch.no_grad()
def descend(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momentum: Sequence[Tensor],
    rate: Tensor | Sequence[Tensor],
    sgd: SGD,
) -> None:
    """One step of torch.optim.SGD in place; `rate` without dimensions, or one that broadcasts to each parameter.

    Momentum buffers of zeros are what torch's first step, which makes them, comes to.
    """
    steps = list(gradients)
    if sgd.weight_decay:
        steps = list(torch._foreach_add(steps, list(parameters), alpha=sgd.weight_decay))
    if sgd.momentum:
        torch._foreach_mul_(list(momentum), sgd.momentum)
        torch._foreach_add_(list(momentum), steps)
        steps = list(torch._foreach_add(steps, list(momentum), alpha=sgd.momentum) if sgd.nesterov else momentum)
    scaled = torch._foreach_mul(steps, rate if isinstance(rate, Tensor) else list(rate))
    torch._foreach_sub_(list(parameters), scaled)


def rate_at(module: LocalModule, step: int) -> float:
    """The learning rate of the job's local step `step`, as `configure_optimizers` schedules it."""
    sgd = module.sgd
    base = (sgd.server_lr if module.rate == "server" else None) or sgd.lr
    return base * sgd.schedule.factor(*module.place.at(step, sgd.schedule.per_round))


class Branch:
    """A client's place in a group. `rate` is a tensor without dimensions that the group writes before each step."""

    def __init__(self, module: LocalModule, rate: Tensor) -> None:
        self.module = module
        self.rate = rate
        self.parameters = list(module.trainable.parameters())
        self.momentum = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.reset_report()

    def reset_report(self) -> None:
        self._found: list[Found] = []
        self._truth: list[Tensor | None] = []

    def load(self, work: Work, placer: Placer) -> None:
        """Begin a job: its weights, momentum and private state, in place."""
        local = placer.placed(work.local)
        self.module.reuse(work.job, local, work.place)
        self.reset_report()
        if local.momentum is None:
            torch._foreach_zero_(self.momentum)
        else:
            torch._foreach_copy_(self.momentum, [local.momentum[set_][name] for set_, name in self._names()])

    def step(self, phase: int, streams: Mapping[str, Batch], reached: Sequence[bool]) -> Found:
        """One local step of that phase. A parameter that the phase's loss does not reach is left alone."""
        module = self.module
        take = getattr(module.update, module.update.phases[phase])
        loss, aux = take(module.trainable, module.frozen, streams, module.draw)
        used = [index for index, is_reached in enumerate(reached) if is_reached]
        parameters = [self.parameters[index] for index in used]
        gradients = list(torch.autograd.grad(loss, parameters))
        if module.sgd.clip is not None:
            norm = torch.nn.utils.get_total_norm(gradients)
            torch._foreach_mul_(gradients, (module.sgd.clip / (norm + 1e-6)).clamp(max=1.0))
        descend(parameters, gradients, [self.momentum[index] for index in used], self.rate, module.sgd)
        return found_of(loss, aux)

    @torch.no_grad()
    def after_step(self) -> None:
        self.module.update.after_step(self.module.training_state)

    def note(self, found: Found, truth_N: Tensor | None) -> None:
        """Keep what a step reported, without reading it, and count the step."""
        self._found.append(found)
        self._truth.append(truth_N if found.kept_N is not None else None)

    def result(self) -> Result:
        """What the job left, on its way to the host."""
        momentum: dict[str, Weights] = {name: {} for name in self.module.trainable}
        for (set_, name), buffer in zip(self._names(), self.momentum, strict=True):
            momentum[set_][name] = buffer
        losses_S = torch.stack([found.scalars_A[0] for found in self._found])
        return result_of(
            self.module,
            momentum,
            losses_S=to_host(losses_S),
            sums=self._sums(),
            counts=Counter(name for found in self._found for name in found.names),
            pseudo=self._pseudo(),
        )

    def _sums(self) -> list[tuple[tuple[str, ...], Tensor]]:
        kinds = dict.fromkeys(found.names for found in self._found)
        return [
            (names, to_host(torch.stack([f.scalars_A[1:] for f in self._found if f.names == names]).sum(0)))
            for names in kinds
        ]

    def _pseudo(self) -> PseudoLabelQuality:
        quality = PseudoLabelQuality()
        given = [
            (found, truth) for found, truth in zip(self._found, self._truth, strict=True) if found.kept_N is not None
        ]
        if given:
            labels_N = torch.cat([found.labels_N for found, _ in given if found.labels_N is not None])
            kept_N = torch.cat([found.kept_N for found, _ in given if found.kept_N is not None])
            known = [truth for _, truth in given if truth is not None]
            truth_N = torch.cat(known) if len(known) == len(given) else None
            quality.add(to_host(labels_N), to_host(kept_N), truth_N)
        return quality

    def _names(self) -> list[tuple[str, str]]:
        """Weight set and name of each parameter."""
        networks = self.module.trainable.items()
        return [(set_, name) for set_, network in networks for name, _ in network.named_parameters()]
