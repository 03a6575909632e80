"""The engine for CPU cores: a round's jobs on several processes, one thread each, by the fast form of the local step.

Two threads of one process wait for each other at every operation, and collapse beside other programs (15 times slower
at a load of 5 on two cores, `results/benchmarks/workers.json`); processes of one thread share what is there.
Workers live as long as the engine. They share the images, get every distinct weight tensor once a call and the longest
jobs first, and keep nothing: private state comes with the job and goes back with its outcome. Their number does not
move a bit; the fast form of the local step does (`Speed`), so that a run that goes on keeps its engine.
"""

import signal
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

import torch.multiprocessing  # noqa: F401  teaches multiprocessing to share tensors
from torch import Tensor

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.dispatch import Call, name_of
from benchmark.federated.engines import PLAIN, Speed
from benchmark.federated.environment import Environment
from benchmark.federated.leader import Hand, Leader
from benchmark.federated.memory import shared_memory_left
from benchmark.federated.parcels import Numbers, pack, receive, send
from benchmark.federated.processes import Maker, births, usable_cores
from benchmark.federated.worker import work


class CpuEngine(Leader["Worker"]):
    """`workers` persistent processes of `threads` each; None: one for each core that this process may use.

    `plain`: the reference engine's local step, bit by bit; `confident_only`: see `Speed`.

    A script that builds one needs the line `if __name__ == "__main__":`: its processes import the script.
    """

    name = "pool"
    elsewhere = "a worker process"

    def __init__(
        self,
        environment: Environment,
        workers: int | None = None,
        *,
        threads: int = 1,
        confident_only: bool = True,
        plain: bool = False,
    ) -> None:
        self._count = usable_cores() if workers is None else workers
        if self._count < 1 or threads < 1:
            raise ConfigError(f"workers: {self._count}, threads: {threads}; at least 1 would be right")
        super().__init__(environment)
        self._threads, self._speed = threads, PLAIN if plain else Speed(confident_only=confident_only)
        self._end_workers = weakref.finalize(self, end, self._hands)  # also when the interpreter ends
        self._start_workers()

    def __enter__(self) -> "CpuEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; work begun is lost. The engine is usable again: it then starts others."""
        end(self._hands)

    @property
    def settings(self) -> Mapping[str, Any]:
        """`workers` does not decide its bits, and stands there for the time it took."""
        speed = {"plain": self._speed == PLAIN, "confident_only": self._speed.confident_only}
        return {"name": self.name, "threads": self._threads, "bit_equal": True, **speed, "workers": self._count}

    @property
    def pids(self) -> list[int]:
        """The workers' processes."""
        return [worker.pid for worker in self._hands]

    def _begin(self) -> None:
        self._start_workers()

    def _deliver(self, hand: "Worker", message: tuple[Any, ...], tensors: Iterable[tuple[int, Tensor]] = ()) -> None:
        with self._unbroken(hand):
            if message[0] == "job":
                hand.greet(self._environment)
            send(hand.connection, message, tensors)

    def _take_in(self) -> None:
        """Wait for results, of whichever call."""
        busy = [worker for worker in self._hands if worker.orders]
        if not busy:
            raise FsslError("the engine was closed while outcomes were still asked of it")
        readable = wait([worker.connection for worker in busy])
        for worker in [worker for worker in busy if worker.connection in readable]:
            with self._unbroken(worker):
                self._enter(worker, *receive(worker.connection))

    @contextmanager
    def _unbroken(self, worker: "Worker") -> Iterator[None]:
        """A message cut in two is the end of all workers. Raises FsslError where this one has ended by itself."""
        try:
            yield
        except (EOFError, OSError) as error:
            message = worker.epitaph(self._calls)
            end(self._hands)
            raise FsslError(message) from error
        except BaseException:
            end(self._hands)
            raise

    def _start_workers(self) -> None:
        if self._hands:
            return
        with births(self._threads) as process:
            for _ in range(self._count):
                self._hands.append(Worker(process, self._environment, self._threads, self._speed))


class Worker(Hand):
    """One process, seen from the parent."""

    def __init__(self, process: Maker, environment: Environment, threads: int, speed: Speed) -> None:
        super().__init__()
        self.connection, theirs = Pipe()
        self.path = list(sys.path)  # processes begin with it
        self._shared = shared_tensors(environment)
        self._greeted = False
        self.process = process(work, theirs, self._shared, threads, speed, daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def greet(self, environment: Environment) -> None:
        """What a worker needs to know before a job: the environment, and where the parent finds its modules.

        The environment is not among the process's arguments, because the parent would wait until it is read, for one
        worker after another.
        """
        if not self._greeted:
            self._greeted = True
            numbers = Numbers()
            parcel = pack(environment, numbers)
            rest = [(number, tensor) for number, tensor in numbers.tensors.items() if number not in self._shared]
            send(self.connection, ("environment", parcel.pickled), rest)
        if self.path != sys.path:
            self.path = list(sys.path)
            send(self.connection, ("path", self.path))

    @property
    def pid(self) -> int:
        assert self.process.pid is not None  # it has been started
        return self.process.pid

    def epitaph(self, calls: Mapping[int, Call]) -> str:
        """Why the process ended, and over what."""
        self.process.join(timeout=1)
        code, found = self.process.exitcode, [(calls.get(ticket), index) for ticket, index in self.orders]
        jobs = [name_of(call.jobs[index], call.round_number) for call, index in found if call is not None]
        how = f"exit code {code}"
        remedy = 'a script that starts workers needs the line if __name__ == "__main__":'
        if code is not None and code < 0:
            how, remedy = signal.Signals(-code).name, "with too little memory, fewer workers would be right"
        return f"worker process {self.pid} ended by {how} during {jobs[0] if jobs else 'no job'}; {remedy}"


def end(workers: list[Worker]) -> None:
    """End the processes and empty the list."""
    while workers:
        worker = workers.pop()
        worker.connection.close()
        worker.process.kill()  # it holds nothing but what it was sent
        worker.process.join(timeout=5)


def shared_tensors(environment: Environment) -> dict[int, Tensor]:
    """The environment's images and labels by their numbers in its parcel, moved into shared memory in place.

    None where they do not fit there (a container has 64 MB by default): then every worker gets a copy of its own.
    """
    numbers = Numbers()
    pack(environment, numbers)
    to_move = [tensor for tensor in numbers.tensors.values() if not tensor.is_shared()]
    if sum(tensor.untyped_storage().nbytes() for tensor in to_move) > shared_memory_left():
        return {}
    for tensor in to_move:
        tensor.share_memory_()
    return numbers.tensors
