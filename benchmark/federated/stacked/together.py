"""Train several runs of one cell in one process, with one thread per run, so that their jobs train as one.

A run computes only while it has the lock (`_baton`), and releases the lock while it waits in `fit` for its jobs. When
all unfinished runs wait, their jobs train together, whatever their rounds. So no two runs draw from the global
generators or build a network at the same time, and every run has a run lock, folder and saves.
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
from benchmark.federated.stacked.runner import Request, train_together
from benchmark.federated.stacked.shared import Shared
from benchmark.methods.protocol import Job, Outcome, Tree

Result = TypeVar("Result")
SECONDS_BETWEEN_LOOKS = 0.5  # between checks of the main thread whether all runs have ended


class Together:
    """Runs of one cell that train together.

    `most` limits the jobs in one step; None stands for the number that a device can use. `lap` returns the CPU seconds
    of the process since its last call, which are divided among the runs; if it is None, they are not counted.
    """

    def __init__(self, *, most: int | None = None, lap: Callable[[], float] | None = None) -> None:
        self.shared = Shared(most=most)
        self._lap = lap
        self._data: dict[str, DataSet] = {}
        self._baton = threading.Condition()
        self.size = 0  # number of runs
        self._live = 0  # number of runs that have not ended
        self._asked: dict[int, Request] = {}  # requests that runs wait for, by the run's number
        self._seconds: dict[int, float] = defaultdict(float)  # seconds since the last `lap` of the run

    def play(self, works: Sequence[Callable[["Seat"], Result]]) -> list[Result | BaseException]:
        """Run each function in a separate thread. Return their results or errors, in their order."""
        ended: dict[int, Result | BaseException] = {}

        def play_one(number: int) -> None:
            with self._baton:
                try:
                    ended[number] = works[number](Seat(self, number))
                except BaseException as error:  # it ends only this run
                    ended[number] = error
                finally:
                    self._leave(number)

        self.size = self._live = len(works)
        threads = [threading.Thread(target=play_one, args=(number,), daemon=True) for number in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(SECONDS_BETWEEN_LOOKS)  # signals are handled in between
        return [ended[number] for number in range(len(works))]

    def ask(self, number: int, request: Request) -> dict[int, Outcome]:
        """Release the lock, wait until the jobs have been trained, and return their outcomes. Raise the run's error."""
        self._charge([number])
        self._asked[number] = request
        while number in self._asked:
            if len(self._asked) == self._live:
                self._train()
            else:
                self._baton.wait()
        return request.outcomes()

    def lap(self, number: int) -> float:
        """Return the CPU seconds of a run since the last call. Only the run with the lock may call this."""
        self._charge([number])
        return self._seconds.pop(number, 0.0)

    def prepare(self, experiment: Experiment) -> Environment:
        """Prepare a run like `benchmark.federated.environment.prepare`, with one copy of the images for all runs."""
        name = experiment.data.name
        if name not in self._data:
            self._data[name] = load(name)
        return prepare(experiment, data=self._data[name])

    def _train(self) -> None:
        """Train the jobs that all runs wait for, in the thread of one of the runs."""
        numbers = sorted(self._asked)
        requests = [self._asked[number] for number in numbers]
        try:
            train_together(requests)
        except BaseException as error:  # such as Preempted: none of these rounds is finished
            for request in requests:
                request.error = error
        self._asked.clear()
        self._baton.notify_all()
        self._charge(numbers)

    def _leave(self, number: int) -> None:
        """Note that a run has ended, so that the other runs do not wait for it."""
        self._live -= 1
        self._baton.notify_all()
        self._charge([number])

    def _charge(self, numbers: Sequence[int]) -> None:
        """Divide the CPU seconds since the last call among these runs."""
        if self._lap is None:
            return
        seconds = self._lap()
        for number in numbers:
            self._seconds[number] += seconds / len(numbers)


class Seat:
    """One run's access to the runs that train together. It is an argument of `records.run.run`."""

    def __init__(self, together: Together, number: int) -> None:
        self._together, self._number = together, number

    @property
    def size(self) -> int:
        """Return the number of runs that were started together."""
        return self._together.size

    def prepare(self, experiment: Experiment) -> Environment:
        """Load and split the data like `Together.prepare`, which shares the images among the runs."""
        return self._together.prepare(experiment)

    def engine(self, environment: Environment, device: str = "cpu") -> "TogetherEngine":
        """Return the run's engine. On a CUDA device its steps are recorded."""
        if device.startswith("cuda"):
            self._together.shared.recorder = cuda_graph
        return TogetherEngine(environment, device, seat=self, shared=self._together.shared)

    def ask(self, request: Request) -> dict[int, Outcome]:
        """Wait until the jobs have been trained, and return their outcomes. Raise the run's error."""
        return self._together.ask(self._number, request)

    def lap(self) -> float:
        """Return the CPU seconds of this run since the last call, with its share of the joint training."""
        return self._together.lap(self._number)


class TogetherEngine(StackedEngine):
    """The engine of a run with jobs that train together with the jobs of other runs."""

    def __init__(self, environment: Environment, device: str = "cpu", *, seat: Seat, shared: Shared) -> None:
        super().__init__(environment, device, shared=shared)
        self.settings |= {"together": seat.size}  # runs that share the time of this run's rounds
        self._seat = seat

    def trained(
        self, jobs: Mapping[int, Job], round_number: int, privates: Mapping[int, Tree | None]
    ) -> dict[int, Outcome]:
        """Wait until all runs have requested outcomes, and return the outcomes of these jobs."""
        return self._seat.ask(Request(runner=self.runner, jobs=jobs, round=round_number, privates=privates))
