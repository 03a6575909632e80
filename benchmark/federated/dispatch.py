"""Which job goes to a worker next, and which outcome is due: one call of `fit` or `gradients` in progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark.federated.batches import sources_of, steps_of
from benchmark.federated.engines import keeper_of
from benchmark.federated.environment import Environment
from benchmark.federated.parcels import Numbers
from benchmark.federated.worker import Failure
from benchmark.methods.protocol import Job, Tree

IN_HAND = 3  # jobs per worker that run, or wait for an earlier one: two results wait while a third job runs


@dataclass(kw_only=True, eq=False)
class Call:
    """The jobs of one call, by their place in the list. `kept` is the store of private state; a gradient has none."""

    ticket: int
    jobs: Sequence[Job]
    round_number: int
    costs: Sequence[float]
    kept: Mapping[str, Tree] | None
    numbers: Numbers = field(default_factory=Numbers)  # of the tensors that jobs receive
    left: dict[str, Tree] = field(default_factory=dict)  # private state by keeper, as this call's jobs left it
    due: int = 0  # the next outcome to hand out

    def __post_init__(self) -> None:
        self._undone: dict[str, list[int]] = {}  # by keeper, in list order; the first is running or may run
        for index in range(len(self.jobs)):
            self._undone.setdefault(self._keeper(index), []).append(index)
        self._running: set[int] = set()
        self._results: dict[int, Any] = {}
        self._end = len(self.jobs)  # nothing is started beyond a failure

    @property
    def gradient(self) -> bool:
        return self.kept is None

    @property
    def to_start(self) -> int:
        """Jobs that no worker has yet."""
        return sum(map(len, self._undone.values())) - len(self._running)

    @property
    def is_due(self) -> bool:
        return self.due in self._results

    def next_job(self, workers: int) -> int | None:
        """The job to start now: the longest that may run, or the first where two results a worker would wait.

        None where nothing may: its keeper's last job still runs, or too many are in hand. The first job without an
        outcome may always run, so that a call never waits for itself.
        """
        ready = [jobs[0] for jobs in self._undone.values() if jobs and jobs[0] not in self._running]
        ready = [index for index in ready if index < self._end]
        in_hand = len(self._running) + len(self._results)
        if not ready or in_hand >= IN_HAND * workers:
            return None
        if in_hand >= (IN_HAND - 1) * workers:
            return min(ready)
        return max(ready, key=lambda index: (self.costs[index], -index))

    def start(self, index: int) -> Tree | None:
        """Notes that the job runs; the private state that it sees."""
        self._running.add(index)
        keeper = self._keeper(index)
        return None if self.kept is None else self.left.get(keeper, self.kept.get(keeper))

    def enter(self, index: int, result: Any) -> None:
        """A worker's result: an outcome, a gradient, or a failure, which is raised when it is due."""
        self._running.discard(index)
        self._undone[self._keeper(index)].remove(index)
        self._results[index] = result
        if isinstance(result, Failure):
            self._end = min(self._end, index)
        elif not self.gradient and result.private is not None:
            self.left[self._keeper(index)] = result.private

    def take(self) -> Any:
        """The outcome that is due. Raises what its job raised."""
        result = self._results.pop(self.due)
        if isinstance(result, Failure):
            raise result.to_raise(name_of(self.jobs[self.due], self.round_number))
        self.due += 1
        return result

    def _keeper(self, index: int) -> str:
        return str(index) if self.gradient else keeper_of(self.jobs[index])


def name_of(job: Job, round_number: int) -> str:
    """How errors call a job."""
    holder = f"client {job.key.client}" if job.key.client >= 0 else "the server"
    return f"the job of {holder} in round {round_number} ({type(job.update).__name__})"


def cost_of(job: Job, environment: Environment, round_number: int) -> float:
    """How long a job is: local steps x images that pass the network in each. 0 where a stream has no images."""
    sources = sources_of(job, environment, round_number, {})
    if not job.data or not all(map(len, sources.values())):
        return 0.0
    images = sum(min(stream.batch_size, len(sources[name])) * len(stream.views) for name, stream in job.data.items())
    return float(steps_of(job, sources) * images)
