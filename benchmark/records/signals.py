"""SIGTERM and Ctrl-C: the round in progress is abandoned, and the last finished one is what the run goes on from."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytorch_lightning as pl

from benchmark.errors import Stopped
from benchmark.federated.module import FederatedModule
from benchmark.methods.protocol import Job, Outcome


class Preempted(BaseException):
    """The process was asked to stop. Raised wherever the run is; what has to know of it (the recorder, a mirror that
    marks the run as preempted) is a Lightning callback with `on_exception`.

    No `Exception`, so that nothing on the way takes it for an error of its own.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number).name
        super().__init__(self.signal)


class StopOnSignal(pl.Callback):
    """The first signal raises `Preempted` in the midst of a round; a second one ends the process at once.

    What is being recorded between two rounds is recorded first. A signal that is ignored (Ctrl-C in a process whose
    parent passes it on) stays so.
    """

    def __init__(self) -> None:
        self.asked: Preempted | None = None
        self._recording = False
        self._before: dict[signal.Signals, object] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """From here on signals count. They reach the main thread only: in another one this does nothing."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A first signal in here is not raised: the work that it came to is finished."""
        before, self._recording = self._recording, True
        yield
        self._recording = before  # where an exception is being recorded, that goes on until the end

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            leave_at_once()
        self.asked = Preempted(number)
        if not self._recording:
            raise self.asked

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.observers.append(self)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning puts a handler of its own in place when fitting starts: ours comes after."""
        for number in self._before:
            signal.signal(number, self._ask)

    def on_job(self, job: Job, round_number: int) -> None:
        """Nothing to see; `on_outcome` is the one."""

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        """An exception that is raised while Python frees an object is lost: then this raises it once more."""
        self._raise_what_was_asked()

    def on_train_batch_start(self, *args: object) -> None:
        self._recording = False
        self._raise_what_was_asked()

    def on_train_batch_end(self, *args: object) -> None:
        """The recorder comes after this callback."""
        self._recording = True

    def on_exception(self, *args: object) -> None:
        """What ended the run is what counts, and the recorder, which comes after, writes down what is finished: a
        signal that follows (torchrun sends one to all where a rank has ended) does not break that off."""
        self._recording = True

    def _raise_what_was_asked(self) -> None:
        if self.asked is not None:
            raise self.asked


def leave_at_once() -> None:
    """End the process and its workers without another word to the disk: what is there is whole."""
    for child in multiprocessing.active_children():
        child.kill()
    os.write(2, b"fssl: stopped at once; the same command goes on from the last checkpoint\n")
    os._exit(Stopped.exit_code)
