"""Local work that goes wrong: an engine that spoils chosen clients' jobs, and one that leaves them out."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.methods.protocol import (
    Batch,
    Job,
    Local,
    LocalUpdate,
    Networks,
    Outcome,
    Reader,
    Training,
    Tree,
)  # fmt: skip

SPOILED = ("student", "psi")  # what clients send of what they trained; the latter by FedMatch


@dataclass(frozen=True, kw_only=True)
class Poisoned:
    """The update `inner`, of which a sent weight set (`SPOILED`) gets a NaN, or whose loss is infinite from a local
    step on."""

    inner: LocalUpdate
    loss_from_step: int | None = None  # 1: from the first

    @property
    def phases(self) -> tuple[str, ...]:
        return ("take",) * len(self.inner.phases)

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        local = self.inner.start(received, private, reader)
        if local is not None:
            object.__setattr__(self, "_taken", [])
        return local

    def take(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        taken = self._taken  # type: ignore[attr-defined]
        phase = self.inner.phases[len(taken) % len(self.phases)]
        taken.append(phase)
        loss, aux = getattr(self.inner, phase)(trainable, frozen, batch, draw)
        spoiled = self.loss_from_step is not None and len(taken) > (self.loss_from_step - 1) * len(self.phases)
        return (loss * torch.inf if spoiled else loss), aux

    def after_step(self, training: Training) -> None:
        self.inner.after_step(training)

    def finish(self, local: Local) -> Tree:
        sends = self.inner.finish(local)
        trained = next((name for name in SPOILED if name in sends), None)
        if self.loss_from_step is None and trained is not None:
            name, last = list(sends[trained].items())[-1]
            spoiled = last.clone()
            spoiled.view(-1)[-1] = torch.nan
            sends = {**sends, trained: {**sends[trained], name: spoiled}}
        return sends


def poisoned(job: Job, loss_from_step: int | None = None) -> Job:
    update = Poisoned(inner=job.update, loss_from_step=loss_from_step)
    return replace(job, update=cast(LocalUpdate, update))  # whose phases are the inner one's, not its class's


class Spoiling(ReferenceEngine):
    """The reference engine, in which these holders' jobs of one round are spoiled."""

    def __init__(self, environment: Environment, holders: Sequence[int], round_number: int) -> None:
        super().__init__(environment)
        self.holders, self.round_number = holders, round_number
        self.loss_from_step: int | None = None

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            if round_number == self.round_number and job.key.client in self.holders:
                job = poisoned(job, self.loss_from_step)
            yield from super().fit([job], round_number, kept)


class LeavingOut(Spoiling):
    """The reference engine, in which these holders sit that round out."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            if round_number == self.round_number and job.key.client in self.holders:
                yield Outcome(key=job.key, sends={})
            else:
                yield from ReferenceEngine.fit(self, [job], round_number, kept)
