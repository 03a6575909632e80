"""Run experiments in separate processes that a test may kill, stop and wake. They are forked after all imports."""

import itertools
import os
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.federated.engines import EngineOptions
from benchmark.federated.processes import process_context
from benchmark.records.run import run
from benchmark.records.run_lock import PATIENCE
from tests.conftest import status_of, wait_until
from tests.records import faults

SECONDS_TO_END = 180.0
_COUNT = itertools.count()


@dataclass
class End:
    """`code`: as `subprocess` has it. `said`: on standard error. `left`: processes that did not end with it."""

    code: int | None
    said: str
    left: list[int]


class Child:
    """A run, saved after every round, in a process that leads a session of its own: what is left of it is found."""

    def __init__(
        self,
        experiment: Experiment,
        results: Path,
        *,
        engine: str = "reference",
        workers: int | None = None,
        patience: float = PATIENCE,
        **wrong: Any,
    ) -> None:
        """Start the process; `wrong` has functions of `tests.records.faults`, and the argument of each."""
        self._results = results
        self._said = Path(f"{results}.said-{next(_COUNT)}")  # outside the results, whose disk may be full
        options = EngineOptions(engine=engine, workers=workers)
        with process_context() as context:
            self._process = context.Process(
                target=_run, args=(experiment, results, options, patience, wrong, self._said)
            )
            self._process.start()
        self.pid: int = self._process.pid

    def wait_for_rounds(self, number: int) -> None:
        """Wait until this number of rounds is saved."""
        wait_until(lambda: not self._process.is_alive() or _saved_rounds(self._results) >= number, SECONDS_TO_END)

    def wait_until_stopped(self) -> None:
        """Wait until the process is stopped by SIGSTOP."""
        wait_until(lambda: not self._process.is_alive() or status_of(self.pid)[:1] == ["T"], SECONDS_TO_END)

    def end(self, seconds: float = SECONDS_TO_END) -> End:
        """Wait for its end; after so many seconds it is killed."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        said = self._said.read_text() if self._said.exists() else ""
        return End(self._process.exitcode, said, _survivors(self.pid))

    def join(self, seconds: float) -> None:
        self._process.join(seconds)


def _run(
    experiment: Experiment, results: Path, engine: EngineOptions, patience: float, wrong: dict[str, Any], said: Path
) -> None:
    """Run one experiment in the process.

    Its workers are also forked, because starting them as in production needs seconds.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    file = os.open(said, os.O_CREAT | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        faults.save_every_round()
        faults.forked_workers()
        for name, argument in wrong.items():
            getattr(faults, name)(argument)
        run(experiment, results, engine=engine, patience=patience)
        code = 0
    except FsslError as error:
        os.write(2, f"fssl: {error}\n".encode())
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _saved_rounds(results: Path) -> int:
    count = 0
    for path in results.glob("runs/*/*/*s.jsonl"):  # progress.jsonl, rounds.jsonl
        with suppress(FileNotFoundError):  # a run that ends in this moment
            count += path.read_bytes().count(b"\n")
    return count


def members_of(session: int) -> list[int]:
    """Return the processes of the session that have not ended."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if status_of(pid)[3:] == [str(session)]]


def _survivors(session: int, seconds: float = 30.0) -> list[int]:
    """Return the processes of the session that do not end within this number of seconds."""
    deadline = time.monotonic() + seconds
    while (left := members_of(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
