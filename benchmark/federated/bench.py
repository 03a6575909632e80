"""Where a rank's jobs are done, one after another: in the main thread of a rank, in a second thread of rank 0.

Messages are those of `worker`: ("job", Order) and ("end", ticket) come, what `Desk.answer` gives goes.
"""

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmark.federated.engines import Speed
from benchmark.federated.environment import Environment
from benchmark.federated.links import FAREWELL
from benchmark.federated.worker import Desk

Answer = Callable[[Any, Iterable[tuple[int, Tensor]]], None]


class Bench:
    """Takes what comes while a job runs (`put`, from any thread), and answers in the thread that is in `work`."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Any, Mapping[int, Tensor]]] = queue.SimpleQueue()
        self._ended: set[int] = set()  # tickets whose jobs are no longer wanted

    def put(self, message: Any, tensors: Mapping[int, Tensor]) -> None:
        if message[0] == "end":
            self._ended.add(message[1])
        self._waiting.put((message, tensors))

    def work(self, environment: Environment, speed: Speed, answer: Answer) -> None:
        """Until the farewell. The one place where ranks run jobs."""
        desk = Desk(environment, speed)
        while True:
            message, tensors = self._waiting.get()
            match message:
                case ("end", ticket):
                    desk.forget(ticket)
                    self._ended.discard(ticket)
                case ("job", order) if order.ticket in self._ended:
                    answer(("skipped", order.ticket, order.index), ())
                case ("job", order):
                    answer(*desk.answer(order, dict(tensors)))
                case _ if message == FAREWELL:
                    return


class Abandoned(BaseException):
    """Raised within a job that nobody waits for any more."""


class SecondThread:
    """The bench of rank 0, whose main thread leads: it hands out, hears of signals and of ranks that are lost."""

    def __init__(self, environment: Environment, speed: Speed, answer: Answer) -> None:
        self._bench = Bench()
        threads = torch.get_num_threads()

        def work() -> None:
            torch.set_num_threads(threads)  # OpenMP counts them for each thread that asks
            with contextlib.suppress(Abandoned):
                self._bench.work(environment, speed, answer)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def put(self, message: Any, tensors: Iterable[tuple[int, Tensor]] = ()) -> None:
        """Private state (negative numbers) is copied: local work may change it in place."""
        self._bench.put(message, {number: tensor.clone() if number < 0 else tensor for number, tensor in tensors})

    def close(self, seconds: float) -> None:
        """End the thread, in the midst of a job if need be: one that computed on would be cut off by the end of the
        interpreter, which torch does not survive."""
        self.put(FAREWELL)
        self._thread.join(0.05)
        if self._thread.is_alive() and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Abandoned))
            self._thread.join(seconds)
