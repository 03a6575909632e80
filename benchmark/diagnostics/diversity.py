"""Gradient diversity, all 16 variants of SSFL's appendix D: how much the cohort's updates point apart.

With g_k the update of member k, the variants are

    l2 squared   sum ||g_k||_2^2 / ||sum g_k||_2^2   Eq. 1     l2 plain   sum ||g_k||_2 / ||sum g_k||_2   Eq. 12
    l1 squared   sum ||g_k||_1^2 / ||sum g_k||_1^2   Eq. 13    l1 plain   sum ||g_k||_1 / ||sum g_k||_1   Eq. 14

over the clients, or over clients and server; with g_k the change of weights over the round ("delta", Eq. 15), or the
gradient on all of the member's images at the weights it received ("gradient", Eq. 1).

Beside them, as the released code has it (Grad_Diff.py:228-248, 312-328): inside each group that is averaged, the mean
over groups by their clients ("clients_in_group"); and from means instead of sums, which is n times a squared quotient
of n members ("released"). Its least value is 1 for any n, that of Eq. 1 is 1/n: only equal n can be compared there.
Only trained parameters count. Sums are streamed: one accumulated vector, never C of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from benchmark.federated.module import FederatedModule
from benchmark.methods.fedmatch import applied
from benchmark.methods.protocol import SERVER, Job, Limit, Outcome, Tree, Weights
from benchmark.methods.shared import is_statistic


class StreamingDiversity:
    """The four quotients of a growing set of vectors, float64. Vectors come as named tensors."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self.count = 0
        self._l2 = self._l2_squared = self._l1 = self._l1_squared = 0.0

    def add(self, vector: Mapping[str, Tensor]) -> None:
        flat = torch.cat([part.flatten() for part in vector.values()]).double()
        l2_squared, l1 = float(flat @ flat), float(torch.linalg.vector_norm(flat, ord=1))
        self.count += 1
        self._l2_squared += l2_squared
        self._l2 += l2_squared**0.5
        self._l1 += l1
        self._l1_squared += l1**2
        self._sum = flat if self._sum is None else self._sum.add_(flat)

    def joined(self, other: "StreamingDiversity") -> "StreamingDiversity":
        """Both sets of vectors in one; neither is changed."""
        both = StreamingDiversity()
        both.count = self.count + other.count
        both._l2_squared, both._l2 = self._l2_squared + other._l2_squared, self._l2 + other._l2
        both._l1, both._l1_squared = self._l1 + other._l1, self._l1_squared + other._l1_squared
        sums = [part for part in (self._sum, other._sum) if part is not None]
        both._sum = sums[0] + sums[1] if len(sums) == 2 else sums[0] if sums else None
        return both

    def quotients(self) -> dict[str, float]:
        """{"l2/squared": ...}; empty where the sum is zero (no update, or updates that cancel exactly)."""
        if self._sum is None:
            return {}
        l2_squared, l1 = float(self._sum @ self._sum), float(torch.linalg.vector_norm(self._sum, ord=1))
        if l2_squared == 0.0:
            return {}
        return {
            "l2/squared": self._l2_squared / l2_squared,
            "l2/plain": self._l2 / l2_squared**0.5,
            "l1/squared": self._l1_squared / l1**2,
            "l1/plain": self._l1 / l1,
        }


class CohortDiversity:
    """One kind of update: over the clients and over clients and server, in all and inside the groups."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._clients, self._server = StreamingDiversity(), StreamingDiversity()
        self._groups: dict[int, StreamingDiversity] = {}

    def add(self, holder: int, vector: Mapping[str, Tensor], group: int = 0) -> None:
        if holder == SERVER:
            self._server.add(vector)
            return
        self._clients.add(vector)
        self._groups.setdefault(group, StreamingDiversity()).add(vector)

    def metrics(self) -> dict[str, float]:
        """{"diversity/delta/l2/squared/clients": ...}; without the server's where it did not train."""
        groups = list(self._groups.values())
        found = _named("clients", self._clients, groups, groups)
        if self._server.count:
            joined = [group.joined(self._server) for group in groups]
            found |= _named("with_server", self._clients.joined(self._server), groups, joined)
        return {f"diversity/{self._kind}/{name}": value for name, value in found.items()}


def _named(
    who: str, whole: StreamingDiversity, groups: Sequence[StreamingDiversity], members: Sequence[StreamingDiversity]
) -> dict[str, float]:
    """The quotients of the whole, and the means over groups, by their clients, of those of their members."""
    found = {f"{norm}/{who}": value for norm, value in whole.quotients().items()}
    quotients = [each.quotients() for each in members]
    if not quotients or not all(quotients):
        return found
    clients = sum(group.count for group in groups)
    parts = list(zip(groups, members, quotients, strict=True))
    for norm in quotients[0]:
        inside = [(group.count / clients, each.count, quotient[norm]) for group, each, quotient in parts]
        if len(groups) > 1:
            found[f"{norm}/{who}_in_group"] = sum(share * quotient for share, _, quotient in inside)
        if norm.endswith("squared"):
            released = norm.replace("squared", "released")
            found[f"{released}/{who}"] = sum(share * n * quotient for share, n, quotient in inside)
    return found


class GradientDiversity(pl.Callback):
    """Measures a round's diversity: the weight changes every round, gradients every `every` rounds (0: never).

    Where a holder works more than once in a round (a server replica for each group), its first job counts. Clients of
    networks of their own (HeteroFL) have no diversity, since their updates have no common length, nor have clients that
    go on from models of their own (EASGD).
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
        if _counts(job):
            self._jobs.append(job)

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        if _counts(job) and (change := change_of_network(job, outcome.sends)):
            self._delta.add(job.key.client, change, job.group)

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
                # A client that would sit out has no gradient.
                if trained := [found[name] for name in found if name == "student" or job.begins is not None]:
                    cohort.add(job.key.client, summed(trained), job.group)
        return cohort.metrics()


def _counts(job: Job) -> bool:
    # a user's update need not inherit from LocalUpdate
    return job.key.draw == 0 and job.network is None and getattr(job.update, "starts_from_received", True)


def change_of_network(job: Job, sends: Tree) -> dict[str, Tensor]:
    """What a holder's local steps changed of the network; empty for one that sat out, or that trains none. Where the
    network is a sum of weight sets (`Job.begins`), their changes add up, as the server sees them."""
    before: Mapping[str, Any] = job.receives if job.begins is None else job.begins
    names = [name for name in sends if name == "student" or (job.begins is not None and name in job.begins)]
    return summed([weight_change(applied(before[name], sends[name]), before[name]) for name in names])


def summed(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    first, *others = parts or [{}]
    return {name: sum((part[name] for part in others), start=value) for name, value in first.items()}


def weight_change(after: Weights, before: Weights) -> dict[str, Tensor]:
    """Eq. 15: what a member's local steps changed, trained parameters only."""
    return {name: value - before[name] for name, value in after.items() if not is_statistic(name)}


def on_all_images(jobs: Iterable[Job]) -> Iterable[Job]:
    """The same jobs as one pass over all of the holder's images, in which no incomplete batch is left out, from the
    weights that they began with."""
    for job in jobs:
        data = {name: replace(stream, drop_last=False) for name, stream in job.data.items()}
        yield replace(job, receives={**job.receives, **(job.begins or {})}, data=data, limit=Limit(epochs=1))
