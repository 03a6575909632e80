"""A budget of time: which of the missing runs fit into it, in the order in which they tell most, and keeping to it.

Wall time counts runs side by side, a core-hour is an hour of CPU time of all processes of this machine together. What
does not fit is passed over, and what comes after it may still fit. Estimates are of a CPU, also where a GPU trains.
"""

import heapq
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.records.cputime import cpu_seconds
from benchmark.records.record import run_folder
from benchmark.verdicts.next_runs import steps
from sweeps.cost import cost_of, measured, stretch
from sweeps.plan import Plan, restricted
from sweeps.status import in_words, share_left

Kind = Literal["wall", "core"]
EXAMPLES = "write it as 90m, 2h or 4core-h"
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
SECONDS_TO_STOP = 3.0  # of wall time, from the signal to the last save, on an idle machine
SECONDS_TO_START = 4.0  # of CPU time, for a process that has to import torch, as measured
TRUSTED_AS = 1.0  # finished runs that the estimates weigh as much as, when they are corrected by what runs cost
_WORD = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(core)-?)?(s|min|m|h)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """So many seconds: of the clock, or of CPU time."""

    seconds: float
    kind: Kind = "wall"

    def __str__(self) -> str:
        return f"{in_words(self.seconds)} of {'wall' if self.kind == 'wall' else 'CPU'} time"


def parsed(word: str) -> Budget:
    """ "2h", "90m", "30s", "4core-h". Raises ConfigError."""
    found = _WORD.fullmatch(word.strip())
    if found is None:
        raise ConfigError(f"--budget: {word!r} is no time; {EXAMPLES}")
    number, of, unit = found.groups()
    seconds = float(number) * UNITS[unit.lower()]
    if seconds <= 0:
        raise ConfigError(f"--budget: {word!r} is no time at all; {EXAMPLES}")
    return Budget(seconds=seconds, kind="core" if of else "wall")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Which runs of a list fit into what is left of a budget, in the list's order."""

    taken: tuple[Experiment, ...]
    left_out: tuple[Experiment, ...]
    seconds: float  # of the budget that those taken are estimated to use


def fitting(
    runs: Sequence[Experiment], seconds: Callable[[Experiment], float], left: float, kind: Kind, lanes: int
) -> Fit:
    """`seconds`: what is estimated of a run, in the budget's unit. `lanes`: runs side by side, each on the lane that is
    free first; they share a budget of wall time, and use up any other one after the other."""
    ends = [0.0] * (lanes if kind == "wall" else 1)
    taken, left_out = [], []
    for run in runs:
        if ends[0] + seconds(run) <= left:
            heapq.heapreplace(ends, ends[0] + seconds(run))
            taken.append(run)
        else:
            left_out.append(run)
    return Fit(taken=tuple(taken), left_out=tuple(left_out), seconds=max(ends))


class Gate:
    """What of a budget is used up, whether a run may still be started, and when those at work have to stop.

    Estimates are corrected by the runs that have ended: by the sum of what they cost over the sum of what they were
    estimated at, in which the estimates count as much as `TRUSTED_AS` runs.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] | None = None,
        start: float | None = None,
    ) -> None:
        """`used`: seconds of CPU so far, where the budget is not of wall time. `start`: by `clock`."""
        self.budget = budget
        self._clock, self._used = clock, used
        self._start = clock() if start is None else start
        self._estimates: dict[Experiment, float] = {}  # of the runs at hand, what is left of them
        self._whole: dict[Experiment, tuple[float, float]] = {}  # ended runs: estimate and outcome
        self._begun: dict[Experiment, float] = {}
        self.refused: set[Experiment] = set()

    def expect(self, estimates: Mapping[Experiment, float]) -> None:
        """What is left of the runs that may be asked for, in the budget's unit, uncorrected."""
        self._estimates.update(estimates)

    def ended(self, run: Experiment, estimate: float, outcome: float) -> None:
        """A run's cost as estimated and as it was, from its first round to its last."""
        self._whole[run] = (estimate, outcome)
        self.gone(run)

    def gone(self, run: Experiment) -> None:
        """The run is at work no more: what it was expected to use is free for others, also where it has no result."""
        self._begun.pop(run, None)

    @property
    def correction(self) -> float:
        """What estimates are to be multiplied with."""
        if not self._whole:
            return 1.0
        estimates, outcomes = map(sum, zip(*self._whole.values(), strict=True))
        prior = TRUSTED_AS * estimates / len(self._whole)
        return (outcomes + prior) / (estimates + prior) if estimates > 0 else 1.0

    @property
    def used(self) -> float:
        """Seconds of the budget that are gone."""
        if self.budget.kind == "wall" or self._used is None:
            return self._clock() - self._start
        return self._used()

    @property
    def left(self) -> float:
        spare = SECONDS_TO_STOP if self.budget.kind == "wall" else 0.0
        return self.budget.seconds - self.used - spare

    def left_for(self, lanes: int) -> float:
        """What is left once processes for so many runs side by side have started."""
        return self.left - SECONDS_TO_START * (1 if self.budget.kind == "wall" else lanes)

    def admits(self, run: Experiment) -> bool:
        """Whether the run fits into what is left; one that does not is not asked for again."""
        needed = self._estimates.get(run, 0.0) * self.correction
        if self.budget.kind != "wall":  # those at work have a claim on what is left
            now = self._clock()
            needed += sum(
                max(0.0, self._estimates.get(other, 0.0) * self.correction - (now - begun))
                for other, begun in self._begun.items()
            )
        if needed > self.left:
            self.refused.add(run)
            return False
        self._begun[run] = self._clock()
        return True

    def is_closed(self) -> bool:
        """Whether nothing is left: what is at work stops at its last finished round."""
        return self.left <= 0


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a budget is to be spent on."""

    fit: Fit
    wave: tuple[Experiment, ...]  # of those taken, what is run before the records are asked again
    seconds: Mapping[Experiment, float]  # of the budget, for each missing run


class Spending:
    """A budget while it is spent: estimates in its unit, and what the runs that ended cost."""

    def __init__(self, budget: Budget, results: Path, data_root: Path | None, jobs: int, start: float) -> None:
        """`start`: when the command began, by `time.monotonic`."""
        begun = cpu_seconds()
        self.gate = Gate(budget, used=lambda: cpu_seconds() - begun, start=start)
        self.jobs, self._results, self._data_root = jobs, results, data_root
        self._per_cpu_second = stretch(jobs) if budget.kind == "wall" else 1.0
        self.whole: dict[Experiment, float] = {}  # CPU seconds, as estimated before anything was run
        self._noted: set[Experiment] = set()

    def choose(self, planned: Plan) -> Chosen:
        """What fits into what is left, as the records stand now."""
        missing = [run for run in planned.missing if run not in self.gate.refused]
        for run in missing:
            if run not in self.whole:
                self.whole[run] = cost_of(run, self._results, self._data_root).core_seconds
        left = {run: share_left(run, self._results) for run in missing}
        seconds = {run: self.whole[run] * left[run] * self._per_cpu_second for run in missing}
        self.gate.expect(seconds)
        found = steps(planned.items, restricted(planned.records, planned.runs), missing, seconds.__getitem__)
        correction, time_left = self.gate.correction, self.gate.left_for(self.jobs)
        in_order = [run for step in found for run in step]
        kind = self.gate.budget.kind
        fit = fitting(in_order, lambda run: seconds[run] * correction, time_left, kind, self.jobs)
        taken = set(fit.taken)
        wave = next((kept for step in found if (kept := tuple(run for run in step if run in taken))), ())
        return Chosen(fit=fit, wave=wave, seconds=seconds)

    def note(self, finished: Iterable[Experiment]) -> None:
        """Correct the estimates by the runs that ended since the last time."""
        for run in finished:
            if run in self._noted:
                continue
            self._noted.add(run)
            self.gate.gone(run)
            outcome = measured(run_folder(self._results, run))
            if outcome is not None and run in self.whole:
                seconds = outcome["cpu_seconds" if self.gate.budget.kind == "core" else "wall_seconds"]
                self.gate.ended(run, self.whole[run] * self._per_cpu_second, seconds)
