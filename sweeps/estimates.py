"""What a run will cost in CPU seconds: as a finished run of its cell did on this machine, else as counted and timed."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark.experiment import Experiment
from benchmark.records.files import read_json
from benchmark.records.provenance import hardware
from benchmark.records.record import read_rounds, run_folder
from sweeps.cost import counted
from sweeps.speed import Stopwatch

ENGINE = "reference"  # what launchers train with


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run of this machine cost."""

    cpu_seconds: float
    wall_seconds: float  # of its rounds


class Estimates:
    """CPU seconds of whole runs, and how much is left of them. Probes are short, and made when they are asked for."""

    def __init__(self, results: Path, data_root: Path | None = None, stopwatch: Stopwatch | None = None) -> None:
        self._results, self._data_root = results, data_root
        self.stopwatch = stopwatch or Stopwatch()

    def whole(self, run: Experiment) -> float:
        """Of a run from its first round to its last, without the start of its process."""
        known = list(self._of_cell(run))
        return fmean(known) if known else self.counted(run)

    def counted(self, run: Experiment) -> float:
        """As `whole`, whatever is known of its cell."""
        found = counted(run, self._data_root)
        return self.stopwatch.seconds(found.environment, found.work)

    def share_left(self, run: Experiment) -> float:
        """What its rounds on disk leave of a run, by their local steps."""
        lines = read_rounds(run_folder(self._results, run) / "rounds.jsonl")
        total = counted(run, self._data_root).work.total("local_steps") if lines else 0
        taken = sum(line.get("local_steps", 0) for line in lines)
        return max(0.0, 1 - taken / total) if total else 1.0

    def _of_cell(self, run: Experiment) -> Iterator[float]:
        for folder in run_folder(self._results, run).parent.glob("seed=*"):
            outcome = outcome_of(folder)
            if outcome is not None:
                yield outcome.cpu_seconds


def outcome_of(folder: Path) -> Outcome | None:
    """None where the run is not done, is older than CPU seconds in records, or is another machine's or engine's."""
    result: dict[str, Any] = read_json(folder / "result.json") or {}
    if result.get("status") != "done" or "cpu_seconds" not in result:
        return None
    manifest = read_json(folder / "manifest.json") or {}
    if manifest.get("hardware") != _here() or manifest.get("engine", {}).get("name") != ENGINE:
        return None
    return Outcome(cpu_seconds=result["cpu_seconds"], wall_seconds=result["wall_seconds"])


@cache
def _here() -> dict[str, Any]:
    return hardware()


@dataclass(frozen=True, kw_only=True)
class Held:
    """An estimate beside its outcome."""

    name: str
    seed: int
    estimate: float  # CPU seconds
    outcome: float

    @property
    def ratio(self) -> float:
        return self.estimate / self.outcome


def held_to_records(
    runs: Iterable[tuple[str, Experiment]], results: Path, data_root: Path | None, stopwatch: Stopwatch
) -> list[Held]:
    """The finished runs of this machine among those given by name, each as counted and timed now, and as it was."""
    estimates, found = Estimates(results, data_root, stopwatch), []
    for name, run in runs:
        outcome = outcome_of(run_folder(results, run))
        if outcome is not None:
            seconds = estimates.counted(run)
            found.append(Held(name=name, seed=run.seed, estimate=seconds, outcome=outcome.cpu_seconds))
    return found


def table(held: list[Held], item: str, profile: str) -> dict[str, Any]:
    """As it is committed: each run, and in sum. A ratio above 1: the estimate was too high."""
    estimate, outcome = sum(one.estimate for one in held), sum(one.outcome for one in held)
    within = sum(abs(one.ratio - 1) <= 0.25 for one in held)
    return {
        "item": item,
        "profile": profile,
        "runs": len(held),
        "within_25_percent": within,
        "estimate_cpu_seconds": round(estimate, 1),
        "outcome_cpu_seconds": round(outcome, 1),
        "ratio": round(estimate / outcome, 3) if outcome else None,
        "least_ratio": round(min((one.ratio for one in held), default=0.0), 3),
        "greatest_ratio": round(max((one.ratio for one in held), default=0.0), 3),
    }


def stretch(jobs: int) -> float:
    """Wall seconds for a CPU second, with so many runs side by side on an otherwise idle machine."""
    return max(1.0, jobs / (os.cpu_count() or 1))
