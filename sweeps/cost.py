"""What a run costs: counted by a dry run of its method (local steps, FLOPs, bytes), and timed on this machine."""

import os
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment
from sweeps.dry_run import dry_run
from sweeps.holders import environment_of
from sweeps.speed import Stopwatch
from sweeps.work import Work

AT_MOST = "pseudo-labels are taken as all confident: where steps, bytes or time depend on them, this is the most"
STAND_IN = "the data set is not at hand: numbers of images are those of equally large classes and clients"
ESTIMATED = "the rounds differ: counted on a sample of them, so the totals are estimates"
CHANGES = "only entries that change are sent: all are taken to, so that the bytes are the most that there can be"
REPORTED = "what local training reports is taken as zero: where a method goes by it, bytes and FLOPs may be others"


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One run's dry run, whatever its seed."""

    work: Work
    environment: Environment
    notes: tuple[str, ...]  # what is not exact about it


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Sums over runs. `core_seconds` is an estimate, the rest is counted, except as the notes say."""

    local_steps: int = 0
    flops: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    core_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        numbers = [f.name for f in fields(Cost) if f.name != "notes"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in numbers}
        return Cost(**sums, notes=tuple(dict.fromkeys(self.notes + other.notes)))

    def to_json(self) -> dict[str, Any]:
        cores = os.cpu_count() or 1
        return {
            "local_steps": self.local_steps,
            "flops": self.flops,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "hours": self.core_seconds / 3600 / cores,
            "cores": cores,
            "notes": list(self.notes),
        }


def counted(experiment: Experiment, data_root: Path | None = None) -> Counted:
    """The dry run of an experiment, the same for every seed: that of seed 0.

    Evaluation is not counted: no local step, FLOP or byte of it. Raises ConfigError where the run itself would.
    """
    return _counted(experiment.with_seed(0), data_root)


@lru_cache(maxsize=4096)
def _counted(experiment: Experiment, data_root: Path | None) -> Counted:
    environment, own_sizes = environment_of(experiment, data_root)
    work, exact = dry_run(environment)
    notes = {
        STAND_IN: not own_sizes,
        ESTIMATED: not exact,
        AT_MOST: work.total("predictions") > 0,
        CHANGES: work.total("changes_sent") > 0,
        REPORTED: work.total("reports_read") > 0,
    }
    return Counted(work=work, environment=environment, notes=tuple(note for note, holds in notes.items() if holds))


def cost_of(experiment: Experiment, stopwatch: Stopwatch | None = None, data_root: Path | None = None) -> Cost:
    """The cost of one run; without a stopwatch no time. Stragglers and process starts are not in it."""
    found = counted(experiment, data_root)
    work = found.work
    return Cost(
        local_steps=round(work.total("local_steps")),
        flops=float(work.total("flops")),
        bytes_up=round(work.total("bytes_up")),
        bytes_down=round(work.total("bytes_down")),
        core_seconds=stopwatch.seconds(found.environment, work) if stopwatch else 0.0,
        notes=found.notes,
    )


def local_steps(experiment: Experiment, data_root: Path | None = None) -> int:
    """All local steps of a run, at the server and at clients; at most so many where pseudo-labels decide."""
    return round(counted(experiment, data_root).work.total("local_steps"))
