"""SGD and Adam for M jobs: the formulas of `torch.optim`, with a rate, a norm and a step count per job.

Legend: M jobs. A weight set's tensors are (M, ...).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmark.federated.local import BETA_2, SLOT
from benchmark.federated.stacked.trees import row
from benchmark.methods.protocol import Weights
from benchmark.optimizer import Optimizer

EPSILON = 1e-8  # Adam's epsilon
LEAST_NORM = 1e-6  # added to a norm before the division, as in torch.nn.utils.clip_grad_norm_

StackedWeights = dict[str, Weights]  # weight set -> parameter -> (M, ...)


class StackedOptimizer:
    """An optimizer of the weight sets of M jobs. `slots` are its tensors for each parameter, by name."""

    def __init__(
        self, settings: Optimizer, weights: StackedWeights, momentum: Sequence[Mapping[str, Weights] | None]
    ) -> None:
        """Start with the momentum of each job, in the form of `LocalModule.momentum_of`, or with zeros if None."""
        self._settings = settings
        self.slots: dict[str, StackedWeights] = {}
        self._stepped: set[tuple[str, str]] = set()  # parameters that have had a gradient, now or in earlier rounds
        names = ("exp_avg", "exp_avg_sq", "step") if settings.rule == "adam" else ("momentum_buffer",)
        for slot in names:
            self.slots[slot] = {name: {} for name in weights}
            for name, some in weights.items():
                for tensor, value in some.items():
                    self.slots[slot][name][tensor] = self._first(slot, name, tensor, value, momentum)

    def _first(
        self, slot: str, name: str, tensor: str, value: Tensor, momentum: Sequence[Mapping[str, Weights] | None]
    ) -> Tensor:
        """Return the initial value of one slot of one parameter, with one row per job."""
        key = f"{tensor}{SLOT}{slot}" if self._settings.rule == "adam" else tensor
        zeros = torch.zeros_like(value).detach() if slot != "step" else value.new_zeros(len(value))
        for of_job, brought in zip(zeros, momentum, strict=True):
            if brought is not None and key in brought.get(name, {}):
                of_job.copy_(brought[name][key])
                self._stepped.add((name, tensor))
        return zeros

    @torch.no_grad()
    def step(
        self,
        weights: StackedWeights,
        gradients: StackedWeights,
        slots: Mapping[str, StackedWeights],
        rate_M: Tensor | float,
    ) -> None:
        """Take one step, in place. A parameter without a gradient does not change.

        `rate_M` is one rate, or one rate per job.
        """
        listed = [(name, tensor, value) for name, some in gradients.items() for tensor, value in some.items()]
        self._stepped.update((name, tensor) for name, tensor, _ in listed)
        if not listed:
            return
        step_of = self._adam if self._settings.rule == "adam" else self._sgd
        own = [weights[name][tensor] for name, tensor, _ in listed]
        kept = {}
        for slot, places in slots.items():
            kept[slot] = [places[name][tensor] for name, tensor, _ in listed]
        alike = [_laid_out_as(weight, gradient) for weight, (_, _, gradient) in zip(own, listed, strict=True)]
        step_of(own, self._clipped(alike), kept, rate_M)

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """Scale each job's gradient down to the largest allowed norm, computed over all of its parameters."""
        if self._settings.clip is None:
            return gradients
        norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients])
        factor_M = (self._settings.clip / (norms.norm(dim=0) + LEAST_NORM)).clamp(max=1.0)
        return [gradient * per_job(factor_M, gradient) for gradient in gradients]

    def _sgd(
        self, weights: list[Tensor], gradients: list[Tensor], kept: dict[str, list[Tensor]], rate_M: Tensor | float
    ) -> None:
        settings = self._settings
        buffers = kept["momentum_buffer"]
        if not isinstance(rate_M, Tensor) or rate_M.dim() == 0:
            options: Any = {"weight_decay": settings.weight_decay, "momentum": settings.momentum, "lr": rate_M}
            options |= {"dampening": 0.0, "nesterov": settings.nesterov, "maximize": False, "is_first_step": False}
            torch._fused_sgd_(weights, gradients, buffers if settings.momentum else [], **options)
            return
        if settings.weight_decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=settings.weight_decay))
        if not settings.momentum:  # plain SGD keeps no momentum
            buffers = gradients
        else:
            torch._foreach_mul_(buffers, settings.momentum)
            torch._foreach_add_(buffers, gradients)
        steps = torch._foreach_add(gradients, buffers, alpha=settings.momentum) if settings.nesterov else buffers
        for weight, step in zip(weights, steps, strict=True):
            weight.sub_(step * per_job(rate_M, step))

    def _adam(
        self, weights: list[Tensor], gradients: list[Tensor], kept: dict[str, list[Tensor]], rate_M: Tensor | float
    ) -> None:
        settings = self._settings
        beta_1 = settings.momentum
        if settings.weight_decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=settings.weight_decay))
        torch._foreach_add_(kept["step"], 1)
        torch._foreach_lerp_(kept["exp_avg"], gradients, 1 - beta_1)
        torch._foreach_mul_(kept["exp_avg_sq"], BETA_2)
        torch._foreach_addcmul_(kept["exp_avg_sq"], gradients, gradients, value=1 - BETA_2)
        means = kept["exp_avg"]
        steps_PM = torch.stack(kept["step"]).double()  # P parameters
        sizes_PM = (rate_M / (1 - beta_1**steps_PM)).to(means[0].dtype)
        scales_PM = (1 - BETA_2**steps_PM).sqrt().to(means[0].dtype)
        divisors = torch._foreach_sqrt(kept["exp_avg_sq"])
        torch._foreach_div_(divisors, [per_job(*pair) for pair in zip(scales_PM, means, strict=True)])
        torch._foreach_add_(divisors, EPSILON)
        changes = torch._foreach_mul(means, [per_job(*pair) for pair in zip(sizes_PM, means, strict=True)])
        torch._foreach_div_(changes, divisors)
        torch._foreach_sub_(weights, changes)

    def brought_back(self, index: int) -> dict[str, Weights]:
        """Return one job's momentum in the form of `LocalModule.momentum_of`, as views."""
        if self._settings.rule != "adam":
            return dict(row(self.slots["momentum_buffer"], index))
        kept: dict[str, Weights] = {}
        for name, some in self.slots["exp_avg"].items():
            stepped = [tensor for tensor in some if (name, tensor) in self._stepped]
            kept[name] = dict(self._of_adam(name, stepped, index))
        return kept

    def _of_adam(self, name: str, tensors: Sequence[str], index: int) -> Iterator[tuple[str, Tensor]]:
        for tensor in tensors:
            for slot in ("step", "exp_avg", "exp_avg_sq"):  # in torch's order
                yield f"{tensor}{SLOT}{slot}", self.slots[slot][name][tensor][index]


def _laid_out_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with the layout of the weight, which kernels for many tensors expect."""
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def per_job(values_M: Tensor | Any, like: Tensor) -> Tensor:
    """Return one value per job, with a shape that can be multiplied with a tensor of M rows."""
    shaped: Tensor = values_M.view(-1, *(1 for _ in like.shape[1:]))
    return shaped
