"""What runs in a worker process of `CpuEngine`: jobs from a pipe, one after another.

Messages to a worker: ("environment", pickle), ("path", sys.path), ("job", Order), ("end", ticket).
From it: ("done", ticket, index, pickle), ("failed", ticket, index, Failure), ("skipped", ticket, index).
A ticket names one call of `fit` or `gradients`.
"""

import contextlib
import multiprocessing
import os
import queue
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from benchmark import errors
from benchmark.federated.engines import JobRunner, Speed
from benchmark.federated.environment import Environment
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.parcels import Numbers, pack, receive, send, unpack

# A worker computes for seconds without looking at its pipe: how often, in seconds, it looks for its parent meanwhile.
PARENT_WATCH = 0.5


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job for a worker. Tensors of `job` are kept until the ticket ends, those of `private` are for this job."""

    ticket: int
    index: int
    gradient: bool  # the job's gradient is wanted, and no training
    round_number: int
    job: bytes
    private: bytes


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception of a job. `name` is its class where that is one of benchmark.errors."""

    name: str | None
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        ours = getattr(errors, type(error).__name__, None) is type(error)
        return cls(
            name=type(error).__name__ if ours else None,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )

    def to_raise(self, job: str) -> Exception:
        """The exception to raise in the parent, with the worker's traceback."""
        if self.name is None:
            return RuntimeError(f"{job} failed in a worker process:\n{self.traceback}")
        error = getattr(errors, self.name)(self.message)
        error.add_note(f"in a worker process, {job}:\n{self.traceback}")
        return error


def work(connection: Connection, shared: Mapping[int, Tensor], threads: int, speed: Speed) -> None:
    """The worker's main function: ends with its parent, or when the parent closes the pipe.

    `shared`: those tensors of the environment, by number, that lie in shared memory.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    inbox = Inbox(connection)
    inbox.start()
    (_, environment), rest = inbox.waiting.get()
    desk = Desk(unpack(environment, {**shared, **rest}), speed)
    with contextlib.suppress(OSError):  # nobody reads any more
        while True:
            message, tensors = inbox.waiting.get()
            match message:
                case ("path", path):
                    sys.path.extend(entry for entry in path if entry not in sys.path)
                case ("end", ticket):
                    desk.forget(ticket)
                    inbox.ended.discard(ticket)
                case ("job", order) if order.ticket in inbox.ended:
                    send(connection, ("skipped", order.ticket, order.index))
                case ("job", order):
                    send(connection, *desk.answer(order, tensors))


class Inbox(threading.Thread):
    """Takes what comes while a job runs, so that the parent never waits to hand over the next one."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.SimpleQueue[tuple[Any, dict[int, Tensor]]] = queue.SimpleQueue()
        self.ended: set[int] = set()  # tickets whose jobs are no longer wanted
        self._connection = connection

    def run(self) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None  # a worker has one
        try:
            while True:
                while not self._connection.poll(PARENT_WATCH):
                    if not parent.is_alive():
                        return
                message, tensors = receive(self._connection)
                if message[0] == "end":
                    self.ended.add(message[1])
                self.waiting.put((message, tensors))
        except (EOFError, OSError):
            pass
        finally:
            os._exit(0)  # the main thread may be deep in a job that nobody waits for


class Desk:
    """Runs jobs and keeps the tensors that several jobs of a ticket receive."""

    def __init__(self, environment: Environment, speed: Speed) -> None:
        self._runner = JobRunner(environment, speed)
        self._tensors: dict[int, dict[int, Tensor]] = defaultdict(dict)

    def forget(self, ticket: int) -> None:
        self._tensors.pop(ticket, None)

    def answer(self, order: Order, tensors: dict[int, Tensor]) -> tuple[Any, list[tuple[int, Tensor]]]:
        """The answer to an order, and its tensors."""
        of_ticket = self._tensors[order.ticket]
        of_ticket.update({number: tensor for number, tensor in tensors.items() if number >= 0})
        numbers = Numbers()
        try:
            job, private = unpack(order.job, of_ticket), unpack(order.private, tensors)
            if order.gradient:
                found: Any = self._runner.gradient(job, order.round_number)
            else:
                found = self._runner.run(job, order.round_number, private)
            parcel = pack(found, numbers)
        except Exception as error:
            return ("failed", order.ticket, order.index, Failure.of(error)), []
        return ("done", order.ticket, order.index, parcel.pickled), list(numbers.tensors.items())
