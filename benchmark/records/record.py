"""A finished or unfinished run as read from disk: what reports and sweeps see of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIRROR_FILE = "wandb.json"  # in a run's folder: {"url": its page on W&B}; beside the record and in no digest


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run (a cell x a seed). `rounds` has one mapping a round, in order; a metric that was not
    measured in a round is absent from its mapping. Accuracies are fractions."""

    cell_key: str
    seed: int
    experiment: Mapping[str, Any]  # the resolved Experiment as JSON
    manifest: Mapping[str, Any]  # commit, versions, data and partition hashes, hardware
    result: Mapping[str, Any]  # empty while the run is not finished
    rounds: Sequence[Mapping[str, Any]]
    content: str = ""  # hash of the bytes that it was read from; empty where nobody asked for it
    edited: bool = False  # its digest is of other content (`verify.digest`); False where nobody looked

    @property
    def status(self) -> str:
        """done | diverged | failed | unfinished"""
        return self.result.get("status", "unfinished")

    def last(self, metric: str) -> float | None:
        """The metric's value after the last round, None where the run has no result or never measured it."""
        return self.result.get("last", {}).get(metric)

    def selected(self, metric: str) -> float | None:
        """The metric's value that counts under the run's selection rule: on the test set, in the best round where the
        rule is "best_on_test"; otherwise, and for everything that is not measured there, after the last round."""
        if self.selected_on_test and metric.startswith("test/"):
            return (self.result.get("best") or {}).get(metric)
        return self.last(metric)

    @property
    def selected_on_test(self) -> bool:
        return self.result.get("selection") == "best_on_test"
