"""Stops a run at SIGTERM and Ctrl-C.

The first signal sets a flag that training looks at between local steps, batches and jobs. The round in progress is
abandoned, and the run goes on from the last finished one later. A second signal ends the process at once.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytorch_lightning as pl

from benchmark.errors import Stopped
from benchmark.federated.processes import signals_handled_by


class Preempted(BaseException):
    """The process was asked to stop, by `signal`, such as "SIGTERM".

    Not an `Exception`, so that nothing on the way takes it for an error of its own. Callbacks have `on_exception`.
    """

    def __init__(self, name: str) -> None:
        self.signal = name
        super().__init__(name)


_received: str | None = None  # the signal that came; one for the process, which has one handler


def received() -> str | None:
    """The signal that came since `StopOnSignal.listening`, such as "SIGTERM"; None where none did."""
    return _received


def check() -> None:
    """Raises Preempted where a signal has come."""
    if _received is not None:
        raise Preempted(_received)


class StopOnSignal(pl.Callback):
    """Listens to signals. Until training begins, one raises Preempted at once; from then on it sets the flag.

    `at_once=False`: it sets the flag from the start, for a main thread whose other threads train.
    """

    def __init__(self, *, at_once: bool = True) -> None:
        self._training = not at_once
        self._before: dict[signal.Signals, object] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """From here on signals count. They reach the main thread only: in another one this does nothing, and the flag
        is the main thread's to set and to take back.

        A signal that is ignored (Ctrl-C in a process whose parent passes it on) stays so.
        """
        global _received
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        _received = None
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        try:
            with signals_handled_by(self._ask, *numbers) as self._before:
                yield
        finally:
            _received = None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        global _received
        if _received is not None:
            leave_at_once()
        _received = signal.Signals(number).name
        if not self._training:
            raise Preempted(_received)

    def on_train_start(self, *args: object) -> None:
        """Lightning puts a handler of its own in place when fitting starts: ours comes after."""
        self._training = True
        for number in self._before:
            signal.signal(number, self._ask)

    def on_train_batch_start(self, *args: object) -> None:
        check()


def leave_at_once() -> None:
    """End the process and its workers without another word to the disk: what is there is whole."""
    for child in multiprocessing.active_children():
        child.kill()
    os.write(2, b"fssl: stopped at once; the same command goes on from the last save\n")
    os._exit(Stopped.exit_code)
