"""The process pool: a call's jobs on several processes of this machine, by the fast form of the local step.

Two threads of one process wait for each other at every operation, and collapse beside other programs; processes of one
thread share what is there. Workers live as long as the engine. They share the images and get every distinct tensor that
jobs receive once a call. Their number does not move a bit; the fast form of the local step does (`Speed`), so that a
run that goes on keeps its engine.
"""

import io
import pickle
import queue
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing  # noqa: F401  teaches multiprocessing to share tensors
from torch import Tensor

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import PLAIN, JobRunner, Speed
from benchmark.federated.machine import keep_freed_memory, shared_memory_left
from benchmark.federated.sharing import Call, Failure, SharingEngine
from benchmark.federated.start import hear, starting, usable_cores
from benchmark.methods.protocol import Job, Tree

Sent = dict[int, tuple[int, Tensor]]  # id -> number and tensor (held, since the id of a freed one may come again)

# A worker computes for seconds without looking at its pipe: how often, in seconds, it looks for its parent meanwhile.
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

    `plain`: the reference engine's local step, bit by bit; `confident_only`: see `Speed`.

    A script that builds one needs the line `if __name__ == "__main__":`: its processes import the script.
    """

    name = "pool"

    def __init__(
        self,
        environment: Environment,
        workers: int | None = None,
        *,
        threads: int = 1,
        confident_only: bool = True,
        plain: bool = False,
    ) -> None:
        super().__init__(environment)
        self._count = usable_cores() if workers is None else workers
        if self._count < 1:
            raise ConfigError(f"--workers: {self._count}; choose 1 or more")
        self._threads, self._speed = threads, PLAIN if plain else Speed(confident_only=confident_only)
        self._shared = share_images(environment)
        self._end_workers = weakref.finalize(self, end, self._jobs_of)  # also when the interpreter ends
        self._begin()

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; work begun is lost. The engine is usable again: it then starts others."""
        end(self._jobs_of)

    @property
    def settings(self) -> Mapping[str, Any]:
        """`workers` does not decide its bits, and stands there for the time it took."""
        speed = {"plain": self._speed == PLAIN, "confident_only": self._speed.confident_only}
        return {"name": self.name, "threads": self._threads, "bit_equal": True, **speed, "workers": self._count}

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
                arguments = (theirs, self._shared, self._threads, self._speed)
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
                send(
                    worker.connection,
                    ("environment",),
                    pack(
                        self._environment, {id(tensor): (number, tensor) for number, tensor in enumerate(self._shared)}
                    ),
                )
            head = ("job", call.number, index, call.kept is None, call.round_number)
            send(worker.connection, head, job, pack(private, {}))

    def _take_in(self) -> None:
        busy = {worker.connection: worker for worker, given in self._jobs_of.items() if given}
        if not busy:
            raise FsslError("the engine was closed while outcomes were still asked of it")
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]  # `wait` gives what it was given
            with self._alive(worker):
                (number, index), (result,) = receive(worker.connection)
                self._enter(worker, number, index, unpack(result, {}))

    def _forget(self, call: Call) -> None:
        for worker in list(self._jobs_of):
            if worker.sent.pop(call.number, None) is not None:
                with self._alive(worker):
                    send(worker.connection, ("end", call.number))

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


def work(connection: Connection, shared: Sequence[Tensor], threads: int, speed: Speed) -> None:
    """A worker's main function: jobs one after another, until its parent ends. `shared`: the environment's images and
    labels, where they lie in shared memory."""
    hear()
    torch.set_num_threads(threads)
    keep_freed_memory()
    inbox: queue.SimpleQueue[tuple[Any, Sequence[Packed]]] = queue.SimpleQueue()
    threading.Thread(target=take_in, args=(connection, inbox), daemon=True).start()
    _, (environment,) = inbox.get()
    runner = JobRunner(unpack(environment, dict(enumerate(shared))), speed)
    received: dict[int, dict[int, Tensor]] = {}  # call -> tensors that several of its jobs receive, by number
    while True:
        message, payloads = inbox.get()
        match message:
            case ("end", call):
                received.pop(call, None)
            case ("job", call, index, wants_gradient, round_number):
                job, private = payloads
                try:
                    result = answer(runner, job, private, received.setdefault(call, {}), wants_gradient, round_number)
                except Exception as error:
                    result = pack(Failure.of(error), {})
                with suppress(OSError):  # nobody reads any more: `take_in` ends the process
                    send(connection, (call, index), result)


def take_in(connection: Connection, inbox: "queue.SimpleQueue[tuple[Any, Sequence[Packed]]]") -> None:
    """Take what comes while a job runs, so that the parent never waits to hand over the next one. When the parent has
    ended or closed the pipe, so does this process, whose main thread may be deep in a job that nobody waits for."""
    parent = parent_process()
    assert parent is not None  # a worker has one
    try:
        while parent.is_alive():
            while connection.poll(PARENT_WATCH):
                inbox.put(receive(connection))
    except (EOFError, OSError):
        pass
    finally:
        signal.raise_signal(signal.SIGTERM)


def answer(
    runner: JobRunner, job: "Packed", private: "Packed", tensors: dict[int, Tensor], wants_gradient: bool, number: int
) -> "Packed":
    """The outcome of a job, or its gradient, packed."""
    todo: Job = unpack(job, tensors)
    kept: Tree | None = unpack(private, {})
    return pack(runner.gradient(todo, number) if wants_gradient else runner.run(todo, number, kept), {})


# Trees of tensors between processes: a pickle, and beside it the tensors' own memory. A receiver gets every tensor in
# the layout it had (channels last stays channels last), so that nothing downstream can tell. There and back, a pipe
# takes 1.4 ms for 0.2 M weights, 1 % of a job, and 88 ms for 11 M; torch's shared memory, with a file for each tensor,
# 22 and 1016 ms. So nothing is shared but the images.


@dataclass(frozen=True)
class Packed:
    """A pickle without the tensors' memory, and that memory."""

    pickled: bytes
    buffers: Sequence[Any]  # memoryview or array of bytes


def pack(tree: Any, known: Sent) -> Packed:
    """The tree without the tensors in `known`, to which those that are packed are added.

    Raises what pickle raises for what it cannot take (a class that is not at a module's top level).
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, known, buffers).dump(tree)
    return Packed(file.getvalue(), [buffer.raw() for buffer in buffers])


def unpack(packed: Packed, known: dict[int, Tensor]) -> Any:
    """The tree; its tensors without memory are those in `known`, to which the others are added."""
    return _Unpickler(packed, known).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Sent, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._known = known

    def persistent_id(self, value: Any) -> tuple[int, tuple[Any, ...] | None] | None:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
            return None
        if id(value) in self._known:
            return self._known[id(value)][0], None
        number = len(self._known)
        self._known[id(value)] = (number, value)
        dense = dense_tensor(value)
        in_memory = dense.as_strided((dense.numel(),), (1,), dense.storage_offset()).view(torch.uint8).numpy()
        return number, (dense.dtype, tuple(dense.shape), dense.stride(), pickle.PickleBuffer(in_memory.data))


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: Packed, known: dict[int, Tensor]) -> None:
        super().__init__(io.BytesIO(packed.pickled), buffers=packed.buffers)
        self._known = known

    def persistent_load(self, found: tuple[int, tuple[Any, ...] | None]) -> Tensor:
        number, content = found
        if content is not None:
            dtype, shape, stride, memory = content
            flat = torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype)
            self._known[number] = flat.as_strided(shape, stride)
        return self._known[number]


def dense_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself where its elements fill a stretch of memory, in whatever order; else a copy that does."""
    tensor = tensor.detach()
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return tensor.contiguous()
        expected *= size
    return tensor


def send(connection: Connection, message: Any, *payloads: Packed) -> None:
    """A message of plain values, and what was packed."""
    pickles = [(packed.pickled, [len(buffer) for buffer in packed.buffers]) for packed in payloads]
    connection.send_bytes(pickle.dumps((message, pickles)))
    for packed in payloads:
        for buffer in packed.buffers:
            if len(buffer):
                connection.send_bytes(buffer)


def receive(connection: Connection) -> tuple[Any, list[Packed]]:
    """The next message. Raises EOFError where the other end is closed."""
    message, pickles = pickle.loads(connection.recv_bytes())
    payloads = []
    for pickled, sizes in pickles:
        buffers = [torch.empty(size, dtype=torch.uint8).numpy().data for size in sizes]
        for buffer in buffers:
            if len(buffer):
                connection.recv_bytes_into(buffer)
        payloads.append(Packed(pickled, buffers))
    return message, payloads
