"""Gradient diversity, all 16 variants of SSFL's appendix D: how much the cohort's updates point apart.

With g_k the update of member k, the variants are

    l2 squared  sum ||g_k||_2^2 / ||sum g_k||_2^2     Eq. 1        l1 squared  sum ||g_k||_1^2 / ||sum g_k||_1     Eq. 13
    l2 plain    sum ||g_k||_2   / ||sum g_k||_2       Eq. 12       l1 plain    sum ||g_k||_1   / ||sum g_k||_1     Eq. 14

over the clients, or over clients and server; with g_k the change of weights over the round ("delta", Eq. 15), or the
gradient on all of the member's images at the weights it received ("gradient", Eq. 1). Eq. 13's denominator is printed
without the square; we square it ("squared" means both), so that the quotient has no unit: a departure.
Only trained parameters count. Sums are streamed: one accumulated vector, never C of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytorch_lightning as pl
import torch
from torch import Tensor

from benchmark.federated.module import FederatedModule
from benchmark.methods.protocol import SERVER, Job, Limit, Outcome, Weights
from benchmark.methods.ssfl import is_statistic


class StreamingDiversity:
    """The four quotients of a growing set of vectors, float64. Vectors come as named tensors."""

    def __init__(self) -> None:
        self._sum: dict[str, Tensor] = {}
        self._l2 = self._l2_squared = self._l1 = self._l1_squared = 0.0

    def add(self, vector: Mapping[str, Tensor]) -> None:
        l2_squared = sum(float(part.double().square().sum()) for part in vector.values())
        l1 = sum(float(part.double().abs().sum()) for part in vector.values())
        self._l2_squared += l2_squared
        self._l2 += l2_squared**0.5
        self._l1 += l1
        self._l1_squared += l1**2
        for name, part in vector.items():
            if name in self._sum:
                self._sum[name] += part
            else:
                self._sum[name] = part.double().clone()

    def quotients(self) -> dict[str, float]:
        """{"l2/squared": ...}; empty where the sum is zero (no update, or updates that cancel exactly)."""
        l2_squared = sum(float(part.square().sum()) for part in self._sum.values())
        l1 = sum(float(part.abs().sum()) for part in self._sum.values())
        if l2_squared == 0.0:
            return {}
        return {
            "l2/squared": self._l2_squared / l2_squared,
            "l2/plain": self._l2 / l2_squared**0.5,
            "l1/squared": self._l1_squared / l1**2,
            "l1/plain": self._l1 / l1,
        }


class CohortDiversity:
    """Both sums of one kind of update: over the clients, and over clients and server."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sums = {"clients": StreamingDiversity(), "with_server": StreamingDiversity()}
        self._has_server = False

    def add(self, holder: int, vector: Mapping[str, Tensor]) -> None:
        if holder >= 0:
            self._sums["clients"].add(vector)
        self._has_server |= holder == SERVER
        self._sums["with_server"].add(vector)

    def metrics(self) -> dict[str, float]:
        members = ["clients", "with_server"] if self._has_server else ["clients"]
        return {
            f"diversity/{self._kind}/{norm}/{who}": value
            for who in members
            for norm, value in self._sums[who].quotients().items()
        }


class GradientDiversity(pl.Callback):
    """Measures a round's diversity: the weight changes every round, gradients every `every` rounds (0: never).

    Where a holder works more than once in a round (a server replica for each group), its first job counts.
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self._jobs: list[Job] = []
        self._delta = CohortDiversity("delta")
        self._round = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.observers.append(self)

    def on_job(self, job: Job, round_number: int) -> None:
        if round_number != self._round:
            self._round, self._jobs, self._delta = round_number, [], CohortDiversity("delta")
        if job.key.draw == 0:
            self._jobs.append(job)

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        if job.key.draw == 0 and "student" in outcome.sends:
            self._delta.add(job.key.client, weight_change(outcome.sends["student"], job.receives["student"]))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        if not any(job.key.client >= 0 for job in self._jobs):
            return
        pl_module.metrics.update(self._delta.metrics())
        if self._every and self._round % self._every == 0:
            pl_module.metrics.update(self._gradient_metrics(pl_module))

    def _gradient_metrics(self, module: FederatedModule) -> dict[str, float]:
        cohort = CohortDiversity("gradient")
        jobs = list(on_all_images(self._jobs))
        with torch.enable_grad():
            for job, found in zip(jobs, module.engine.gradients(jobs, self._round), strict=True):
                cohort.add(job.key.client, found["student"])
        return cohort.metrics()


def weight_change(after: Weights, before: Weights) -> dict[str, Tensor]:
    """Eq. 15: what a member's local steps changed, trained parameters only."""
    return {name: value - before[name] for name, value in after.items() if not is_statistic(name)}


def on_all_images(jobs: Iterable[Job]) -> Iterable[Job]:
    """The same jobs as one pass over all of the holder's images, in which no incomplete batch is left out."""
    for job in jobs:
        data = {name: replace(stream, drop_last=False) for name, stream in job.data.items()}
        yield replace(job, data=data, limit=Limit(epochs=1))
