"""The process pool: a call's jobs on several processes of this machine, by the fast form of the local step.

Two threads of one process wait for each other at every operation, and collapse beside other programs; processes of one
thread share what is there. Workers live as long as the engine. They share the images and get every distinct tensor that
jobs receive once a call. Their number does not move a bit; the fast form of the local step does, so that a run that
goes on keeps its engine.
"""

import io
import pickle
import queue
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing  # noqa: F401  teaches multiprocessing to share tensors
from torch import Tensor

from benchmark.errors import FsslError
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner
from benchmark.federated.machine import keep_freed_memory, shared_memory_left
from benchmark.federated.sharing import Call, SharingEngine, result_of
from benchmark.federated.start import hear, starting, usable_cores
from benchmark.methods.protocol import Tree

Sent = dict[int, tuple[int, Tensor]]  # id -> number and tensor (held, since the id of a freed one may come again)

# A job takes seconds: how often, in seconds, a worker looks for its parent meanwhile, and that for a signal to stop.
PARENT_WATCH = 0.5


@dataclass(eq=False)
class Worker:
    """One process, seen from the parent."""

    process: BaseProcess
    connection: Connection
    knows_environment: bool = False
    sent: dict[int, Sent] = field(default_factory=dict)  # the tensors that it has, by call


class ProcessPool(SharingEngine[Worker]):
    """`workers` persistent processes of `threads` each; None: one for each core that this process may use.

    A script that builds one needs the line `if __name__ == "__main__":`: its processes import the script.
    """

    name = "pool"

    def __init__(self, environment: Environment, workers: int | None = None, *, threads: int = 1) -> None:
        super().__init__(environment, usable_cores() if workers is None else workers, threads)
        self._shared = share_images(environment)
        self._end_workers = weakref.finalize(self, end, self._jobs_of)  # also when the interpreter ends
        self._begin()

    def close(self) -> None:
        end(self._jobs_of)

    @property
    def pids(self) -> list[int]:
        """The workers' processes."""
        return [worker.process.pid for worker in self._jobs_of if worker.process.pid is not None]

    def _begin(self) -> None:
        if self._jobs_of:
            return
        with starting() as context:
            for _ in range(self._count):
                connection, theirs = Pipe()
                arguments = (theirs, self._shared, self._threads)
                worker = Worker(context.Process(target=work, args=arguments, daemon=True), connection)
                worker.process.start()
                theirs.close()  # so that the pipe ends with the process
                self._jobs_of[worker] = []

    def _give(self, worker: Worker, call: Call, index: int, private: Tree | None) -> None:
        try:
            job = pack(call.jobs[index], worker.sent.setdefault(call.number, {}))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise self._cannot_be_sent(call, index, error) from error
        with self._alive(worker):
            if not worker.knows_environment:
                # Not among the process's arguments, since the parent would wait for one worker after another to read.
                worker.knows_environment = True
                shared = {id(tensor): (number, tensor) for number, tensor in enumerate(self._shared)}
                worker.connection.send(pack(self._environment, shared))
            worker.connection.send((call.number, index, job, pack(private, {}), call.wants_gradient, call.round_number))

    def _take_in(self) -> None:
        busy = {worker.connection: worker for worker, given in self._jobs_of.items() if given}
        if not busy:
            raise FsslError("the engine was closed while outcomes were still asked of it")
        for connection in wait(list(busy), PARENT_WATCH):
            worker = busy[connection]  # type: ignore[index]  # `wait` gives what it was given
            with self._alive(worker):
                number, index, result = worker.connection.recv()
                self._enter(worker, number, index, unpack(result, {}))

    def _forget(self, call: Call) -> None:
        for worker in list(self._jobs_of):
            if worker.sent.pop(call.number, None) is not None:
                with self._alive(worker):
                    worker.connection.send(call.number)

    @contextmanager
    def _alive(self, worker: Worker) -> Iterator[None]:
        """A message cut in two is the end of all workers. Raises FsslError where this one has ended by itself."""
        try:
            yield
        except (EOFError, OSError) as error:
            worker.process.join(timeout=1)
            how, remedy = how_ended(worker.process.exitcode)
            message = f"worker process {worker.process.pid} {how} during {self._job_of(worker)}; {remedy}"
            end(self._jobs_of)
            raise FsslError(message) from error
        except BaseException:
            end(self._jobs_of)
            raise


def end(workers: dict[Worker, Any]) -> None:
    """End the processes and empty the dict."""
    while workers:
        worker, _ = workers.popitem()
        worker.connection.close()
        worker.process.kill()  # it holds nothing but what it was sent
        worker.process.join(timeout=5)


def how_ended(code: int | None) -> tuple[str, str]:
    """A process's exit code in words, and what helps."""
    if code is not None and code < 0:
        return f"ended by {signal.Signals(-code).name}", "with too little memory, choose fewer --workers"
    return f"ended with exit code {code}", 'a script that starts workers needs the line if __name__ == "__main__":'


def share_images(environment: Environment) -> list[Tensor]:
    """The images and labels, moved into shared memory in place.

    None where they do not fit there (a container has 64 MB by default): then every worker gets a copy of its own.
    """
    tensors = [value for value in vars(environment.data).values() if isinstance(value, Tensor)]
    to_move = [tensor for tensor in tensors if not tensor.is_shared()]
    if sum(tensor.untyped_storage().nbytes() for tensor in to_move) > shared_memory_left():
        return []
    for tensor in to_move:
        tensor.share_memory_()
    return tensors


# What runs in a worker process.


def work(connection: Connection, shared: Sequence[Tensor], threads: int) -> None:
    """A worker's main function: jobs one after another, until its parent ends. `shared`: the environment's images and
    labels, where they lie in shared memory. What comes: the environment, then jobs, and the numbers of ended calls."""
    hear()
    torch.set_num_threads(threads)
    keep_freed_memory()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=take_in, args=(connection, inbox), daemon=True).start()
    runner = JobRunner(unpack(inbox.get(), dict(enumerate(shared))), fast=True)
    received: dict[int, dict[int, Tensor]] = {}  # call -> tensors that several of its jobs receive, by number
    while True:
        message = inbox.get()
        if isinstance(message, int):
            received.pop(message, None)
            continue
        call, index, packed, private, wants_gradient, round_number = message
        job = unpack(packed, received.setdefault(call, {}))
        result = result_of(runner, job, unpack(private, {}), wants_gradient, round_number)
        with suppress(OSError):  # nobody reads any more: `take_in` ends the process
            connection.send((call, index, pack(result, {})))


def take_in(connection: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    """Take what comes while a job runs, so that the parent never waits to hand over the next one. When the parent has
    ended or closed the pipe, so does this process, whose main thread may be deep in a job that nobody waits for."""
    parent = parent_process()
    assert parent is not None  # a worker has one
    try:
        while parent.is_alive():
            while connection.poll(PARENT_WATCH):
                inbox.put(connection.recv())
    except (EOFError, OSError):
        pass
    finally:
        signal.raise_signal(signal.SIGTERM)


# Trees of tensors between processes: a pickle in which a tensor is its memory and its layout (channels last stays
# channels last), so that nothing downstream can tell. torch's own way, a file of shared memory for each tensor, takes
# sixteen times as long for 0.2 M weights. So nothing is shared but the images.

InMemory = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], npt.NDArray[np.uint8]]


def pack(tree: Any, known: Sent) -> bytes:
    """The tree without the tensors in `known`, to which those that are packed are added.

    Raises what pickle raises for what it cannot take (a class that is not at a module's top level).
    """
    file = io.BytesIO()
    _Pickler(file, known).dump(tree)
    return file.getvalue()


def unpack(packed: bytes, known: dict[int, Tensor]) -> Any:
    """The tree; its tensors without memory are those in `known`, to which the others are added."""
    return _Unpickler(packed, known).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Sent) -> None:
        super().__init__(file, protocol=5)
        self._known = known

    def persistent_id(self, value: Any) -> tuple[int, InMemory | None] | None:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
            return None
        if id(value) in self._known:
            return self._known[id(value)][0], None
        number = len(self._known)
        self._known[id(value)] = (number, value)
        return number, in_memory(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, known: dict[int, Tensor]) -> None:
        super().__init__(io.BytesIO(packed))
        self._known = known

    def persistent_load(self, found: tuple[int, InMemory | None]) -> Tensor:
        number, content = found
        if content is not None:
            self._known[number] = from_memory(content)
        return self._known[number]


def in_memory(tensor: Tensor) -> InMemory:
    """Type, shape, stride and bytes of a tensor. One whose elements fill no stretch of memory is copied first."""
    dense = tensor.detach()
    expected = 1
    for stride, size in sorted(zip(dense.stride(), dense.shape, strict=True)):
        if size > 1 and stride != expected:
            dense = dense.contiguous()
            break
        expected *= size
    flat = dense.as_strided((dense.numel(),), (1,), dense.storage_offset())
    return dense.dtype, tuple(dense.shape), dense.stride(), flat.view(torch.uint8).numpy()


def from_memory(found: InMemory) -> Tensor:
    dtype, shape, stride, content = found
    return torch.from_numpy(content).view(dtype).as_strided(shape, stride)
