"""Working through a study: trials side by side, each seed by seed, every run an ordinary record under the results.

Trials are side by side and seeds are not, because a trial that is given up saves its later seeds. A run that is there
already (an earlier trial had the same setting, or this one was broken off) is read, not trained.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.errors import Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment
from benchmark.records.files import read_json
from benchmark.records.lease import BEAT, PATIENCE, RESULT, is_held
from benchmark.records.record import run_folder
from sweeps.crew import Ended, RunFailed
from sweeps.local import MOST_DEATHS, SECONDS_BETWEEN_LOOKS, Hands, at_work
from sweeps.tune.book import Book, Counts, Taken
from sweeps.tune.storage import OUTAGE, Place, quiet
from sweeps.tune.study import METRIC, Plan

MOST_FAILURES = 3  # trials that fail; then the study is at fault, not the setting


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a study is."""

    counts: Counts
    wanted: int
    mine: Sequence[Taken]
    failed: int  # here


Watch = Callable[[Standing], None]


def tune(
    plan: Plan,
    place: Place,
    results: Path,
    *,
    crew: Hands,
    watch: Watch,
    timeout: float | None = None,
    patience: float = PATIENCE,
    outage: float = OUTAGE,
) -> Book:
    """Take trials until as many as are wanted have ended, here or in other workers; close the crew; return the study.

    `timeout`: seconds; then, as for Ctrl-C and SIGTERM, runs stop at their last finished round and Stopped is raised;
    the same call goes on. `patience`: see `records.run`. `outage`: seconds for which a storage may be away.
    Raises what `storage.Patient` does, the errors of `records.run`, and the first failure of a trial in the end.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with quiet(), at_work(crew):
        work = _Work(Book(plan=plan, place=place, patience=patience, outage=outage), crew, results, patience)
        with contextlib.closing(work):
            while work.step():
                watch(work.standing())
                if deadline is not None and time.monotonic() > deadline:
                    raise Stopped(f"stopped after {timeout:g} seconds (--timeout); the same command goes on")
            watch(work.standing())
    if work.failures:
        raise work.failures[0]
    return work.book


class _Work:
    """Which trial's run is next, and what became of the others."""

    def __init__(self, book: Book, crew: Hands, results: Path, patience: float) -> None:
        self.book, self.failures = book, list[FsslError]()
        self._crew, self._results, self._patience = crew, results, patience
        self._beaten = time.monotonic()
        self._looked = -SECONDS_BETWEEN_LOOKS  # when the storage was asked for a trial in vain
        self._counts = book.counts()

    def close(self) -> None:
        """Leave what is unfinished to others."""
        for taken in list(self.book.mine.values()):
            self.book.drop(taken)

    def standing(self) -> Standing:
        mine = tuple(self.book.mine.values())
        return Standing(counts=self._counts, wanted=self.book.plan.trials, mine=mine, failed=len(self.failures))

    def step(self) -> bool:
        """Half a second's work; False when the study is done."""
        self._fill()
        if not self.book.mine and self._counts.finished >= self.book.plan.trials:
            return False
        if self.failures and not self.book.mine and len(self.failures) >= MOST_FAILURES:
            return False
        self._read_and_start()
        if self._crew.running:
            for ended in self._crew.ended(timeout=0.5):
                self._note(ended)
        elif self.book.mine or self._counts.finished < self.book.plan.trials:
            time.sleep(0.2)
        if time.monotonic() - self._beaten > BEAT:
            self._beaten = time.monotonic()
            self.book.beat()
        return True

    def _fill(self) -> None:
        """Take trials while there is room for them."""
        while (
            len(self.book.mine) < self._crew.size
            and len(self.failures) < MOST_FAILURES
            and time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS
        ):
            if self.book.take() is None:
                self._looked = time.monotonic()
            self._counts = self.book.counts()

    def _read_and_start(self) -> None:
        """Score the runs that are finished, end the trials that are at their end, and start a run for each other."""
        for taken in list(self.book.mine.values()):
            while not (settled := self.book.settle(taken)) and self._score_next(taken):
                pass
            if settled:
                self._looked = -SECONDS_BETWEEN_LOOKS
                self._counts = self.book.counts()
                continue
            run = taken.next_run
            assert run is not None
            if run in self._crew.running or time.monotonic() < taken.look_again:
                continue
            if is_held(run_folder(self._results, run), self._patience):
                taken.look_again = time.monotonic() + SECONDS_BETWEEN_LOOKS
            else:
                self._crew.start(run)

    def _score_next(self, taken: Taken) -> bool:
        """Whether the next seed's run has ended, whoever trained it; its score is noted then."""
        run = taken.next_run
        if run is None or run in self._crew.running:
            return False
        result = read_json(run_folder(self._results, run) / RESULT)
        if result is None:
            return False
        accuracy = result["last"].get(METRIC, 0.0) if result["status"] == "done" else 0.0
        self.book.score(taken, taken.runs.index(run), accuracy)
        return True

    def _note(self, ended: Ended) -> None:
        """What ended without a record: a run that is elsewhere, a process that died, an error."""
        for taken in [taken for taken in self.book.mine.values() if taken.next_run == ended.run]:
            if ended.died is not None:
                taken.deaths += 1
                if taken.deaths >= MOST_DEATHS:
                    self._fail(taken, RunFailed(_killed(ended.run, ended.died)))
            elif isinstance(ended.error, RunningElsewhere):
                taken.look_again = time.monotonic() + SECONDS_BETWEEN_LOOKS
            elif isinstance(ended.error, RunFailed):
                self._fail(taken, ended.error)
        if ended.error is not None and not isinstance(ended.error, Diverged | RunningElsewhere | RunFailed):
            raise ended.error

    def _fail(self, taken: Taken, error: RunFailed) -> None:
        self.failures.append(error)
        self.book.fail(taken, str(error))
        self._counts = self.book.counts()


def _killed(run: Experiment, died: str) -> str:
    return (
        f"cell {run.cell_key}, seed {run.seed}: its process ended {MOST_DEATHS} times, last by {died}; "
        "the trial has no value"
    )
