"""Run a call's jobs in several processes of this machine, with the fast version of the local step.

Two threads of one process wait for each other at every operation, and become very slow next to other programs, while
processes with one thread share the cores. Each process may have a different device. The number of workers does not
change any bit of the results.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from io import BytesIO, FileIO
from multiprocessing import Pipe, connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import FsslError
from benchmark.failures import FailedInWorker, failure_of
from benchmark.federated.devices import engine_settings, prepare_torch
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner, name_of
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.processes import CPU, end_with_parent, process_context
from benchmark.federated.stopping import check
from benchmark.federated.trees import copied
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

UNDER_WAY = 3  # largest number of started jobs per worker without a returned outcome, which limits memory
LOOK = 0.5  # seconds between checks for a signal while waiting for outcomes


class WorkerEnded(FsslError):
    """A worker process ended unexpectedly."""


class ProcessPool:
    """An engine with `workers` processes of one thread each, which run until it is closed.

    The processes are assigned to the `devices` in turn, with a copy of the images on each; outcomes are on the host. A
    script that creates a pool needs the line `if __name__ == "__main__":`, because its processes import the script.
    Raise FsslError if processes cannot be started.
    """

    name = "pool"

    def __init__(self, environment: Environment, workers: int, devices: Sequence[str] = (CPU,)) -> None:
        self._workers: list[Worker] = []
        places = [torch.device(devices[index % len(devices)]) for index in range(workers)]
        self.device = places[0]
        experiment = environment.experiment
        prepare_torch(self.device, experiment.precision, experiment.model)  # for the evaluation in this process
        self.settings: Mapping[str, Any] = engine_settings(self.name, places, 1, experiment)
        in_files = passes_files()
        try:
            with process_context(fresh=self.device.type != CPU) as context, packed(environment, in_files) as content:
                for place in places:
                    self._workers.append(Worker(context, content, place))
                for worker in self._workers if not in_files else ():  # once all of them are loading
                    write(worker.connection, content)
        except BaseException as error:
            self.close()  # also after a signal during the start
            if isinstance(error, EOFError | OSError | RuntimeError):  # too few file descriptors or processes
                raise FsslError(f"worker processes cannot be started: {error}; choose --workers 1") from error
            raise

    def close(self) -> None:
        """End the workers; unfinished jobs are lost."""
        while self._workers:
            self._workers.pop().end()

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """Yield one outcome per job, in job order.

        Jobs with the same state key run in list order, each with the client state that the previous one returned. A
        client state is written to `kept` when its outcome is yielded. Raise a job's error when its outcome is due, and
        FsslError if a worker has ended. If the caller stops early, no further job is started.
        """
        for index, outcome in enumerate(self._results(jobs, round_number, kept, wants_gradient=False)):
            if outcome.private is not None:
                kept[jobs[index].state_key] = outcome.private
            yield outcome

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]:
        """Yield the gradient of each job, in job order, like `ReferenceEngine.gradients`."""
        return self._results(jobs, round_number, kept, wants_gradient=True)

    def _results(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree], *, wants_gradient: bool
    ) -> Iterator[Any]:
        waiting = list(range(len(jobs)))
        under_way: dict[int, Future[Any]] = {}

        def submit() -> None:
            """Send each idle worker the first job that may start.

            Of jobs with the same state key, each starts after the outcome of the previous one was yielded.
            """
            for worker in (worker for worker in self._workers if worker.answer.done()):
                state_keys = {jobs[index].state_key for index in under_way}
                index = next((index for index in waiting if jobs[index].state_key not in state_keys), None)
                if index is not None and len(under_way) < UNDER_WAY * len(self._workers):
                    waiting.remove(index)
                    private = kept.get(jobs[index].state_key)
                    under_way[index] = worker.submit(jobs[index], private, round_number, wants_gradient)

        try:
            for due in range(len(jobs)):
                self._receive(timeout=0.0)
                submit()
                while due not in under_way or not under_way[due].done():
                    self._receive(timeout=LOOK)
                    submit()
                yield under_way.pop(due).result()
        except (WorkerEnded, KeyboardInterrupt):
            self.close()
            raise

    def _receive(self, timeout: float) -> None:
        """Receive the answers of workers, for any call. Raise WorkerEnded, or Preempted after a signal."""
        check()
        if not self._workers:
            raise FsslError("the pool was closed before all outcomes were returned; run the command again")
        workers = {worker.connection: worker for worker in self._workers}
        for ready in connection.wait(list(workers), timeout):
            workers[ready].receive()  # type: ignore[index]  # these are connections


class Worker:
    """One worker process, the connection to it, and its current job; it runs one job at a time."""

    def __init__(self, context: Any, content: FileIO | BytesIO, device: torch.device) -> None:
        self.connection, theirs = Pipe()
        self._in_files = isinstance(content, FileIO)
        if self._in_files:
            write(self.connection, content)
        self.process = context.Process(target=work, args=(theirs, device, self._in_files), daemon=True)
        self.process.start()
        theirs.close()  # closes the pipe when the process ends
        self._job = ""
        self.answer = Future[Any]()
        self.answer.set_result(None)

    def submit(self, job: Job, private: Tree | None, round_number: int, wants_gradient: bool) -> Future[Any]:
        """Send the job, and return a future with the result or error of `JobRunner.run` or `JobRunner.gradient`.

        Raise FsslError if the job cannot be sent.
        """
        self._job = name_of(job, round_number)
        try:
            message = packed((job, private, round_number, wants_gradient), self._in_files)  # for `result_of`
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            remedy = "make the update a dataclass at the top level of a module"
            raise FsslError(f"{self._job} cannot be sent to a worker process: {error}; {remedy}") from error
        self.answer = Future()
        try:
            send(self.connection, message)
        except OSError as error:
            raise self._ended() from error
        return self.answer

    def receive(self) -> None:
        """Receive the answer to the current job. Raise WorkerEnded if the process has ended."""
        try:
            result = received(self.connection, self._in_files)
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)

    def end(self) -> None:
        self.process.kill()  # loses nothing, because the main process still has all that it sent
        self.connection.close()
        self.process.join(timeout=5)

    def _ended(self) -> WorkerEnded:
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name} (with too little memory, choose fewer --workers)"
        else:
            how = f'ended with exit code {code} (a script that starts it needs the line if __name__ == "__main__":)'
        return WorkerEnded(f"worker process {self.process.pid} {how} during {self._job}")


# Messages. A pipe copies a weight set six times, in pieces of 200 kB. These functions copy it once, to a file in memory
# and not in /dev/shm, because a container's /dev/shm only has 64 MB. The reader maps the file without a copy.
# Everything but the tensors is pickled, like all objects in multiprocessing's pipes. Systems without such files (macOS)
# send all bytes by the pipe.

DESCRIPTORS = Path("/proc/self/fd")


def passes_files() -> bool:
    """Return whether processes can share a file in memory by its descriptor on this system."""
    return hasattr(os, "memfd_create") and DESCRIPTORS.is_dir()


class Pickler(pickle.Pickler):
    """A pickler that leaves out tensors and collects them in `tensors`."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class Unpickler(pickle.Unpickler):
    """An unpickler that inserts the tensors again."""

    def __init__(self, file: BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def packed(message: Any, in_files: bool) -> FileIO | BytesIO:
    """Write the message for `send`: to a file in memory if `in_files`, and to a buffer if not."""
    pickler = Pickler(rest := BytesIO())
    pickler.dump(message)
    content = [torch.frombuffer(rest.getbuffer(), dtype=torch.uint8), *pickler.tensors]
    if not in_files:
        torch.save(content, buffer := BytesIO())
        return buffer
    file = FileIO(os.memfd_create("message"))
    torch.save(content, f"{DESCRIPTORS}/{file.fileno()}")
    return file


def write(pipe: connection.Connection, message: FileIO | BytesIO) -> None:
    """Send the message, which stays open. Raise OSError if the other process has ended."""
    if isinstance(message, FileIO):
        send_handle(pipe, message.fileno(), None)
    else:
        pipe.send_bytes(message.getbuffer())


def send(pipe: connection.Connection, message: FileIO | BytesIO) -> None:
    """Send the message and close it. Raise OSError if the other process has ended."""
    with message:
        write(pipe, message)


def received(pipe: connection.Connection, in_files: bool) -> Any:
    """Receive the next message, with tensors on the host. Raise EOFError or OSError if the other process has ended."""
    if in_files:
        with FileIO(recv_handle(pipe)) as file:
            place = f"{DESCRIPTORS}/{file.fileno()}"
            rest, *tensors = torch.load(place, map_location=CPU, mmap=True, weights_only=True)
    else:
        rest, *tensors = torch.load(BytesIO(pipe.recv_bytes()), map_location=CPU, weights_only=True)
    return Unpickler(BytesIO(rest.numpy()), tensors).load()


# Functions that run in a worker process.


def work(parent: connection.Connection, device: torch.device, in_files: bool) -> None:
    """Run a worker process: compute one job after the other until the parent ends."""
    end_with_parent(signal.SIGKILL)
    torch.set_num_threads(1)
    keep_freed_memory()
    environment = received(parent, in_files)
    prepare_torch(device, environment.experiment.precision, environment.experiment.model)
    runner = JobRunner(environment, fast=True, device=str(device))
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            send(parent, packed(result_of(runner, *received(parent, in_files)), in_files))


def result_of(runner: JobRunner, job: Job, private: Tree | None, round_number: int, wants_gradient: bool) -> Any:
    """Return a job's outcome or gradient, or the exception that the parent will raise."""
    try:
        return (runner.gradient if wants_gradient else runner.run)(job, round_number, copied(private))
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        where = f"{name_of(job, round_number)} failed in a worker process:\n{trace}"
        if not isinstance(error, FsslError):  # its class may exist only in this process
            return FailedInWorker(where, failure_of(error))
        error.add_note(where)
        return error
