"""What the steps of a group of jobs report. It stays on the device until the group has trained, and is read once.

Legend: M jobs of the group, S of them in one step, N images.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.stacked.tick import Results

PSEUDO = ("labels_N", "kept_N")


@dataclass(kw_only=True)
class Reported:
    """One job's part of a log, on the CPU."""

    losses: list[float] = field(default_factory=list)  # one per step and phase
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    pseudo: PseudoLabelQuality = field(default_factory=PseudoLabelQuality)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one loss of one step reported."""

    jobs: Sequence[int]  # S of the group's jobs, in the order of the rows
    loss_S: Tensor
    values: Mapping[str, Tensor]  # (S,)
    pseudo: tuple[Tensor, Tensor, Tensor | None] | None  # labels_SN, kept_SN, truth_SN


class Log:
    """Collects entries and reads them at once."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, jobs: Sequence[int], results: Results, truths: Sequence[Tensor | None]) -> None:
        """Add the losses of one step of some of the jobs. `truths`: the hidden labels of their batches."""
        known = [truth_N for truth_N in truths if truth_N is not None]
        truth_SN = torch.stack(known) if known else None
        for loss_S, aux in results:
            values = {name: value.detach() for name, value in aux.items() if name not in PSEUDO}
            pseudo = (aux["labels_N"], aux["kept_N"], truth_SN) if "kept_N" in aux else None
            self._entries.append(Entry(jobs=jobs, loss_S=loss_S, values=values, pseudo=pseudo))

    def of_each(self, M: int) -> list[Reported]:
        """Return what each of the M jobs reported, step by step."""
        reported = [Reported() for _ in range(M)]
        numbers = [entry.loss_S for entry in self._entries]
        for entry in self._entries:
            numbers += entry.values.values()
        read = iter(_read([number.detach().double() for number in numbers]))
        for entry in self._entries:
            for job, loss in zip(entry.jobs, next(read).tolist(), strict=True):
                reported[job].losses.append(loss)
        for entry in self._entries:
            for name in entry.values:
                for job, value in zip(entry.jobs, next(read).tolist(), strict=True):
                    reported[job].values[name].append(value)
        self._read_pseudo_labels(reported)
        return reported

    def _read_pseudo_labels(self, reported: Sequence[Reported]) -> None:
        with_some = [(entry, entry.pseudo) for entry in self._entries if entry.pseudo is not None]
        labels = iter(_read([pseudo[0] for _, pseudo in with_some]))
        kept = iter(_read([pseudo[1] for _, pseudo in with_some]))
        truth = iter(_read([pseudo[2] for _, pseudo in with_some if pseudo[2] is not None]))
        for entry, pseudo in with_some:
            labels_SN, kept_SN = next(labels), next(kept)
            truth_SN = None if pseudo[2] is None else next(truth)
            for row, job in enumerate(entry.jobs):
                truth_N = None if truth_SN is None else truth_SN[row]
                reported[job].pseudo.add(labels_SN[row], kept_SN[row], truth_N)


def _read(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of one type to the CPU in one transfer."""
    if not tensors:
        return []
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
