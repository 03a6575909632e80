"""Several runs of one cell in one process: a thread per run, whose jobs train as one.

There is one baton. A run computes only while it holds the baton, and hands it on when it waits in `fit` for its jobs.
When all runs that have not ended wait, their jobs train together, whichever rounds they are at. So no two runs draw
from the global generators or build a network at the same time, and every run has its own lock, folder and saves.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from benchmark.data.datasets import DataSet, load
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.stacked.capture import cuda_graph
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.federated.stacked.runner import Request, Shared, train_together
from benchmark.methods.protocol import Job, Outcome, Tree

Result = TypeVar("Result")
SECONDS_BETWEEN_LOOKS = 0.5  # of the main thread, at whether all runs have ended


class Together:
    """Runs of one cell that train together.

    `most`: jobs in one step; None: as many as a device has use for. `lap`: the CPU seconds of the process since the
    last call, which are divided among the runs; None: they are not counted.
    """

    def __init__(self, *, most: int | None = None, lap: Callable[[], float] | None = None) -> None:
        self.shared = Shared(most=most)
        self._lap = lap
        self._data: dict[str, DataSet] = {}
        self._baton = threading.Condition()
        self.size = 0  # runs
        self._live = 0  # runs that have not ended
        self._asked: dict[int, Request] = {}  # what runs wait for, by the run's number
        self._seconds: dict[int, float] = defaultdict(float)  # since they were read last

    def play(self, works: Sequence[Callable[["Seat"], Result]]) -> list[Result | BaseException]:
        """Do the work of each run in a thread of its own. Return what each one returned or raised, in their order."""
        ended: dict[int, Result | BaseException] = {}

        def play_one(number: int) -> None:
            with self._baton:
                try:
                    ended[number] = works[number](Seat(self, number))
                except BaseException as error:  # it ends this run and no other
                    ended[number] = error
                finally:
                    self._leave(number)

        self.size = self._live = len(works)
        threads = [threading.Thread(target=play_one, args=(number,), daemon=True) for number in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(SECONDS_BETWEEN_LOOKS)  # signals are answered in between
        return [ended[number] for number in range(len(works))]

    def ask(self, number: int, request: Request) -> dict[int, Outcome]:
        """Wait, without the baton, until the jobs have been trained. Raises the run's error."""
        self._charge([number])
        self._asked[number] = request
        while number in self._asked:
            if len(self._asked) == self._live:
                self._train()
            else:
                self._baton.wait()
        return request.outcomes()

    def lap(self, number: int) -> float:
        """Return the CPU seconds of a run since the last call, which the run with the baton makes."""
        self._charge([number])
        return self._seconds.pop(number, 0.0)

    def prepare(self, experiment: Experiment) -> Environment:
        """Prepare a run as `prepare` does. Its images are in memory once for all runs."""
        name = experiment.data.name
        if name not in self._data:
            self._data[name] = load(name)
        return prepare(experiment, data=self._data[name])

    def _train(self) -> None:
        """Train what all runs wait for, in the thread of one of them."""
        numbers = sorted(self._asked)
        requests = [self._asked[number] for number in numbers]
        try:
            train_together(requests)
        except BaseException as error:  # such as Preempted: nothing of these rounds is finished
            for request in requests:
                request.error = error
        self._asked.clear()
        self._baton.notify_all()
        self._charge(numbers)

    def _leave(self, number: int) -> None:
        """Take a run that has ended out of those that are waited for."""
        self._live -= 1
        self._baton.notify_all()
        self._charge([number])

    def _charge(self, numbers: Sequence[int]) -> None:
        """Enter the CPU seconds since the last call as those of these runs."""
        if self._lap is None:
            return
        seconds = self._lap()
        for number in numbers:
            self._seconds[number] += seconds / len(numbers)


class Seat:
    """One run's place among those that train together; given to `records.run.run`."""

    def __init__(self, together: Together, number: int) -> None:
        self._together, self._number = together, number

    @property
    def size(self) -> int:
        """Return the number of runs that began together."""
        return self._together.size

    def prepare(self, experiment: Experiment) -> Environment:
        """Load and split the data as `prepare` does, with the images of the other runs."""
        return self._together.prepare(experiment)

    def engine(self, environment: Environment, device: str = "cpu") -> "TogetherEngine":
        """Return the run's engine. On a CUDA device steps are recorded."""
        if device.startswith("cuda"):
            self._together.shared.recorder = cuda_graph
        return TogetherEngine(environment, device, seat=self, shared=self._together.shared)

    def ask(self, request: Request) -> dict[int, Outcome]:
        """Wait until the jobs have been trained, and return their outcomes. Raises the run's error."""
        return self._together.ask(self._number, request)

    def lap(self) -> float:
        """Return the CPU seconds of this run since the last call, with its share of what trained together."""
        return self._together.lap(self._number)


class TogetherEngine(StackedEngine):
    """The engine of a run whose jobs train together with those of other runs."""

    def __init__(self, environment: Environment, device: str = "cpu", *, seat: Seat, shared: Shared) -> None:
        super().__init__(environment, device, shared=shared)
        self.settings |= {"together": seat.size}  # whose time is in that of the run's rounds
        self._seat = seat

    def trained(
        self, jobs: Mapping[int, Job], round_number: int, privates: Mapping[int, Tree | None]
    ) -> dict[int, Outcome]:
        """Return the outcomes of the jobs once all runs wait for theirs."""
        return self._seat.ask(Request(runner=self.runner, jobs=jobs, round=round_number, privates=privates))
