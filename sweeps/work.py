"""What rounds do, as counts: the unit of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmark.methods.protocol import Job, LocalUpdate, Stream
from benchmark.models.build import Model

Shape: TypeAlias = frozenset[tuple[object, ...]]  # which kinds of jobs a round has


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """Jobs that take the same time a local step."""

    update: type[LocalUpdate]
    network: Model | None
    at_server: bool
    streams: tuple[tuple[str, Stream], ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one or many rounds do, as counts. Adding and scaling keep whole numbers whole."""

    totals: Mapping[str, float] = field(default_factory=dict)  # local_steps, flops, bytes_up, ...
    jobs: Mapping[JobKind, float] = field(default_factory=dict)  # of those that train
    steps: Mapping[JobKind, float] = field(default_factory=dict)
    examples: Mapping[JobKind, Job] = field(default_factory=dict, compare=False)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            totals=_sum(self.totals, other.totals),
            jobs=_sum(self.jobs, other.jobs),
            steps=_sum(self.steps, other.steps),
            examples={**other.examples, **self.examples},
        )

    def scaled(self, factor: float) -> "Work":
        return Work(
            totals={name: value * factor for name, value in self.totals.items()},
            jobs={kind: value * factor for kind, value in self.jobs.items()},
            steps={kind: value * factor for kind, value in self.steps.items()},
            examples=self.examples,
        )

    def total(self, name: str) -> float:
        return self.totals.get(name, 0)


def _sum(left: Mapping[Any, float], right: Mapping[Any, float]) -> dict[Any, float]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}
