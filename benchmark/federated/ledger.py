"""Bytes sent and kept in a round, and what local training reported."""

from collections import defaultdict
from collections.abc import Mapping

from benchmark.federated.divergence import DROPPED
from benchmark.federated.pseudo import summary
from benchmark.federated.trees import tree_bytes
from benchmark.methods.protocol import Job, Outcome


class Ledger:
    """Sums of one round, entered job by job. Bytes are those of the trees that were really handed over."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._bytes_down = self._bytes_up = self._local_steps = self._sat_out = 0
        self._bytes_kept: dict[object, int] = {}  # by keeper: a client drawn twice keeps what its last job left
        self._dropped: int | None = None  # None: the rule "drop" is not in use
        self._sums: dict[str, float] = defaultdict(float)
        self._steps: dict[str, int] = defaultdict(int)
        self._pseudo: list[Mapping[str, float]] = []

    def enter(self, job: Job, outcome: Outcome) -> None:
        if job.key.client >= 0:  # the server's own work crosses no network
            self._bytes_down += tree_bytes(job.receives)
            self._bytes_up += tree_bytes(outcome.sends)
            self._bytes_kept[job.keeps or job.key.client] = tree_bytes(outcome.private or {})
            dropped = outcome.metrics.get(DROPPED)
            if dropped is not None:
                self._dropped = (self._dropped or 0) + int(dropped)
            self._sat_out += outcome.sat_out and not dropped
        self._local_steps += outcome.steps
        self._pseudo.append({name: value for name, value in outcome.metrics.items() if name.startswith("pseudo/")})
        for name, value in outcome.metrics.items():
            if not name.startswith("pseudo/") and name != DROPPED:
                self._sums[name] += value
                self._steps[name] += outcome.steps

    def metrics(self) -> dict[str, float]:
        """The round's means over local steps, pseudo-label shares, bytes and steps.

        `comm/bytes_kept`: private state that the round's clients keep until they are next drawn; `comm/sat_out`:
        clients that sent nothing; `comm/dropped`: those whose update was not finite (`Federation.on_divergence`).
        """
        means = {name: total / self._steps[name] for name, total in self._sums.items() if self._steps[name]}
        return {
            **means,
            **summary(self._pseudo, self._num_classes),
            "comm/bytes_up": self._bytes_up,
            "comm/bytes_down": self._bytes_down,
            "comm/bytes_kept": sum(self._bytes_kept.values()),
            "comm/sat_out": self._sat_out,
            **({} if self._dropped is None else {DROPPED: self._dropped}),
            "local_steps": self._local_steps,
        }
