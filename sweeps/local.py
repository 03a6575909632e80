"""Launching runs: side by side in processes of this machine, one core and one thread each, or by another crew.

Two runs on two cores finish sooner than one run on both. Any number of launchers, on any number of machines that share
the folder of results, may be at the same runs: each run has one process at a time (`records.lease`), a launcher
passes over what others are at, and comes back to it when they have finished it, given it up, or died.
"""

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmark.errors import Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment
from benchmark.records.lease import PATIENCE, abandon, is_held
from benchmark.records.record import is_recorded, run_folder
from sweeps.crew import CPU, Crew, Ended, RunFailed

MOST_DEATHS = 3  # of a run's process; then the run is left alone and the others go on
SECONDS_BETWEEN_LOOKS = 2.0  # at a run that another process is at


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a launch is."""

    running: set[Experiment]  # here or elsewhere
    finished: Sequence[Experiment]  # by whomever; with those that failed
    failed: int
    trained: int  # those of the finished that were trained here


Watch = Callable[[Standing], None]


class Hands(Protocol):
    """Whoever trains runs for a launcher: `sweeps.crew.Crew` says what each of these does."""

    @property
    def size(self) -> int: ...  # runs side by side at most
    @property
    def running(self) -> set[Experiment]: ...
    @property
    def has_room(self) -> bool: ...
    def start(self, run: Experiment) -> None: ...
    def ended(self, timeout: float) -> Iterator[Ended]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class Gate(Protocol):
    """What a launch is kept to, such as a budget of time (`sweeps.budget`)."""

    def admits(self, run: Experiment) -> bool: ...  # whether it may be started; asked once for each run

    def is_closed(self) -> bool: ...  # whether what is at work has to stop


def launch(
    runs: Sequence[Experiment],
    results: Path,
    *,
    data_root: Path | None,
    workers: int,
    watch: Watch,
    wait: bool = True,
    patience: float = PATIENCE,
    devices: Sequence[str] = (CPU,),
    gate: Gate | None = None,
) -> Standing:
    """Train all runs on this machine, by at most so many `workers`, shared among `devices`; see `launch_by`."""
    crew = Crew(min(workers, len(runs)), results, data_root, patience, devices)
    return launch_by(crew, runs, results, watch=watch, wait=wait, patience=patience, gate=gate)


def launch_by(
    crew: Hands,
    runs: Sequence[Experiment],
    results: Path,
    *,
    watch: Watch,
    wait: bool = True,
    patience: float = PATIENCE,
    gate: Gate | None = None,
) -> Standing:
    """Let the crew train all runs, and close it. A failing run does not stop the others; the first error is raised in
    the end.

    `wait` for what others are at, or leave it to them. `patience`: see `records.run`. A run whose process is killed
    goes on from its checkpoint, and is given up the third time. Ctrl-C or SIGTERM stops the workers at their last
    finished round and raises Stopped; nothing is lost. A `gate` may leave runs out, which is no failure, and stop those
    at work in the same way, without an error.
    """
    queue = _Queue(runs, results, patience, gate)
    with at_work(crew):
        while crew.running or (queue.waiting if wait else queue.free()):
            while crew.has_room and (run := queue.next()) is not None:
                crew.start(run)
            for ended in crew.ended(timeout=0.5):
                queue.note(ended)
            watch(queue.standing(crew.running))
            if queue.stopped or (gate is not None and gate.is_closed()):
                crew.stop()
                break
    if queue.failures:
        raise queue.failures[0]
    return queue.standing(set())


class _Queue:
    """Which run is next, and what became of the others."""

    def __init__(self, runs: Sequence[Experiment], results: Path, patience: float, gate: Gate | None = None) -> None:
        self.waiting = list(runs)
        self.failures: list[FsslError] = []
        self.stopped = False
        self._results, self._patience, self._gate = results, patience, gate
        self._admitted: set[Experiment] = set()
        self._finished: list[Experiment] = []
        self._trained = 0
        self._deaths: Counter[Experiment] = Counter()
        self._elsewhere: dict[Experiment, float] = {}  # when it was looked at last

    def next(self) -> Experiment | None:
        """The first run that nobody is at, taken out; what others have finished is put with the finished ones."""
        for run in list(self.waiting):
            if time.monotonic() - self._elsewhere.get(run, -SECONDS_BETWEEN_LOOKS) < SECONDS_BETWEEN_LOOKS:
                continue
            folder = run_folder(self._results, run)
            if is_recorded(self._results, run):
                self.waiting.remove(run)
                self._finished.append(run)
            elif is_held(folder, self._patience):
                self._elsewhere[run] = time.monotonic()
                continue
            else:
                self.waiting.remove(run)
                self._elsewhere.pop(run, None)
                if self._admits(run):
                    return run
            self._elsewhere.pop(run, None)
        return None

    def _admits(self, run: Experiment) -> bool:
        """Whether the gate, if there is one, lets it in; a run that is begun again was let in before."""
        if self._gate is None or run in self._admitted:
            return True
        if admitted := self._gate.admits(run):
            self._admitted.add(run)
        return admitted

    def free(self) -> bool:
        """Whether any run waits that nobody else was at when it was looked at last."""
        return any(run not in self._elsewhere for run in self.waiting)

    def note(self, ended: Ended) -> None:
        run, error = ended.run, ended.error
        if isinstance(error, RunningElsewhere):
            self._elsewhere[run] = time.monotonic()
        if isinstance(error, RunningElsewhere) or ended.moved:
            self.waiting.insert(0, run)
            return
        if ended.died is not None:
            self._deaths[run] += 1
            if self._deaths[run] < MOST_DEATHS:
                self.waiting.insert(0, run)
                return
            error = RunFailed(_killed(run, ended.died))
            abandon(run_folder(self._results, run), ended.died, self._patience)
        if error is not None and not isinstance(error, Diverged):
            self.failures.append(error)
        else:
            self._trained += ended.here
        self.stopped = self.stopped or isinstance(error, Stopped)
        self._finished.append(run)

    def standing(self, running: set[Experiment]) -> Standing:
        return Standing(
            running=running | self._elsewhere.keys(),
            finished=tuple(self._finished),
            failed=len(self.failures),
            trained=self._trained,
        )


def _killed(run: Experiment, died: str) -> str:
    return (
        f"cell {run.cell_key}, seed {run.seed}: its process ended {MOST_DEATHS} times, last by {died}; "
        "the same command goes on from its checkpoint"
    )


@contextlib.contextmanager
def at_work(crew: Hands) -> Iterator[None]:
    """The crew is closed in the end, and stopped where anything goes wrong: its runs keep their last finished rounds.

    Raises Stopped for Ctrl-C and SIGTERM.
    """
    with _sigterm_as_interrupt(), contextlib.closing(crew):
        try:
            yield
        except KeyboardInterrupt:
            crew.stop()
            raise Stopped("stopped; the same command goes on from the checkpoints") from None
        except BaseException:
            crew.stop()
            raise


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, which would end this process at once and leave its workers waiting, does what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
