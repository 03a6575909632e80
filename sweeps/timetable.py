"""Decide which units of a queue fit into the time that is left.

A unit consists of all runs of an entry with one seed. One machine trains all of them, because a verdict compares the
arms of a seed. A unit begins only if all of its runs can end in time.
"""

import heapq
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.experiment import Experiment
from benchmark.federated.processes import CPU
from benchmark.records.record import FINISHED, run_folder
from benchmark.records.run_lock import is_held
from benchmark.verdicts.uniform import STRICT_SINCE
from sweeps.launcher import Launch
from sweeps.queue import Unit
from sweeps.shelf import Machine, Shelf
from sweeps.status import in_words

SHARE_TO_SAVE = 0.02  # unfinished runs are stopped, so that they save, this share of the time before its end
# Runs that one GPU trains at the speed of a single run, as measured on an H200 (reports/performance.md).
RUNS_IN_TURN, RUNS_UNDER_MPS = 3.0, 8.0
LEAST_SHARE = 0.2  # of a run's rounds, to correct the expected seconds; the time of fewer is mostly that of loading
LONGER = 0.1  # a run that is slower than expected is expected to need a further tenth of its time so far


class Pace:
    """The expected seconds of a run: as planned at first, then corrected by the runs that ended in this call."""

    def __init__(self, planned: Callable[[Experiment], float]) -> None:
        self._planned = planned  # maps a run to its seconds on this machine while the other runs train
        self._taken: dict[str, list[float]] = defaultdict(list)  # ratios of measured to planned seconds by cell

    def note(self, run: Experiment, seconds: float, share: float = 1.0) -> None:
        """Record the seconds of a run that has ended. This call trained the fraction `share` of the run."""
        if share < LEAST_SHARE:
            return
        self._taken[run.cell_key].append(seconds / (share * self._planned(run)))

    def seconds(self, run: Experiment) -> float:
        """Return the expected seconds of the whole run."""
        every = (ratio for ratios in self._taken.values() for ratio in ratios)
        ratios = self._taken.get(run.cell_key) or list(every) or [1.0]
        return self._planned(run) * sum(ratios) / len(ratios)


def crowding(side_by_side: int, devices: Sequence[str], cores: int) -> float:
    """Estimate the factor that slows a run if other runs train at the same time."""
    if devices[0] == CPU:
        return max(1.0, side_by_side / cores)
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    at_once = RUNS_UNDER_MPS if Path(pipe, "control").exists() else RUNS_IN_TURN
    return max(1.0, side_by_side / len(set(devices)) / at_once)


@dataclass(kw_only=True)
class Timetable:
    """Decides which runs may begin, and has the state of each unit. `launch` calls `fits` and `watch`."""

    units: Sequence[Unit]
    shelf: Shelf
    results: Path
    side_by_side: int
    until: float  # the time for stopping unfinished runs, on the clock `now`
    pace: Pace
    # The share of its rounds that a run has left; it is smaller than 1 if the run began before this call.
    share_left: Callable[[Experiment], float] = lambda run: 1.0
    when_complete: Callable[[Unit], None] = lambda unit: None
    now: Callable[[], float] = time.monotonic
    admitted: list[Unit] = field(default_factory=list)
    complete: list[Unit] = field(default_factory=list)  # units with finished runs only
    before: list[Unit] = field(default_factory=list)  # complete units that were complete before this call
    trained: list[Experiment] = field(default_factory=list)
    refused: dict[Unit, str] = field(default_factory=dict)  # units that cannot begin in this call, with the reason
    too_long: dict[Unit, str] = field(default_factory=dict)  # units that do not fit at the moment, with the reason

    def __post_init__(self) -> None:
        self._begun: dict[Experiment, float] = {}
        self._finished: set[Experiment] = set()
        self._of = defaultdict[Experiment, list[Unit]](list)
        for unit in self.units:
            for run in unit.runs:
                self._of[run].append(unit)

    def prepare(self, here: Machine) -> list[Experiment]:
        """Return the runs to train, unit by unit and the longest first. Refuse units that would be split by machine."""
        for unit in self.units:
            records = {run: self.shelf.finished(run) for run in unit.runs}
            self._finished |= {run for run, record in records.items() if record is not None}
            missing = [run for run, record in records.items() if record is None]
            if not missing:
                self.before.append(unit)
                self._complete(unit)
                continue
            for record in filter(None, records.values()):
                there = Machine.of(record.manifest)
                since = int(record.manifest.get("rule", {}).get("version", 0))
                if there != here and since >= STRICT_SINCE:
                    was = f"{there.processor}, torch {there.torch}"
                    self.refused[unit] = f"some of its runs are from a different machine ({was})"
            for record in filter(None, map(self.shelf.here, missing)):
                device = Machine.of(record.manifest).device
                if record.status in FINISHED or device != here.device:
                    self.refused[unit] = f"{record.path} does not count here (made on {device}); name other --results"
        open_units = [unit for unit in self.units if unit not in self.complete and unit not in self.refused]
        ordered = (run for unit in open_units for run in sorted(unit.runs, key=self._left, reverse=True))
        return [run for run in dict.fromkeys(ordered) if run not in self._finished]

    def fits(self, run: Experiment, state: Launch) -> bool:
        """Return whether the run may begin now, because all runs of one of its units can end in time."""
        self._see(state)
        for unit in self._of[run]:
            if unit in self.refused or unit in self.complete:
                continue
            if unit not in self.admitted and not self._admits(unit):
                continue
            if self.now() + self._left(run) <= self.until:
                return True
            self.too_long[unit] = self._why(self.now() + self._left(run))
        return False

    def watch(self, state: Launch) -> None:
        """Record the runs that have ended, and raise TimeIsUp if it is time to stop."""
        self._see(state)
        if self.now() >= self.until and state.at_work:
            raise TimeIsUp

    def close(self) -> None:
        """Update all units once more, because some runs end while the others are stopped."""
        for run in [run for run in self._begun if self.shelf.finished(run) is not None]:
            del self._begun[run]
            self.trained.append(run)
        for unit in self.units:
            if unit not in self.complete and all(self.shelf.finished(run) is not None for run in unit.runs):
                self._complete(unit)

    @property
    def stopped(self) -> list[Experiment]:
        """Return the runs that were training when the call ended."""
        return list(self._begun)

    def _complete(self, unit: Unit) -> None:
        self.complete.append(unit)
        self.when_complete(unit)

    def _see(self, state: Launch) -> None:
        now = self.now()
        for run in state.at_work - self._begun.keys():
            self._begun[run] = now
        for run in [run for run in self._begun if run not in state.at_work]:
            began = self._begun.pop(run)
            if self.shelf.finished(run) is not None:
                self.pace.note(run, now - began, self.share_left(run))
                self.trained.append(run)
                self._finished.add(run)
        for unit in self.admitted:
            if unit not in self.complete and self._finished.issuperset(unit.runs):
                self._complete(unit)

    def _left(self, run: Experiment) -> float:
        """Return the seconds that a run needs from its last save to its end."""
        return self.pace.seconds(run) * self.share_left(run)

    def _admits(self, unit: Unit) -> bool:
        end = self._end_of(unit)
        if end > self.until:
            self.too_long[unit] = self._why(end)
            return False
        others = [run for run in self._missing(unit) if run not in self._begun]
        if any(is_held(run_folder(self.results, run)) for run in others):
            self.refused[unit] = "another process trains one of its runs"
            return False
        self.too_long.pop(unit, None)
        self.admitted.append(unit)
        return True

    def _why(self, end: float) -> str:
        now = self.now()
        return f"needs about {in_words(end - now)}, and {in_words(max(0.0, self.until - now))} are left"

    def _missing(self, unit: Unit) -> list[Experiment]:
        return [run for run in unit.runs if run not in self._finished]

    def _end_of(self, unit: Unit) -> float:
        """Return when the unit's last run would end if it waits for all runs of the units that are already admitted."""
        now = self.now()
        free = [now] * self.side_by_side
        for index, (run, began) in enumerate(self._begun.items()):
            left = max(began + self._left(run) - now, LONGER * (now - began))
            free[index % self.side_by_side] = now + left
        heapq.heapify(free)
        before = (run for other in self.admitted for run in self._missing(other))
        own = sorted(self._missing(unit), key=self._left, reverse=True)
        ends = [now]
        for run in dict.fromkeys((*before, *own)):
            if run not in self._begun:
                ends.append(free[0] + self._left(run))
                heapq.heapreplace(free, ends[-1])
        return max(ends)


class TimeIsUp(Exception):
    """Signals that the time of the queue is over and that unfinished runs are saved."""
