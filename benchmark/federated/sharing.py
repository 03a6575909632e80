"""What engines do alike that share a call's jobs among workers: which job goes where, and which outcome is due."""

import itertools
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, Self, TypeVar

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner, cost_of, keeper_of, name_of
from benchmark.federated.stopping import check
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

AHEAD = 1  # jobs that a worker has beside the one it runs
IN_PROGRESS = 3  # jobs a worker that run or wait for an earlier one: two results wait while a third job runs
FAST = {"bit_equal": True, "plain": False, "confident_only": True}  # how records name the fast local step

WorkerT = TypeVar("WorkerT")


def result_of(runner: JobRunner, job: Job, private: Tree | None, wants_gradient: bool, round_number: int) -> Any:
    """In a worker: a job's outcome, or its gradient, or the exception that the parent is to raise in its place, with
    the traceback. Errors of benchmark.errors stay what they are; a class of others may be known here alone."""
    try:
        return (runner.gradient if wants_gradient else runner.run)(job, round_number, private)
    except Exception as error:
        name, where = name_of(job, round_number), "".join(traceback.format_exception(error))
        if not isinstance(error, FsslError):
            return RuntimeError(f"{name} failed in a worker process:\n{where}")
        failure = type(error)(str(error))
        failure.add_note(f"in a worker process, {name}:\n{where}")
        return failure


class Call:
    """The jobs of one call of `fit`, or of `gradients`, by their place in the list.

    `kept` is the store of private state.
    """

    def __init__(
        self,
        number: int,
        jobs: Sequence[Job],
        round_number: int,
        costs: Sequence[float],
        kept: Mapping[str, Tree],
        wants_gradient: bool,
    ) -> None:
        self.number, self.jobs, self.round_number, self.wants_gradient = number, jobs, round_number, wants_gradient
        self._kept = kept
        self.due = 0  # the next outcome to hand out
        self._costs = costs
        self._left: dict[str, Tree] = {}  # private state by keeper, as this call's jobs left it
        self._undone: dict[str, list[int]] = {}  # by keeper, in list order; the first is running or may run
        for index in range(len(jobs)):
            self._undone.setdefault(self._keeper(index), []).append(index)
        self._running: set[int] = set()
        self._results: dict[int, Any] = {}
        self._end = len(jobs)  # nothing is started beyond a failure

    @property
    def to_start(self) -> int:
        """Jobs that no worker has yet."""
        return sum(map(len, self._undone.values())) - len(self._running)

    @property
    def is_due(self) -> bool:
        return self.due in self._results

    def next_job(self, workers: int) -> int | None:
        """The job to start now: the longest that may run, or the first where two results a worker would wait.

        None where nothing may: its keeper's last job still runs, or too many are in progress. The first job without an
        outcome may always run, so that a call never waits for itself.
        """
        ready = [jobs[0] for jobs in self._undone.values() if jobs and jobs[0] not in self._running]
        ready = [index for index in ready if index < self._end]
        in_progress = len(self._running) + len(self._results)
        if not ready or in_progress >= IN_PROGRESS * workers:
            return None
        if in_progress >= (IN_PROGRESS - 1) * workers:
            return min(ready)
        return max(ready, key=lambda index: (self._costs[index], -index))

    def start(self, index: int) -> Tree | None:
        """Notes that the job runs; the private state that it sees."""
        self._running.add(index)
        keeper = self._keeper(index)
        return self._left.get(keeper, self._kept.get(keeper))

    def enter(self, index: int, result: Any) -> None:
        """A worker's result: an outcome, a gradient, or an exception, which is raised when it is due."""
        self._running.discard(index)
        self._undone[self._keeper(index)].remove(index)
        self._results[index] = result
        if isinstance(result, Exception):
            self._end = min(self._end, index)
        elif not self.wants_gradient and result.private is not None:
            self._left[self._keeper(index)] = result.private

    def take(self) -> Any:
        """The outcome that is due. Raises what its job raised."""
        result = self._results.pop(self.due)
        if isinstance(result, Exception):
            raise result
        self.due += 1
        return result

    def _keeper(self, index: int) -> str:
        return keeper_of(self.jobs[index])


class SharingEngine(ABC, Generic[WorkerT]):
    """Jobs go to whichever worker is free, the longest first. A worker keeps nothing: private state comes with the job
    and goes back with its outcome. The number of workers moves no bit. All take the fast local step (`JobRunner`).
    """

    name: str

    def __init__(self, environment: Environment, workers: int, threads: int) -> None:
        if workers < 1:
            raise ConfigError(f"--workers: {workers}; choose 1 or more")
        self._environment, self._count, self._threads = environment, workers, threads
        self._numbers = itertools.count()
        self._calls: dict[int, Call] = {}
        self._jobs_of: dict[WorkerT, list[tuple[int, int]]] = {}  # worker -> (call, index) of jobs without a result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def settings(self) -> Mapping[str, Any]:
        """`workers` does not decide its bits, and stands there for the time it took."""
        return {"name": self.name, "threads": self._threads, **FAST, "workers": self._count}

    @abstractmethod
    def close(self) -> None:
        """End the workers; work begun is lost. The engine is usable again: it then starts others."""

    @abstractmethod
    def _begin(self) -> None:
        """Start the workers where there are none."""

    @abstractmethod
    def _give(self, worker: WorkerT, call: Call, index: int, private: Tree | None) -> None:
        """Send a job. Raises FsslError where that cannot be, or where the worker has ended."""

    @abstractmethod
    def _take_in(self) -> None:
        """Wait a moment for results of any call, and `_enter` them. Raises FsslError where a worker has ended."""

    def _forget(self, call: Call) -> None:
        """Let the workers drop what they hold for the call."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """One outcome a job, in job order. Jobs with one keeper run in list order, each on the state the last one left.

        Private state is written to `kept` when its outcome is handed out. Raises what a job raised when its outcome is
        due, and FsslError where a worker has ended, by its name. Leaving off half way is allowed: what is not begun is
        not done.
        """
        for index, outcome in enumerate(self._results(jobs, round_number, kept, wants_gradient=False)):
            if outcome.private is not None:
                kept[keeper_of(jobs[index])] = outcome.private
            yield outcome

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]:
        """As `ReferenceEngine.gradients`."""
        return self._results(jobs, round_number, kept, wants_gradient=True)

    def _results(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree], *, wants_gradient: bool
    ) -> Iterator[Any]:
        costs = [cost_of(job, self._environment, round_number) for job in jobs]
        call = Call(next(self._numbers), jobs, round_number, costs, kept, wants_gradient)
        self._begin()
        self._calls[call.number] = call
        try:
            while call.due < len(jobs):
                self._hand_out(call)  # before the consumer works on this outcome, so that no worker waits for it
                while not call.is_due:
                    self._take_in()
                    check()
                    self._hand_out(call)
                yield call.take()
        finally:
            del self._calls[call.number]
            self._forget(call)

    def _hand_out(self, call: Call) -> None:
        """Jobs to idle workers; then one ahead to each, unless the last jobs should wait for whoever is free first."""
        for has in range(AHEAD + 1):
            for worker, given in self._jobs_of.items():
                if len(given) != has or (has and call.to_start <= len(self._jobs_of)):
                    continue
                index = call.next_job(len(self._jobs_of))
                if index is None:
                    return
                self._give(worker, call, index, call.start(index))
                given.append((call.number, index))

    def _enter(self, worker: WorkerT, number: int, index: int, result: Any) -> None:
        """A worker's result; that of a call that was left off is dropped."""
        self._jobs_of[worker].remove((number, index))
        if number in self._calls:
            self._calls[number].enter(index, result)

    def _job_of(self, worker: WorkerT) -> str:
        """What messages call the job that the worker is at."""
        found = [(self._calls.get(number), index) for number, index in self._jobs_of.get(worker, [])]
        names = [name_of(call.jobs[index], call.round_number) for call, index in found if call is not None]
        return names[0] if names else "no job"

    def _cannot_be_sent(self, call: Call, index: int, error: Exception) -> FsslError:
        return FsslError(
            f"{name_of(call.jobs[index], call.round_number)} cannot be sent to a worker process: {error}; an update "
            "has to be a dataclass at the top level of a module"
        )
