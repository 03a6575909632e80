"""The engine for CPU cores: a round's jobs on several processes, one thread each, by the fast form of the local step.

Two threads of one process wait for each other at every operation, and collapse beside other programs (15 times slower
at a load of 5 on two cores, `results/benchmarks/workers.json`); processes of one thread share what is there.
Workers live as long as the engine. They share the images, get every distinct weight tensor once a call and the longest
jobs first, and keep nothing: private state comes with the job and goes back with its outcome. Their number does not
move a bit; the fast form of the local step does (`Speed`), so that a run that goes on keeps its engine.
"""

import itertools
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch.multiprocessing
from torch import Tensor

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.dispatch import Call, cost_of, name_of
from benchmark.federated.engines import PLAIN, Speed, keeper_of
from benchmark.federated.environment import Environment
from benchmark.federated.memory import shared_memory_left
from benchmark.federated.parcels import Numbers, Parcel, pack, receive, send, unpack
from benchmark.federated.worker import Order, work
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # read when a worker loads torch
AHEAD = 1  # jobs a worker has beside the one it runs


class CpuEngine:
    """`workers` persistent processes of `threads` each; None: one for each core that this process may use.

    `plain`: the reference engine's local step, bit by bit; `confident_only`: see `Speed`.

    A script that builds one needs the line `if __name__ == "__main__":`, as for every spawned process.
    """

    name = "cpu"

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
        self._environment, self._threads = environment, threads
        self._speed = PLAIN if plain else Speed(confident_only=confident_only)
        self._tickets = itertools.count()
        self._calls: dict[int, Call] = {}
        self._workers: list[Worker] = []
        self._end_workers = weakref.finalize(self, end, self._workers)  # also when the interpreter ends
        self._start_workers()

    def __enter__(self) -> "CpuEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; work begun is lost. The engine is usable again: it then starts others."""
        end(self._workers)

    @property
    def settings(self) -> Mapping[str, Any]:
        """`workers` does not decide its bits, and stands there for the time it took."""
        speed = {"plain": self._speed == PLAIN, "confident_only": self._speed.confident_only}
        return {"name": self.name, "threads": self._threads, "bit_equal": True, **speed, "workers": self._count}

    @property
    def pids(self) -> list[int]:
        """The workers' processes."""
        return [worker.pid for worker in self._workers]

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """One outcome a job, in job order. Jobs with one keeper run in list order, each on the state the last one left.

        Private state is written to `kept` when its outcome is handed out. Raises what a job raised when its outcome is
        due, and FsslError where a worker ended. Leaving off half way is allowed: what is not begun is not done.
        """
        for index, outcome in enumerate(self._results(jobs, round_number, kept)):
            if outcome.private is not None:
                kept[keeper_of(jobs[index])] = outcome.private
            yield outcome

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """As `ReferenceEngine.gradients`."""
        yield from self._results(jobs, round_number, None)

    def _results(self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree] | None) -> Iterator[Any]:
        costs = [cost_of(job, self._environment, round_number) for job in jobs]
        call = Call(ticket=next(self._tickets), jobs=jobs, round_number=round_number, costs=costs, kept=kept)
        self._start_workers()
        self._calls[call.ticket] = call
        try:
            while call.due < len(jobs):
                self._hand_out(call)  # before the consumer works on this outcome, so that no worker waits for it
                while not call.is_due:
                    self._take_in()
                    self._hand_out(call)
                yield call.take()
        finally:
            self._forget(call)

    def _hand_out(self, call: Call) -> None:
        """Jobs to idle workers; then one ahead to each, unless the last jobs should wait for whoever is free first."""
        for has in range(AHEAD + 1):
            for worker in self._workers:
                if len(worker.orders) != has or (has and call.to_start <= len(self._workers)):
                    continue
                index = call.next_job(len(self._workers))
                if index is None:
                    return
                self._send(worker, call, index)

    def _send(self, worker: "Worker", call: Call, index: int) -> None:
        private_numbers = Numbers(first=-1, step=-1)
        job, private = self._parcels(call, index, private_numbers)
        order = Order(
            ticket=call.ticket,
            index=index,
            gradient=call.gradient,
            round_number=call.round_number,
            job=job.pickled,
            private=private.pickled,
        )
        has = worker.has.setdefault(call.ticket, set())
        new = {number: call.numbers.tensors[number] for number in job.numbers if number not in has}
        with self._unbroken(worker):
            worker.orders.append((call.ticket, index))
            has.update(new)
            worker.greet(self._environment)
            send(worker.connection, ("job", order), [*new.items(), *private_numbers.tensors.items()])

    def _parcels(self, call: Call, index: int, private_numbers: Numbers) -> tuple[Parcel, Parcel]:
        job = call.jobs[index]
        try:
            return pack(job, call.numbers), pack(call.start(index), private_numbers)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise FsslError(
                f"{name_of(job, call.round_number)} cannot be sent to a worker process: {error}; an update is a "
                "dataclass at the top level of a module"
            ) from error

    def _take_in(self) -> None:
        """Wait for results, of whichever call."""
        busy = [worker for worker in self._workers if worker.orders]
        if not busy:
            raise FsslError("the engine was closed while outcomes were still asked of it")
        readable = wait([worker.connection for worker in busy])
        for worker in [worker for worker in busy if worker.connection in readable]:
            with self._unbroken(worker):
                (kind, ticket, index, *found), tensors = receive(worker.connection)
                worker.orders.remove((ticket, index))
                call = self._calls.get(ticket)
                if call is not None and kind != "skipped":
                    call.enter(index, unpack(found[0], tensors) if kind == "done" else found[0])

    def _forget(self, call: Call) -> None:
        """Drop the call's tensors at the workers, and what they have not begun of it."""
        self._calls.pop(call.ticket, None)
        for worker in list(self._workers):
            if worker.has.pop(call.ticket, None) is not None:
                with self._unbroken(worker):
                    send(worker.connection, ("end", call.ticket))

    @contextmanager
    def _unbroken(self, worker: "Worker") -> Iterator[None]:
        """A message cut in two is the end of all workers. Raises FsslError where this one has ended by itself."""
        try:
            yield
        except (EOFError, OSError) as error:
            message = worker.epitaph(self._calls)
            end(self._workers)
            raise FsslError(message) from error
        except BaseException:
            end(self._workers)
            raise

    def _start_workers(self) -> None:
        if self._workers:
            return
        with threads_without_interrupts(self._threads):
            self._workers.extend(Worker(self._environment, self._threads, self._speed) for _ in range(self._count))


class Worker:
    """One process, seen from the parent."""

    def __init__(self, environment: Environment, threads: int, speed: Speed) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.path = list(sys.path)  # spawned processes begin with it
        self.orders: list[tuple[int, int]] = []  # (ticket, index) without an answer
        self.has: dict[int, set[int]] = {}  # tensors by ticket
        self._shared = shared_tensors(environment)
        self._greeted = False
        self.process = context.Process(
            target=work, args=(theirs, self._shared, os.getpid(), threads, speed), daemon=True
        )
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def greet(self, environment: Environment) -> None:
        """What a worker needs to know before a job: the environment, and where the parent finds its modules.

        The environment is not among the process's arguments, because the parent would wait until it is read, which
        is after some seconds of imports, for one worker after another.
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


@contextmanager
def threads_without_interrupts(threads: int) -> Iterator[None]:
    """Processes started in here have so many threads, and leave the keyboard's interrupt to their parent."""
    before = {name: os.environ.get(name) for name in THREADS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


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


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
