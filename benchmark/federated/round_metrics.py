"""Compute the metrics of a round's jobs: bytes sent and kept, means over local steps, and pseudo-label quality.

Pseudo-labels are evaluated outside the method, which never sees a hidden label. Shapes: N images, D classes.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from benchmark.federated.trees import read_at_once, tree_bytes
from benchmark.methods.protocol import Job, Outcome


class RoundMetrics:
    """Sums over the jobs of one round. Bytes are counted from the trees that were actually passed on."""

    def __init__(self, num_classes: int, tied: Collection[str] = ()) -> None:
        """Create empty sums. `tied` names weights that are sent under a different name (`Environment.tied`)."""
        self._num_classes, self._tied = num_classes, tied
        self._counts = dict.fromkeys(("comm/bytes_up", "comm/bytes_down", "comm/sat_out", "local_steps"), 0)
        self._bytes_kept: dict[str, int] = {}  # by state key; the last job of a client that is drawn twice counts
        self._sums: dict[str, float] = defaultdict(float)
        self._steps: dict[str, int] = defaultdict(int)
        self._pseudo: list[Mapping[str, float]] = []

    def enter(self, job: Job, outcome: Outcome, first_bytes: int = 0) -> None:
        """Add a job. `first_bytes` are the bytes of the parameters that its client downloads with its first job."""
        if job.key.client >= 0:  # the server's own training needs no communication
            self._counts["comm/bytes_down"] += tree_bytes(job.receives, self._tied) + first_bytes
            self._counts["comm/bytes_up"] += tree_bytes(outcome.sends, self._tied)
            self._counts["comm/sat_out"] += outcome.sat_out
            self._bytes_kept[job.state_key] = tree_bytes(outcome.private or {}, self._tied)
        self._counts["local_steps"] += outcome.steps
        self._pseudo.append({name: value for name, value in outcome.metrics.items() if name.startswith("pseudo/")})
        for name in outcome.metrics.keys() - self._pseudo[-1].keys():
            self._sums[name] += outcome.metrics[name]
            self._steps[name] += outcome.steps

    def metrics(self) -> dict[str, float]:
        """Return the round's means over local steps, pseudo-label shares, bytes and steps.

        `comm/bytes_kept` is the size of the client states that the round's clients keep until they are drawn again.
        `comm/sat_out` is the number of clients that skipped the round and sent nothing; their states are not counted.
        """
        means = {name: total / self._steps[name] for name, total in self._sums.items() if self._steps[name]}
        shares = summary(self._pseudo, self._num_classes)
        return {**means, **shares, **self._counts, "comm/bytes_kept": sum(self._bytes_kept.values())}


class PseudoLabelQuality:
    """The number, selection, correctness and classes of one job's pseudo-labels.

    Tensors are read together after the job, because a read within a local step would synchronise with the device.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._among: list[Tensor] = []  # whether the true class of each image is a candidate, of steps that have both

    def add(
        self, labels_N: Tensor, kept_N: Tensor, truth_N: Tensor | None, candidates_ND: Tensor | None = None
    ) -> None:
        self._steps.append((labels_N, kept_N, truth_N))
        if truth_N is not None and candidates_ND is not None:
            self._among.append(is_candidate(truth_N, candidates_ND))

    def joined(self, other: "PseudoLabelQuality") -> "PseudoLabelQuality":
        """Return the quality of these pseudo-labels followed by the others."""
        both = PseudoLabelQuality()
        both._steps = [*self._steps, *other._steps]
        both._among = [*self._among, *other._among]
        return both

    def tensors(self) -> list[Tensor]:
        """Return the tensors for `metrics`: pseudo-labels, whether each is selected and, if known, the true labels and
        whether each of these is a candidate.
        """
        if not self._steps:
            return []
        known = [truth_N for _, _, truth_N in self._steps if truth_N is not None]
        labels = torch.cat([labels_N for labels_N, _, _ in self._steps])
        kept = torch.cat([kept_N for _, kept_N, _ in self._steps])
        if len(known) < len(self._steps):
            return [labels, kept]
        among = [torch.cat(self._among)] if len(self._among) == len(self._steps) else []
        return [labels, kept, torch.cat(known), *among]

    def metrics(self, read: Sequence[Tensor] | None = None) -> dict[str, float]:
        """Return counts to be summed over jobs, and this job's `pseudo/kl_uniform`, `pseudo/kl_kept`, `pseudo/kl_true`.

        `pseudo/class/3` counts the selected pseudo-labels of class 3. `pseudo/unknown` counts the selected images of an
        unknown class, whose true label is -1; `pseudo/kl_true` leaves such images out. If the method has candidates,
        `pseudo/unselected` counts the other images, without those of an unknown class, and `pseudo/unselected_correct`
        and `pseudo/among_candidates` those of them whose true class is the pseudo-label and a candidate. `read`
        contains `tensors()` on the host if they were already copied. Return {} for a job without pseudo-labels.
        """
        if not self._steps:
            return {}
        labels_N, kept_N, *known = read_at_once(self.tensors()) if read is None else read
        values = {"pseudo/seen": float(len(labels_N)), "pseudo/count": float(kept_N.sum())}
        if known and len(labels_N):
            truth_N, *among = known
            num_classes = int(max(labels_N.max(), truth_N.max())) + 1
            values["pseudo/correct"] = float((kept_N & (labels_N == truth_N)).sum())
            known_N = truth_N >= 0
            if among:
                unselected_N = known_N & ~kept_N
                values["pseudo/unselected"] = float(unselected_N.sum())
                values["pseudo/unselected_correct"] = float((unselected_N & (labels_N == truth_N)).sum())
                values["pseudo/among_candidates"] = float((unselected_N & among[0]).sum())
            if not known_N.all():
                values["pseudo/unknown"] = float((kept_N & ~known_N).sum())
                truth_N = truth_N[known_N]
            if len(truth_N):
                values["pseudo/kl_true"] = _entropy_gap(torch.bincount(truth_N, minlength=num_classes))
        by_class = torch.bincount(labels_N[kept_N])
        values["pseudo/kl_uniform"] = _entropy_gap(torch.bincount(labels_N))
        if values["pseudo/count"]:
            values["pseudo/kl_kept"] = _entropy_gap(by_class)
        return {**values, **{f"pseudo/class/{c}": float(count) for c, count in enumerate(by_class.tolist()) if count}}


def summary(jobs: Sequence[Mapping[str, float]], num_classes: int) -> dict[str, float]:
    """Summarise a round's pseudo-labels from its jobs' metrics.

    `pseudo/kept` is the share of selected pseudo-labels, and `pseudo/accuracy` is the share of correct ones among them.
    `pseudo/unknown` is the share of images of unknown classes among them; it exists only if a job had such images.
    `pseudo/kl_uniform` is the mean over jobs of KL(pseudo-labels || uniform) in nats, for all pseudo-labels, selected
    or not. `pseudo/kl_kept` is the same for selected pseudo-labels, over jobs with at least one, and `pseudo/kl_true`
    is the same for the images' true labels. (FedSwitch section 5.4 and Figure 3 do not specify whether uncertain
    pseudo-labels count.) `pseudo/class_balance` is the entropy of the classes of the selected pseudo-labels of all
    jobs, divided by log D; 1 is balanced. If a method has a set of candidates for each image, `pseudo/candidates` and
    `pseudo/unselected_accuracy` are the shares of the images without a selected pseudo-label whose true class is among
    the candidates, and is the pseudo-label (ProxyFL Figure 6). Return {} if no job had pseudo-labels; metrics without a
    value, such as the accuracy without selected pseudo-labels, are left out.
    """
    with_labels = [job for job in jobs if job.get("pseudo/seen")]
    if not with_labels:
        return {}
    totals: dict[str, float] = defaultdict(float)
    for job in with_labels:
        for name, value in job.items():
            totals[name] += value
    shares = {"pseudo/kept": totals["pseudo/count"] / totals["pseudo/seen"]}
    for name in ("pseudo/kl_uniform", "pseudo/kl_kept", "pseudo/kl_true"):
        if values := [job[name] for job in with_labels if name in job]:
            shares[name] = math.log(num_classes) + sum(values) / len(values)
    if totals["pseudo/count"]:
        counts = torch.tensor([value for name, value in totals.items() if name.startswith("pseudo/class/")])
        shares["pseudo/class_balance"] = -_entropy_gap(counts) / math.log(num_classes)
        if "pseudo/correct" in totals:
            shares["pseudo/accuracy"] = totals["pseudo/correct"] / totals["pseudo/count"]
        if "pseudo/unknown" in totals:
            shares["pseudo/unknown"] = totals["pseudo/unknown"] / totals["pseudo/count"]
    if totals["pseudo/unselected"]:
        shares["pseudo/candidates"] = totals["pseudo/among_candidates"] / totals["pseudo/unselected"]
        shares["pseudo/unselected_accuracy"] = totals["pseudo/unselected_correct"] / totals["pseudo/unselected"]
    return shares


def is_candidate(truth_N: Tensor, candidates_ND: Tensor) -> Tensor:
    """Return whether the true class of each image is among its candidates; a class that is unknown (-1) never is.

    Both tensors may have further dimensions in front.
    """
    at_N = truth_N.clamp(min=0).to(candidates_ND.device)
    return candidates_ND.gather(-1, at_N.unsqueeze(-1)).squeeze(-1) & (truth_N >= 0).to(candidates_ND.device)


def _entropy_gap(counts_D: Tensor) -> float:
    """Return -H of the distribution of these counts in nats, its KL to the uniform distribution minus log D."""
    share_D = counts_D.double() / counts_D.sum()
    return float(torch.special.xlogy(share_D, share_D).sum())
