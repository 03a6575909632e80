"""Apply faults in a forked child, as patches of one process that end with the run; the tests' own process is not
patched.
"""

import io
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

from benchmark.federated import evaluate, jobs, local, process_pool, processes
from benchmark.federated.module import FederatedModule
from benchmark.federated.stopping import received
from benchmark.records import recorder, state

PLACES = ("before a save", "in a save", "after a save", "in a job", "in an evaluation", "at publishing")
FAULTS = ("killed", "stopped", "woken", "disk full")


def save_every_round() -> None:
    """Save after every round, although saving is slow compared with these tiny rounds."""
    recorder.SECONDS_BETWEEN_SAVES, recorder.MOST_OF_A_RUN = 0.0, float("inf")


def forked_workers() -> None:
    """Fork worker processes, to save the seconds for importing torch anew.

    They close their parent's ends of the pipes. A forked process inherits these and one of the fork server does not;
    with them it would never notice that the parent was killed in the middle of a message.
    """

    def pipe(duplex: bool = True) -> tuple[Connection, Connection]:
        ours, theirs = Pipe(duplex)
        register_after_fork(ours, Connection.close)
        return ours, theirs

    processes._method = lambda: "fork"
    process_pool.Pipe = pipe


def happens(what: Sequence[Any]) -> None:
    """Apply a fault once, in the process that runs, even if a worker reaches the place.

    `what` has one of FAULTS, one of PLACES, the round of the fault, and the results folder.
    """
    fault, place, number, results = what
    pid = os.getpid()
    signals = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM, "woken": signal.SIGSTOP}

    def strike() -> None:
        with suppress(FileExistsError):
            os.close(os.open(f"{results}.struck", os.O_CREAT | os.O_EXCL))
            if fault == "disk full":
                fill(Path(results) / "filler")
            else:
                os.kill(pid, signals[fault])

    _PUT[place](strike, number)


def fill(file: Path) -> None:
    """Leave no byte of the file's disk free."""
    with open(file, "wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while filler.write(b"\0" * size):
                    pass


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """Mount a separate file system in memory at the folder; yield whether this succeeded: only root can mount."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace `owner.name` by `around`, which gets the original as its first argument."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments, **options: around(original, *arguments, **options))


def _around_a_save(strike: Callable[[], None], number: int, *, after: bool) -> None:
    def watched(save: Any, folder: Path, run_state: state.RunState, *rest: Any) -> None:
        if run_state.round == number and not after:
            strike()
        save(folder, run_state, *rest)
        if run_state.round == number and after:
            strike()

    wrap(state, "save", watched)


def _in_a_save(strike: Callable[[], None], number: int) -> None:
    """Apply the fault after half of the file is on the disk."""

    def halved(save: Any, content: Any, file: Any, **options: Any) -> None:
        if isinstance(file, str):  # a message of the pool
            save(content, file, **options)
            return
        save(content, buffer := io.BytesIO())
        data = buffer.getvalue()
        file.write(data[: len(data) // 2])
        file.flush()
        if content["lines"].count("\n") == number:
            strike()
        file.write(data[len(data) // 2 :])

    wrap(state.torch, "save", halved)


def _in_a_job(strike: Callable[[], None], number: int) -> None:
    """Apply the fault before a job's second local step."""
    now = 0

    def in_round(run: Any, runner: Any, job: Any, round_number: int, private: Any) -> Any:
        nonlocal now
        now = round_number
        return run(runner, job, round_number, private)

    def watched(step: Any, module: Any, batch: Any, index: int) -> Any:
        if (now, index) == (number, 1):
            strike()
        return step(module, batch, index)

    wrap(jobs.JobRunner, "run", in_round)
    wrap(local.LocalModule, "training_step", watched)


def _in_an_evaluation(strike: Callable[[], None], number: int) -> None:
    now = 0

    def in_round(step: Any, module: Any, batch: int, index: int) -> None:
        nonlocal now
        now = int(batch)
        step(module, batch, index)

    def watched(chunks: Any, *arguments: Any) -> Iterator[Any]:
        for images_NCHW in chunks(*arguments):
            if now == number:
                strike()
            yield images_NCHW

    wrap(FederatedModule, "training_step", in_round)
    wrap(evaluate, "chunks", watched)


def _at_publishing(strike: Callable[[], None], number: int) -> None:
    """Apply the fault between the writing of `rounds.jsonl` and of `result.json`."""

    def watched(put_once: Any, path: Path, content: bytes) -> bytes:
        if path.name == "result.json":
            strike()
        return put_once(path, content)

    wrap(recorder, "put_once", watched)


_PUT: dict[str, Callable[[Callable[[], None], int], None]] = {
    "before a save": partial(_around_a_save, after=False),
    "in a save": _in_a_save,
    "after a save": partial(_around_a_save, after=True),
    "in a job": _in_a_job,
    "in an evaluation": _in_an_evaluation,
    "at publishing": _at_publishing,
}


def wait_in_round(number: int) -> None:
    """Let each job of a process but its first one wait for a signal in this round."""
    jobs_begun = itertools.count()

    def wait() -> None:
        while next(jobs_begun) and not received():
            time.sleep(0.05)

    _in_a_job(wait, number)


def sleep_before_rounds(seconds: float) -> None:
    """Delay rounds to the length of a real run's rounds."""

    def slow(begin: Any, *arguments: Any) -> None:
        time.sleep(seconds)
        begin(*arguments)

    wrap(recorder.Recorder, "on_train_batch_start", slow)


def sleep_when_stopped(seconds: float) -> None:
    """Make saving slow once a signal has arrived."""

    def slow(save: Any, *arguments: Any) -> None:
        time.sleep(seconds if received() else 0.0)
        save(*arguments)

    wrap(recorder.Recorder, "save", slow)
