"""A launch: train runs side by side, whoever the workers are, and whatever happens to one of them.

Two runs on two cores finish sooner than one run on both. Any number of launches, on any number of machines that share
the folder of results, may train the same runs: a run has one process at a time (`run_lock.py`), and a launch passes
over the runs of others. It comes back to them once they are finished, stopped, or their process is gone. A process that
dies costs the rounds since its last save.
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

LONG_TRY = 60.0  # seconds in which a run did go on: the disk had room meanwhile
MOST_DEATHS = 3  # of a run's process; then the run is left alone, and the others go on
SECONDS_OF_FULL_DISK, SECONDS_BETWEEN_TRIES = 600.0, 5.0  # how long a launch waits for room, and tries again
SECONDS_BETWEEN_LOOKS = 2.0  # at a run that another launch trains


class RunFailed(FsslError):
    """A run failed with a bug, in the user's own code or in this suite, or its process died repeatedly (exit 1)."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        """`failure`: the bug, if it is in the user's own code."""
        super().__init__(message)
        self.failure = failure


class RunDied(FsslError):
    """A run's process ended without an answer, or could not be started: the run is tried again."""


class Workers(Protocol):
    """Whoever trains runs for a launch."""

    @property
    def size(self) -> int: ...  # runs side by side at most

    def start(self, run: Experiment) -> None:
        """Begin a run; fewer than `size` are running. Raises RunDied."""

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        """Wait at most `timeout` seconds for runs that ended, each with its error; None: its record is written.

        RunDied and RunningElsewhere are no faults of the run; it is tried again.
        """

    def stop(self) -> None:
        """Ask all runs to save their last finished round and end."""

    def close(self) -> None:
        """Wait until all runs have ended. An exception during the wait ends them at once."""


def launch(
    workers: Workers,
    runs: Sequence[Experiment],
    results: Path,
    *,
    watch: "Callable[[Launch], None]" = lambda state: None,
    fits: "Callable[[Experiment, Launch], bool] | None" = None,
) -> "Launch":
    """Let the workers train all runs, then close them.

    `fits`: whether a run may begin now. It is asked again until it says yes, or until nothing runs any more; the runs
    that are left then stay in `waiting`.

    A run that another launch trains is waited for, and so is room on a full disk. One whose process dies goes on from
    its last save, and is left alone the third time. A failing run stops no other: the first error is raised in the end.
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
                watch(state)  # runs that have begun, since a short one can end before the next look
                for run, error in workers.ended(timeout=0.5):
                    state.note(run, error)
                watch(state)
            if state.stopped:
                workers.stop()
        except BaseException as error:
            workers.stop()
            if isinstance(error, KeyboardInterrupt):
                raise Stopped("stopped; the same command goes on from the last saves") from None
            raise
    if state.failures:
        first, *others = state.failures
        raise type(first)(f"{first}; {len(others)} more failed") if others else first
    return state


class Launch:
    """How far a launch is: which run is next, and what became of the others."""

    def __init__(
        self,
        runs: Sequence[Experiment],
        results: Path,
        fits: "Callable[[Experiment, Launch], bool] | None" = None,
    ) -> None:
        self.waiting = list(runs)
        self.at_work = set[Experiment]()  # of this launch's workers
        self.finished: list[Experiment] = []  # by this launch or another; with the failed ones
        self.trained = 0  # of the finished: by this launch
        self.failures: list[FsslError] = []
        self.stopped = False
        self._shown = set[str]()  # failures of the user's own code that were printed
        self._results, self._fits = results, fits
        self._deaths: Counter[Experiment] = Counter()
        self._elsewhere: dict[Experiment, float] = {}  # runs of other launches -> when each was looked at last
        self._full: tuple[float, float] | None = None  # since when the disk is full, and when a run tries again

    @property
    def running(self) -> set[Experiment]:
        """By this launch or another."""
        return self.at_work | self._elsewhere.keys()

    @property
    def is_held_up(self) -> bool:
        """Whether it waits for room on the disk, or for runs of another launch."""
        return self._full is not None or bool(self._elsewhere)

    def next(self) -> Experiment | None:
        """Take out the first waiting run that nobody trains. Those that others have finished count as finished."""
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
                self._fail(run, RunFailed(f"{named(run)}: cannot be looked at ({error})"))
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
        """A run of this launch has ended."""
        self.at_work.discard(run)
        self._deaths[run] += isinstance(error, RunDied)
        if isinstance(error, DiskFull):
            self._wait_for_room(run, error)
        elif isinstance(error, RunningElsewhere):
            self._elsewhere[run] = time.monotonic()
            self.waiting.insert(0, run)
        elif isinstance(error, RunDied) and self._deaths[run] < MOST_DEATHS:
            self.waiting.insert(0, run)
        elif isinstance(error, RunDied):
            text = f"{named(run)}: its process ended {MOST_DEATHS} times, last by {error}"
            self._fail(run, RunFailed(f"{text}; the same command goes on from its last save"))
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
            print(f"fssl: {error}; tries again for {SECONDS_OF_FULL_DISK / 60:.0f} minutes", file=sys.stderr)
        self._full = since, now + SECONDS_BETWEEN_TRIES
        self.waiting.insert(0, run)

    def _fail(self, run: Experiment, error: FsslError) -> None:
        """Note the error of a run that is not tried again, and show a user's bug at its first run."""
        if isinstance(error, RunFailed) and error.failure is not None and error.failure.line() not in self._shown:
            self._shown.add(error.failure.line())
            print(f"fssl: {error.failure.text()}", file=sys.stderr)
        self.failures.append(error)
        self.finished.append(run)


def named(run: Experiment) -> str:
    """What messages call a run."""
    return f"cell {run.cell_key}, seed {run.seed}"
