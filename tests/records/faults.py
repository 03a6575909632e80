"""What goes wrong in a forked child: patches of one process that ends with the run, never of the tests' own."""

import io
import os
import signal
import time
import types
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

from benchmark.federated import jobs, process_pool, start
from benchmark.methods.protocol import Job, Outcome, Tree
from benchmark.records import checkpoints, client_files, files, recorder

# What writing a file takes, in order; "write" twice: half of the content, then the rest.
STEPS = ("mkstemp", "fdopen", "write", "write", "fsync", "chmod", "replace", "open", "fsync", "close")


def checkpoint_every_round() -> None:
    """However long saving takes, compared with these tiny rounds."""
    recorder.MOST_OF_A_RUN = float("inf")


def forked_workers() -> None:
    """Worker processes without the seconds that importing torch anew takes.

    They close their parent's ends of the pipes, which a forked process inherits and one of the fork server does not:
    else they would never see that the parent was killed in the middle of a message.
    """

    def pipe(duplex: bool = True) -> tuple[Connection, Connection]:
        ours, theirs = Pipe(duplex)
        register_after_fork(ours, Connection.close)
        return ours, theirs

    start.METHOD = "fork"
    process_pool.Pipe = pipe


def die_in_write(where: list[int]) -> None:
    """SIGKILL in the checkpoint number `where[0]` that this process writes, after step `where[1]` of STEPS."""
    _die_in_write_of(checkpoints, where)


def die_in_client_write(where: list[int]) -> None:
    """The same in the file of what a client keeps."""
    _die_in_write_of(client_files, where)


def _die_in_write_of(module: types.ModuleType, where: list[int]) -> None:
    number, last = where
    written = 0

    def write(path: Path, content: Any) -> None:
        nonlocal written
        written += 1
        if written == number:
            countdown = Countdown(last)
            files.os = countdown.around(os)
            files.tempfile = countdown.around(files.tempfile)
        files.write_atomically(path, content)

    vars(module)["write_atomically"] = write


def stop_in_save(where: list[int]) -> None:
    """SIGSTOP after step `where[1]` of writing what round `where[0]` leaves: the steps of STEPS in each client's file
    and in the checkpoint, and each removal of a file."""
    number, steps = where
    save, unlink = recorder.Recorder.save, Path.unlink

    def watched(self: recorder.Recorder) -> None:
        save(self)
        if self.rounds_done == number - 1:
            countdown = Countdown(steps, signal.SIGSTOP)
            files.os, files.tempfile = countdown.around(os), countdown.around(files.tempfile)
            Path.unlink = countdown._counted(unlink)  # type: ignore[method-assign]

    recorder.Recorder.save = watched  # type: ignore[method-assign]


class Countdown:
    """Ends this process after so many steps, or sends it another signal."""

    def __init__(self, steps: int, number: int = signal.SIGKILL) -> None:
        self._left, self._number = steps, number

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._number)

    def around(self, module: types.ModuleType) -> Any:
        """The module, with a step after each call of a function that STEPS names."""
        copy = types.SimpleNamespace(**vars(module))
        for name in set(STEPS) & set(vars(module)):
            setattr(copy, name, self._counted(getattr(module, name)))
        return copy

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            self.step()
            return Halved(found, self) if isinstance(found, io.IOBase) else found

        return call


class Halved:
    """A file that is written in two halves, each on disk before the next step."""

    def __init__(self, file: Any, countdown: Countdown) -> None:
        self._file, self._countdown = file, countdown
        self.flush, self.fileno = file.flush, file.fileno

    def __enter__(self) -> "Halved":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> None:
        middle = len(content) // 2
        for half in (content[:middle], content[middle:]):
            self._file.write(half)
            self._file.flush()
            self._countdown.step()


def sleep_in_round(number: int) -> None:
    """In that round every client but the first sleeps for a minute before its job."""
    run = jobs.JobRunner.run

    def slow(self: jobs.JobRunner, job: Job, round_number: int, private: Tree | None) -> Outcome:
        if round_number == number and job.key.client > 0:
            time.sleep(60)
        return run(self, job, round_number, private)

    jobs.JobRunner.run = slow  # type: ignore[method-assign]


def sleep_before_rounds(seconds: float) -> None:
    """Rounds as long as a real run's."""
    start = recorder.Recorder.on_train_batch_start

    def slow(*arguments: Any) -> None:
        time.sleep(seconds)
        start(*arguments)

    recorder.Recorder.on_train_batch_start = slow  # type: ignore[method-assign, assignment]


def sleep_when_stopped(seconds: float) -> None:
    """Saving what is finished takes long once a signal has come."""
    save = recorder.Recorder.on_exception

    def slow(*arguments: Any) -> None:
        time.sleep(seconds)
        save(*arguments)

    recorder.Recorder.on_exception = slow  # type: ignore[method-assign, assignment]
