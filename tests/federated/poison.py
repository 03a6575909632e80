"""Local work that goes wrong: an engine that spoils what chosen holders' jobs give, and one that leaves them out."""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner
from benchmark.methods.protocol import Job, Outcome, Tree

SPOILED = ("student", "psi")  # what clients send of what they trained; the latter by FedMatch


def spoiled(sends: Tree) -> Tree:
    """With a NaN as the last entry of the weights."""
    trained = next((name for name in SPOILED if name in sends), None)
    if trained is None:
        return sends
    name, last = list(sends[trained].items())[-1]
    last = last.clone()
    last.view(-1)[-1] = torch.nan
    return {**sends, trained: {**sends[trained], name: last}}


class SpoilingRunner(JobRunner):
    """These holders' jobs of one round send a NaN, or have an infinite loss from a local step on."""

    holders: Sequence[int] = ()
    round_number = 0
    loss_from_step: int | None = None  # 1: from the first

    def _run(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, list[Tensor]]:
        outcome, losses = super()._run(job, round_number, private)
        if round_number != self.round_number or job.key.client not in self.holders:
            return outcome, losses
        if self.loss_from_step is None:
            return replace(outcome, sends=spoiled(outcome.sends)), losses
        good = (self.loss_from_step - 1) * len(job.update.phases)
        return outcome, [*losses[:good], *(loss * torch.inf for loss in losses[good:])]


class Spoiling(ReferenceEngine):
    """The reference engine with that runner."""

    def __init__(self, environment: Environment, holders: Sequence[int], round_number: int) -> None:
        super().__init__(environment)
        self._work = self.runner = SpoilingRunner(environment)
        self.runner.holders, self.runner.round_number = holders, round_number


class LeavingOut(Spoiling):
    """The reference engine, in which these holders sit that round out."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            if round_number == self.runner.round_number and job.key.client in self.runner.holders:
                yield Outcome(key=job.key, sends={})
            else:
                yield from ReferenceEngine.fit(self, [job], round_number, kept)
