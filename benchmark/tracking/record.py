"""A finished or unfinished run as read from disk: what reports and sweeps see of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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

    @property
    def status(self) -> str:
        """done | diverged | failed | unfinished"""
        return self.result.get("status", "unfinished")

    def last(self, metric: str) -> float | None:
        """The metric's value after the last round, None where the run has no result or never measured it."""
        return self.result.get("last", {}).get(metric)
