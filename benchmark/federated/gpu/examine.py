"""Whether a kind of local work may run as a step of fixed shape on fixed memory, found out by running it once.

Such a step is replayed many times, so that nothing may differ from one step to the next but the content of tensors:

what the update does in a step                          where its jobs run
------------------------------------------------------  -----------------------------------------------
only tensor operations, as most losses                  graphs or batched
reads a number on the host (`float`, `if tensor:`)      plain
chooses rows by a mask (`nonzero`, `x[mask]`)           plain: shapes would depend on the content
draws from `draw` (SemiFL's lambda)                     plain: a replayed step would draw the same again
draws from the global generator (dropout)               plain: the masks depend on the order of the jobs
puts another tensor in a network's place                plain
`after_step` reads `private` or `step` (RSCFed)         graphs or batched, and `after_step` between the steps
is no frozen dataclass, or cannot be hashed             plain: nothing says that two jobs are alike
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.federated.batches import LocalBatch
from benchmark.federated.gpu.work import Work
from benchmark.federated.local import LocalModule
from benchmark.methods.protocol import Networks, Training, Tree

# Operations after which the host waits for the device, because it needs a value or a shape.
SCALAR_READS = ("_local_scalar_dense", "item", "is_nonzero", "equal")
SHAPE_READS = ("nonzero", "masked_select", "bincount", "_unique2", "unique_dim")
READS = frozenset({*SCALAR_READS, *SHAPE_READS})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found. With a `reason`, jobs of this kind run one by one, as the reference runs them."""

    reason: str | None = None
    after_inside: bool = True  # `after_step` is a part of the step; else it runs on the host after each
    reached: tuple[tuple[bool, ...], ...] = ()  # phase -> parameter -> whether the loss reaches it


class HostReads(TorchDispatchMode):
    """Raises HostRead at an operation that would make the host wait for the device, also on CPU tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS:
            raise HostRead(f"reads a value on the host ({name})")
        if name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            raise HostRead(f"chooses rows by a mask ({name})")
        return func(*args, **(kwargs or {}))


class HostRead(Exception):
    """A step reads on the host what is on the device."""


def kind_of(work: Work) -> Hashable:
    """What jobs have in common that may take their steps together. Raises TypeError where that cannot be said."""
    job, local, update = work.job, work.local, work.job.update
    if not getattr(getattr(type(update), "__dataclass_params__", None), "frozen", False):
        raise TypeError(f"{type(update).__name__} is no frozen dataclass")
    streams = work.batches[0].streams
    shape = tuple(
        (name, tuple(batch.views), batch.labels_N is None, batch.pseudo_labels_N is None)
        for name, batch in streams.items()
    )
    kind = (type(update), update, job.network, tuple(local.trainable), tuple(local.frozen), shape)
    hash(kind)
    return kind


def examine(module: LocalModule, batches: Sequence[LocalBatch]) -> Verdict:
    """Take one step of each phase on a module that nothing else uses, and see what it does."""
    before, drawn, host = _addresses(module), module.draw.get_state(), _generators(module)
    try:
        with HostReads():
            reached = tuple(_reached(module, batch) for batch in batches[: len(module.update.phases)])
            module.training_state.step += 1  # `after_step` sees the step that was taken
            watched = Watched(module.training_state)
            with torch.no_grad():
                module.update.after_step(watched)  # type: ignore[arg-type]
        reason = None
    except Exception as error:  # whatever it is: the plain path then raises it, or does without a problem
        reached, watched, reason = (), None, str(error) or type(error).__name__
    if not torch.equal(drawn, module.draw.get_state()):
        reason = "draws from its generator within a step"
    elif not all(map(torch.equal, host, _generators(module))):
        reason = "draws from the global generator within a step (dropout)"
    elif reason is None and before != _addresses(module):
        reason = "puts another tensor in a network's place"
    inside = watched is not None and not watched.touched
    return Verdict(reason=reason, after_inside=inside, reached=reached)


class Watched:
    """A `Training` that notes whether `private` or `step` was looked at."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.touched = False

    @property
    def trainable(self) -> Networks:
        return self._training.trainable

    @property
    def frozen(self) -> Networks:
        return self._training.frozen

    @property
    def private(self) -> Tree:
        self.touched = True
        return self._training.private

    @property
    def step(self) -> int:
        self.touched = True
        return self._training.step


def _reached(module: LocalModule, batch: LocalBatch) -> tuple[bool, ...]:
    take = getattr(module.update, module.update.phases[batch.phase])
    loss, _ = take(module.trainable, module.frozen, batch.streams, module.draw)
    gradients = torch.autograd.grad(loss, list(module.trainable.parameters()), allow_unused=True)
    return tuple(gradient is not None for gradient in gradients)


def _addresses(module: LocalModule) -> list[int]:
    found = [*module.trainable.state_dict().values(), *module.frozen.state_dict().values()]
    return [tensor.data_ptr() for tensor in found]


def _generators(module: LocalModule) -> list[Tensor]:
    """The states of the global generators that dropout would draw from."""
    device = next(module.trainable.parameters()).device
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
