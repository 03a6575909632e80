"""Compute gradient diversity, a measure of how different the cohort's updates are (SSFL appendix D).

If g_k is the update of member k, the 16 variants are

    l2 squared   sum ||g_k||_2^2 / ||sum g_k||_2^2   Eq. 1     l2 plain   sum ||g_k||_2 / ||sum g_k||_2   Eq. 12
    l1 squared   sum ||g_k||_1^2 / ||sum g_k||_1^2   Eq. 13    l1 plain   sum ||g_k||_1 / ||sum g_k||_1   Eq. 14

over the clients, or over clients and server. g_k is either the change of the weights over the round ("delta", Eq. 15),
or the gradient on all of the member's images at its initial weights ("gradient", Eq. 1). "diversity/members" is the
number of clients. The site's glossary explains the meaning of the values for each kind of method.

Two further variants follow the released code (Grad_Diff.py:228-248, 312-328). "clients_in_group" is computed inside
each averaged group, and is the mean over groups, weighted by their clients. "released" uses means instead of sums, and
is n times a squared quotient of n members. Its smallest value is 1 for any n, while the smallest value of Eq. 1 is 1/n,
so that Eq. 1 can only be compared for equal n. Only trained parameters count. Sums are accumulated in one vector, so
that C vectors are never in memory together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pytorch_lightning as pl
import torch
from torch import Tensor

from benchmark.federated.module import FederatedModule, Observer
from benchmark.methods.changed_entries import with_changed_entries
from benchmark.methods.protocol import SERVER, Job, Limit, Outcome, Tree, Weights
from benchmark.methods.shared import is_statistic


def norms_of(flat: Tensor) -> dict[str, float]:
    """Compute the norms that the numerators sum over members, and the denominators apply to the sum."""
    l2_squared, l1 = float(flat @ flat), float(torch.linalg.vector_norm(flat, ord=1))
    return {"l2/squared": l2_squared, "l2/plain": l2_squared**0.5, "l1/squared": l1**2, "l1/plain": l1}


@dataclass(frozen=True)
class VectorSet:
    """The number of vectors in a set, their sum, and the sums of their norms, in float64."""

    count: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    norms: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, vector: Mapping[str, Tensor]) -> Self:
        """Build the set of one vector, which is given as named tensors."""
        flat = torch.cat([part.flatten() for part in vector.values()]).double()
        return cls(1, flat, norms_of(flat))

    def __add__(self, other: "VectorSet") -> "VectorSet":
        if not (self.count and other.count):
            return self if self.count else other
        norms = {name: norm + other.norms[name] for name, norm in self.norms.items()}
        return VectorSet(self.count + other.count, self.total + other.total, norms)

    def quotients(self) -> dict[str, float]:
        """Return {"l2/squared": ...}; return {} if the sum is zero: without updates, or if they cancel exactly."""
        whole = norms_of(self.total) if self.count else {}
        return {name: self.norms[name] / norm for name, norm in whole.items() if whole["l2/squared"]}


class CohortDiversity:
    """The diversity of one kind of update, over clients and over clients and server, in total and within groups."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._clients, self._server = VectorSet(), VectorSet()
        self._groups: dict[int, VectorSet] = defaultdict(VectorSet)
        self._entries: dict[str, torch.Size] | None = None  # names and shapes that every vector must have
        self._complete = True

    def add(self, participant: int, vector: Mapping[str, Tensor], group: int = 0) -> None:
        """Add a member's vector. If it is empty or its entries differ from the first one's, there is no diversity."""
        entries = {name: value.shape for name, value in vector.items()}
        if self._entries is None:
            self._entries = entries
        self._complete = self._complete and bool(entries) and entries == self._entries
        if not self._complete:
            return
        if participant == SERVER:
            self._server += VectorSet.of(vector)
            return
        self._clients += (new := VectorSet.of(vector))
        self._groups[group] += new

    def metrics(self) -> dict[str, float]:
        """Return {"diversity/delta/l2/squared/clients": ...}, and "diversity/members", the number of clients.

        The values "with_server" include one more vector; they are missing if the server did not train. Return {} if no
        diversity is defined.
        """
        if not self._complete or not self._clients.count:
            return {}
        groups = list(self._groups.values())
        values = _named("clients", self._clients, groups, groups)
        if self._server.count:
            joined = [group + self._server for group in groups]
            values |= _named("with_server", self._clients + self._server, groups, joined)
        members = {"diversity/members": self._clients.count} if values else {}
        return {**{f"diversity/{self._kind}/{name}": value for name, value in values.items()}, **members}


def _named(who: str, whole: VectorSet, groups: Sequence[VectorSet], members: Sequence[VectorSet]) -> dict[str, float]:
    """Return the quotients over all members, and the means over groups of their quotients, weighted by clients."""
    values = {f"{norm}/{who}": value for norm, value in whole.quotients().items()}
    quotients = [each.quotients() for each in members]
    if not quotients or not all(quotients):
        return values
    clients = sum(group.count for group in groups)
    parts = list(zip(groups, members, quotients, strict=True))
    for norm in quotients[0]:
        inside = [(group.count / clients, each.count, quotient[norm]) for group, each, quotient in parts]
        if len(groups) > 1:
            values[f"{norm}/{who}_in_group"] = sum(share * quotient for share, _, quotient in inside)
        if norm.endswith("squared"):
            released = norm.replace("squared", "released")
            values[f"{released}/{who}"] = sum(share * n * quotient for share, n, quotient in inside)
    return values


class GradientDiversity(Observer):
    """An observer that measures the diversity of weight changes in every round, and of gradients every `every` rounds.

    Gradients are never measured if `every` is 0. A round has no diversity if the vector of a participant that trained
    has different entries from the others (`begins_with`). Gradients are computed for the training loss, with the client
    state from before the round. If a participant trains more than once in a round, as a server replica per group or a
    client that is drawn twice, its first job counts.
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self._jobs: list[Job] = []
        self._delta = CohortDiversity("delta")

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        self._jobs, self._delta = [], CohortDiversity("delta")

    def on_job(self, job: Job, round_number: int) -> None:
        if _counts(job):
            self._jobs.append(job)

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        if _counts(job):
            self._delta.add(job.key.client, change_of_network(job, outcome.sends), job.group)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        if not any(job.key.client >= 0 for job in self._jobs):
            return
        pl_module.metrics.update(self._delta.metrics())
        if self._every and pl_module.rounds_done % self._every == 0 and all(map(begins_with, self._jobs)):
            pl_module.metrics.update(self._gradient_metrics(pl_module))

    def _gradient_metrics(self, module: FederatedModule) -> dict[str, float]:
        cohort = CohortDiversity("gradient")
        jobs = list(on_all_images(self._jobs))
        with torch.enable_grad():
            gradients = module.engine.gradients(jobs, module.rounds_done, module.kept_before)
            for job, gradient in zip(self._jobs, gradients, strict=True):
                cohort.add(job.key.client, gradient_of_network(job, gradient), job.group)
        return cohort.metrics()


def _counts(job: Job) -> bool:
    """Return whether the job is its participant's first training in the round; a job without streams does not train."""
    return job.key.draw == 0 and bool(job.data)


def begins_with(job: Job) -> Mapping[str, Weights]:
    """Return the weight sets, shared with the server, at the start of the job's local steps; the network is their sum.

    Return {} if the vector cannot be compared with other clients' vectors: the client has a different network as in
    HeteroFL, or starts from its own model as in EASGD. If it keeps some layers (LG-FedAvg), only the other weights are
    returned.
    """
    # A custom update need not inherit from LocalUpdate.
    if job.network is not None or not getattr(job.update, "starts_from_received", True):
        return {}
    received = {"student": job.receives["student"]} if "student" in job.receives else {}
    return received if job.begins is None else job.begins


def change_of_network(job: Job, sends: Tree) -> dict[str, Tensor]:
    """Compute how a participant's local steps changed the network.

    The result is empty if the participant skipped the round or trains no network. If the network is a sum of weight
    sets (`Job.begins`), the changes that the server receives are added up.
    """
    before = begins_with(job)
    changes = []
    for name, sent in sends.items():
        if name in before:
            old, new = before[name], with_changed_entries(before[name], sent)
            # Eq. 15: trained parameters only
            trained = [tensor for tensor, w in new.items() if w.is_floating_point() and not is_statistic(tensor)]
            changes.append({tensor: new[tensor] - old[tensor] for tensor in trained})
    return summed(changes)


def gradient_of_network(job: Job, gradients: Mapping[str, Weights]) -> dict[str, Tensor]:
    """Add up a gradient's weight sets over the entries that the participant received.

    The result is empty for a participant that would skip the round.
    """
    before = begins_with(job)
    parts = []
    for name, gradient in gradients.items():
        if name in before:
            received = before[name]
            parts.append({tensor: value for tensor, value in gradient.items() if tensor in received})
    return summed(parts)


def summed(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    first, *others = parts or [{}]
    total = dict(first)
    for part in others:
        total = {name: value + part[name] for name, value in total.items()}
    return total


def on_all_images(jobs: Iterable[Job]) -> Iterable[Job]:
    """Yield the same jobs, changed to one pass over all images, including incomplete batches."""
    for job in jobs:
        data = {name: replace(stream, drop_last=False) for name, stream in job.data.items()}
        yield replace(job, begins=None, data=data, limit=Limit(epochs=1))
