"""What goes wrong in a forked child: patches of one process that ends with the run, never of the tests' own."""

import io
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

from benchmark.federated import evaluate, jobs, local, process_pool, start
from benchmark.federated.module import FederatedModule
from benchmark.federated.stopping import received
from benchmark.methods.protocol import Job, Outcome, Tree
from benchmark.records import recorder, state

PLACES = ("before a save", "in a save", "after a save", "in a job", "in an evaluation", "at publishing")
FAULTS = ("killed", "stopped", "woken", "disk full")


def save_every_round() -> None:
    """However long saving takes, compared with these tiny rounds."""
    recorder.SECONDS_BETWEEN_SAVES, recorder.MOST_OF_A_RUN = 0.0, float("inf")


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


def happens(what: Sequence[Any]) -> None:
    """`what`: one of FAULTS, one of PLACES, the round in which it does, and the folder of results.

    It comes to the process that runs, also where a worker is at the place, and once.
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


def _around_a_save(before: Callable[[], None], after: Callable[[], None], number: int) -> None:
    save = state.save

    def watched(folder: Path, run_state: state.RunState, *rest: Any) -> None:
        struck = run_state.round == number
        if struck:
            before()
        save(folder, run_state, *rest)
        if struck:
            after()

    vars(state)["save"] = watched


def _in_a_save(strike: Callable[[], None], number: int) -> None:
    """When half of the file is on the disk."""
    torch_save = state.torch.save

    def halved(content: Any, file: Any) -> None:
        torch_save(content, buffer := io.BytesIO())
        data = buffer.getvalue()
        file.write(data[: len(data) // 2])
        file.flush()
        if content["lines"].count("\n") == number:
            strike()
        file.write(data[len(data) // 2 :])

    vars(state.torch)["save"] = halved


def _in_a_job(strike: Callable[[], None], number: int) -> None:
    """Before its second local step."""
    run, step = jobs.JobRunner.run, local.LocalModule.training_step
    now = 0

    def in_round(self: jobs.JobRunner, job: Job, round_number: int, private: Tree | None) -> Outcome:
        nonlocal now
        now = round_number
        return run(self, job, round_number, private)

    def watched(self: local.LocalModule, batch: Any, index: int) -> Any:
        if now == number and index == 1:
            strike()
        return step(self, batch, index)

    jobs.JobRunner.run = in_round  # type: ignore[method-assign]
    local.LocalModule.training_step = watched  # type: ignore[method-assign, assignment]


def _in_an_evaluation(strike: Callable[[], None], number: int) -> None:
    chunks, round_step = evaluate._chunks, FederatedModule.training_step
    now = 0

    def in_round(self: FederatedModule, batch: int, index: int) -> None:
        nonlocal now
        now = int(batch)
        round_step(self, batch, index)

    def watched(*arguments: Any) -> Any:
        for images_NCHW in chunks(*arguments):
            if now == number:
                strike()
            yield images_NCHW

    FederatedModule.training_step = in_round  # type: ignore[method-assign, assignment]
    vars(evaluate)["_chunks"] = watched


def _at_publishing(strike: Callable[[], None], number: int) -> None:
    """When `rounds.jsonl` is in place and `result.json` is not."""
    put_once = recorder.put_once

    def watched(path: Path, content: bytes) -> bytes:
        if path.name == "result.json":
            strike()
        return put_once(path, content)

    recorder.put_once = watched


_PUT: dict[str, Callable[[Callable[[], None], int], None]] = {
    "before a save": lambda strike, number: _around_a_save(strike, lambda: None, number),
    "in a save": _in_a_save,
    "after a save": lambda strike, number: _around_a_save(lambda: None, strike, number),
    "in a job": _in_a_job,
    "in an evaluation": _in_an_evaluation,
    "at publishing": _at_publishing,
}


def sleep_in_round(number: int) -> None:
    """In that round every local step of a client but the first one's takes half a second."""
    run, step = jobs.JobRunner.run, local.LocalModule.training_step
    slow = False

    def watched(self: jobs.JobRunner, job: Job, round_number: int, private: Tree | None) -> Outcome:
        nonlocal slow
        slow = round_number == number and job.key.client > 0
        return run(self, job, round_number, private)

    def slept(self: local.LocalModule, batch: Any, index: int) -> Any:
        if slow:
            time.sleep(0.5)
        return step(self, batch, index)

    jobs.JobRunner.run = watched  # type: ignore[method-assign]
    local.LocalModule.training_step = slept  # type: ignore[method-assign, assignment]


def sleep_before_rounds(seconds: float) -> None:
    """Rounds as long as a real run's."""
    begin = recorder.Recorder.on_train_batch_start

    def slow(*arguments: Any) -> None:
        time.sleep(seconds)
        begin(*arguments)

    recorder.Recorder.on_train_batch_start = slow  # type: ignore[method-assign, assignment]


def sleep_when_stopped(seconds: float) -> None:
    """Saving what is finished takes long once a signal has come."""
    save = recorder.Recorder.save

    def slow(self: recorder.Recorder) -> None:
        if received():
            time.sleep(seconds)
        save(self)

    recorder.Recorder.save = slow  # type: ignore[method-assign]
