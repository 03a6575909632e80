"""Launch runs: train them at the same time with any kind of workers, and recover from the failure of a worker.

Two runs on two cores finish sooner than one run on both cores. Any number of launches, on any number of machines that
share the results folder, may train the same runs: a run has one process at a time (`run_lock.py`), and a launch skips
the runs of other launches. It returns to them when they are finished or stopped, or when their process has died. A
process that dies loses only the rounds since its last save.
"""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from benchmark.errors import DiskFull, Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment
from benchmark.failures import Failure
from benchmark.federated.processes import sigterm_as_interrupt
from benchmark.records.record import is_recorded, run_folder
from benchmark.records.run_lock import is_held

LONG_TRY = 60.0  # seconds; a run that trained longer than this had room on the disk in the meantime
MOST_DEATHS = 3  # deaths of a run's process after which the run is given up; other runs continue
SECONDS_OF_FULL_DISK = 600.0  # longest wait for room on the disk
SECONDS_BETWEEN_TRIES = 5.0  # to write to it
SECONDS_BETWEEN_LOOKS = 2.0  # between checks of a run that a different launch trains


class RunFailed(FsslError):
    """A run failed with a bug, in the user's own code or in this suite, or its process died repeatedly (exit 1)."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        """Create the error. `failure` describes the bug if it is in the user's own code."""
        super().__init__(message)
        self.failure = failure


class RunDied(FsslError):
    """A run's process ended without an answer, or could not be started: the run is tried again."""


class Workers(Protocol):
    """The processes or machines that train the runs of a launch."""

    @property
    def size(self) -> int: ...  # most runs at the same time

    def start(self, run: Experiment) -> None:
        """Start a run. Call this only while fewer than `size` runs are running. Raise RunDied if it cannot start."""

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        """Wait at most `timeout` seconds, and yield the runs that ended, each with its error.

        The error is None if the run record is written. RunDied and RunningElsewhere are not faults of the run, which is
        tried again.
        """

    def stop(self) -> None:
        """Request that all runs save their last finished round and end."""

    def close(self) -> None:
        """Wait until all runs have ended. An exception during the wait ends them immediately."""


def launch(
    workers: Workers,
    runs: Sequence[Experiment],
    results: Path,
    *,
    watch: "Callable[[Launch], None]" = lambda state: None,
    fits: "Callable[[Experiment, Launch], bool] | None" = None,
) -> "Launch":
    """Train all runs with the workers, and then close the workers.

    `fits` returns whether a run may begin now. It is called again until it returns true, or until nothing runs any
    more; the remaining runs then stay in `waiting`.

    The launch waits for a run that a different launch trains, and for room on a full disk. If the process of a run
    dies, the run resumes from its last save; it is given up at the third death. A failing run does not stop the others:
    the first error is raised at the end.
    Ctrl-C and SIGTERM stop all runs at their last finished round and raise Stopped.
    """
    state = Launch(runs, results, fits)
    with sigterm_as_interrupt(), contextlib.closing(workers):
        try:
            while (state.waiting or state.at_work) and not state.stopped:
                while len(state.at_work) < workers.size and (run := state.next()) is not None:
                    try:
                        workers.start(run)
                    except RunDied as death:
                        state.note(run, death)
                if fits is not None and not state.at_work and not state.is_held_up:
                    break
                watch(state)  # also reports new runs, since a short run can end before the next check
                for run, error in workers.ended(timeout=0.5):
                    state.note(run, error)
                watch(state)
            if state.stopped:
                workers.stop()
        except BaseException as error:
            workers.stop()
            if isinstance(error, KeyboardInterrupt):
                raise Stopped("stopped; the same command resumes from the last saves") from None
            raise
    if state.failures:
        first, *others = state.failures
        raise type(first)(f"{first}; {len(others)} more failed") if others else first
    return state


class Launch:
    """The progress of a launch: which run is next, and how the others ended."""

    def __init__(
        self,
        runs: Sequence[Experiment],
        results: Path,
        fits: "Callable[[Experiment, Launch], bool] | None" = None,
    ) -> None:
        self.waiting = list(runs)
        self.at_work = set[Experiment]()  # runs that this launch's workers train
        self.finished: list[Experiment] = []  # finished by any launch, or failed
        self.trained = 0  # number of runs that this launch finished
        self.failures: list[FsslError] = []
        self.stopped = False
        self._shown = set[str]()  # failures of the user's own code that were printed
        self._results, self._fits = results, fits
        self._deaths: Counter[Experiment] = Counter()
        self._elsewhere: dict[Experiment, float] = {}  # runs of other launches -> time of the last check
        self._full: tuple[float, float] | None = None  # since when the disk is full, and time of the next try

    @property
    def running(self) -> set[Experiment]:
        """Return the runs that this launch or a different one trains at present."""
        return self.at_work | self._elsewhere.keys()

    @property
    def is_held_up(self) -> bool:
        """Return whether the launch waits for room on the disk, or for runs of a different launch."""
        return self._full is not None or bool(self._elsewhere)

    def next(self) -> Experiment | None:
        """Remove and return the first waiting run that nobody trains. Count runs that others finished as finished."""
        if self._full and time.monotonic() < self._full[1]:
            return None
        for run in list(self.waiting):
            if time.monotonic() - self._elsewhere.get(run, -SECONDS_BETWEEN_LOOKS) < SECONDS_BETWEEN_LOOKS:
                continue
            if self._fits is not None and not self._fits(run, self):
                continue
            try:
                recorded = is_recorded(self._results, run)
                held = not recorded and is_held(run_folder(self._results, run))
            except (FsslError, OSError) as error:
                self.waiting.remove(run)
                self._fail(run, RunFailed(f"{named(run)} cannot be read ({error})"))
                continue
            if held:
                self._elsewhere[run] = time.monotonic()
                continue
            self.waiting.remove(run)
            self._elsewhere.pop(run, None)
            if not recorded:
                self.at_work.add(run)
                return run
            self.finished.append(run)
        return None

    def note(self, run: Experiment, error: FsslError | None) -> None:
        """Record that a run of this launch has ended, and decide whether it is tried again."""
        self.at_work.discard(run)
        if isinstance(error, RunDied):
            self._deaths[run] += 1
        if isinstance(error, DiskFull):
            self._wait_for_room(run, error)
        elif isinstance(error, RunningElsewhere):
            self._elsewhere[run] = time.monotonic()
            self.waiting.insert(0, run)
        elif isinstance(error, RunDied) and self._deaths[run] < MOST_DEATHS:
            self.waiting.insert(0, run)
        elif isinstance(error, RunDied):
            text = f"the process of {named(run)} ended {MOST_DEATHS} times, most recently by {error}"
            self._fail(run, RunFailed(f"{text}; the same command resumes from its last save"))
        elif error is None or isinstance(error, Diverged):
            self.trained += 1
            self.finished.append(run)
            self._full = None
        else:
            self.stopped = self.stopped or isinstance(error, Stopped)
            self._fail(run, error)

    def _wait_for_room(self, run: Experiment, error: FsslError) -> None:
        now = time.monotonic()
        since, again = self._full or (now, now)
        if now - again > LONG_TRY:
            since = now
        if now - since > SECONDS_OF_FULL_DISK:
            self.stopped = True  # the other runs would end in the same way
            self._fail(run, error)
            return
        if self._full is None:
            print(f"fssl: {error}; the launch tries again for {SECONDS_OF_FULL_DISK / 60:.0f} minutes", file=sys.stderr)
        self._full = since, now + SECONDS_BETWEEN_TRIES
        self.waiting.insert(0, run)

    def _fail(self, run: Experiment, error: FsslError) -> None:
        """Record the error of a run that is not tried again. Print a bug of the user's code only for its first run."""
        if isinstance(error, RunFailed) and error.failure is not None and error.failure.line() not in self._shown:
            self._shown.add(error.failure.line())
            print(f"fssl: {error.failure.text()}", file=sys.stderr)
        self.failures.append(error)
        self.finished.append(run)


def named(run: Experiment) -> str:
    """Return the name of a run in messages."""
    return f"cell {run.cell_key}, seed {run.seed}"
