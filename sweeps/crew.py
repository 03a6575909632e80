"""Spawned processes that train runs, one run at a time each. What they hold on disk is theirs (`tracking.leases`):
one that dies takes nothing with it but the rounds since its last checkpoint."""

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from benchmark.errors import FsslError
from benchmark.experiment import Experiment


class RunFailed(FsslError):
    """A run ended with an error that is not the user's, or its process was killed again and again."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a run. `error`: None where its record is written; `died`: how its process ended, if it did.

    `here`: whether it trained; not, where another process had finished the run in the meantime.
    """

    run: Experiment
    here: bool = False
    error: FsslError | None = None
    died: int | None = None  # exit code, -9 for SIGKILL


@dataclass(kw_only=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    run: Experiment | None = None


class Crew:
    """Up to `size` processes, started when there is work for them. Close it after use (`contextlib.closing`)."""

    def __init__(self, size: int, results: Path, data_root: Path | None, patience: float) -> None:
        self._size, self._arguments = size, (results, data_root, patience)
        self._workers: list[_Worker] = []

    @property
    def running(self) -> set[Experiment]:
        return {worker.run for worker in self._workers if worker.run is not None}

    @property
    def has_room(self) -> bool:
        return len(self.running) < self._size

    def start(self, run: Experiment) -> None:
        """Give the run to a process without work. Needs `has_room`."""
        worker = next((worker for worker in self._workers if worker.run is None), None) or self._hire()
        worker.run = run
        with contextlib.suppress(OSError):  # it died without work: `ended` finds that out
            worker.connection.send(run)

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=False)
        process.start()
        theirs.close()
        worker = _Worker(process=process, connection=mine)
        self._workers.append(worker)
        return worker

    def ended(self, timeout: float) -> Iterator[Ended]:
        """The runs that ended, after at most `timeout` seconds."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection), timeout):
            assert isinstance(connection, Connection)
            worker = by_connection[connection]
            run = worker.run
            try:
                here, error = connection.recv()
            except (EOFError, OSError):
                worker.process.join()
                connection.close()
                self._workers.remove(worker)
                if run is not None:
                    yield Ended(run=run, died=worker.process.exitcode)
            else:
                assert run is not None
                worker.run = None
                yield Ended(run=run, here=here, error=error)

    def stop(self) -> None:
        """Runs are kept up to their last finished round; the processes end."""
        for worker in self._workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Wait for the processes, which end when their run does. Being interrupted here ends them at once."""
        try:
            for worker in self._workers:
                worker.connection.close()
            for worker in self._workers:
                worker.process.join()
        except BaseException:
            for worker in self._workers:
                worker.process.kill()
            raise


def _serve(connection: Connection, results: Path, data_root: Path | None, patience: float) -> None:
    """A worker's life: runs come in; whether it trained, and None or an error, go out, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to all: the parent passes it on
    from benchmark.tracking.run import run
    from sweeps.begun import Begun

    while True:
        try:
            experiment = connection.recv()
        except EOFError:
            return
        error: FsslError | None = None
        begun = Begun()
        try:
            run(experiment, results, data_root=data_root, callbacks=[begun], patience=patience)
        except FsslError as found:
            error = found
        except Exception as found:
            traceback.print_exc(file=sys.stderr)
            error = RunFailed(f"cell {experiment.cell_key}, seed {experiment.seed}: failed with {found!r}")
        try:
            connection.send((begun.here, error))
        except OSError:
            return  # nobody is there any more to be told
