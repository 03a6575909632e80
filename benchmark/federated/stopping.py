"""Stop a run after SIGTERM or Ctrl-C.

The first signal sets a flag that training checks between local steps, batches and jobs. The current round is abandoned,
and the run later resumes after the last finished round. A second signal ends the process immediately.
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
    """The process was asked to stop by `signal`, such as "SIGTERM".

    It is not an `Exception`, so that no code catches it as an error. Callbacks have `on_exception`.
    """

    def __init__(self, name: str) -> None:
        self.signal = name
        super().__init__(name)


_received: str | None = None  # the received signal; one variable per process, which has one handler


def received() -> str | None:
    """Return the signal received since `StopOnSignal.listening`, such as "SIGTERM", or None."""
    return _received


def check() -> None:
    """Raise Preempted if a signal was received."""
    if _received is not None:
        raise Preempted(_received)


class StopOnSignal(pl.Callback):
    """A callback that handles signals: before training a signal raises Preempted, and later it sets the flag.

    With `at_once=False`, a signal sets the flag from the start, for a main thread with other threads that train.
    """

    def __init__(self, *, at_once: bool = True) -> None:
        self._training = not at_once
        self._before: dict[signal.Signals, object] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside the context.

        Signals only reach the main thread. In other threads the context does nothing, because the main thread sets and
        resets the flag. A signal that is ignored stays ignored, such as Ctrl-C if the parent process passes it on.
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
        """Install the handlers again, because Lightning replaces them when fitting starts."""
        self._training = True
        for number in self._before:
            signal.signal(number, self._ask)

    def on_train_batch_start(self, *args: object) -> None:
        check()


def leave_at_once() -> None:
    """End the process and its workers without further writes to the disk; all files on it are complete."""
    for child in multiprocessing.active_children():
        child.kill()
    os.write(2, b"fssl: stopped at once; the same command resumes from the last save\n")
    os._exit(Stopped.exit_code)
