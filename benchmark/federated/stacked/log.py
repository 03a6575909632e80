"""The log of a group's steps, which stays on the device until the group has trained and is then read once.

Legend: M jobs of the group, S of them in one step, N images.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.stacked.tick import Results
from benchmark.federated.trees import read_at_once
from benchmark.methods.calls import OF_PSEUDO_LABELS


@dataclass(kw_only=True)
class Reported:
    """One job's part of a log, on the CPU."""

    losses: list[float] = field(default_factory=list)  # one per step and phase
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    pseudo: PseudoLabelQuality = field(default_factory=PseudoLabelQuality)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The values that one loss of one step reported."""

    jobs: Sequence[int]  # S jobs of the group, in the order of the rows
    loss_S: Tensor
    values: Mapping[str, Tensor]  # (S,)
    pseudo: tuple[Tensor | None, ...] = ()  # labels_SN, kept_SN, truth_SN, candidates_SND; empty without pseudo-labels

    def tensors(self) -> list[Tensor]:
        """Return all tensors that must be read, in the order of the fields."""
        pseudo = [tensor for tensor in self.pseudo if tensor is not None]
        return [self.loss_S, *self.values.values(), *pseudo]


class Log:
    """Collects entries and reads them at once."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, jobs: Sequence[int], results: Results, truths: Sequence[Tensor | None]) -> None:
        """Add the losses of one step of some of the jobs. `truths` are the hidden labels of their batches."""
        known = [truth_N for truth_N in truths if truth_N is not None]
        truth_SN = torch.stack(known) if known else None
        for loss_S, aux in results:
            values = {name: value.detach() for name, value in aux.items() if name not in OF_PSEUDO_LABELS}
            pseudo = (aux["labels_N"], aux["kept_N"], truth_SN, aux.get("candidates_ND")) if "kept_N" in aux else ()
            self._entries.append(Entry(jobs=jobs, loss_S=loss_S, values=values, pseudo=pseudo))

    def of_each(self, M: int) -> list[Reported]:
        """Return the reports of each of the M jobs, step by step. Wait only once for the device."""
        read = iter(read_at_once([tensor for entry in self._entries for tensor in entry.tensors()]))
        reported = [Reported() for _ in range(M)]
        for entry in self._entries:
            for job, loss in zip(entry.jobs, next(read).tolist(), strict=True):
                reported[job].losses.append(loss)
            for name in entry.values:
                for job, value in zip(entry.jobs, next(read).tolist(), strict=True):
                    reported[job].values[name].append(value)
            if entry.pseudo:
                on_host = [None if tensor is None else next(read) for tensor in entry.pseudo]
                for row, job in enumerate(entry.jobs):
                    labels_N, kept_N, *others = (None if tensor is None else tensor[row] for tensor in on_host)
                    assert labels_N is not None and kept_N is not None
                    reported[job].pseudo.add(labels_N, kept_N, *others)
        return reported
