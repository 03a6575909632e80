"""The workers of a launch on this machine: processes of one thread each, on the cores or on given devices."""

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmark.errors import ConfigError, DataError, FsslError
from benchmark.experiment import Experiment
from benchmark.federated.processes import CPU, end_with_parent, process_context
from sweeps.launcher import RunDied, RunFailed, named

SECONDS_TO_SAVE = 45.0  # from the request to stop until a process is killed: all of them end within a minute
SECONDS_TO_END = 0.5  # of a killed fork server: until then it passes for alive, and a new one is not started


@dataclass(kw_only=True)
class _Worker:
    """A process that trains one run after another."""

    device: str
    process: BaseProcess
    pipe: Connection  # takes runs, and gives the error of each, or None; closed where the process dies
    run: Experiment | None = None


class LocalWorkers:
    """Up to `size` processes, started when there is work for them, and shared evenly among `devices`."""

    def __init__(self, size: int, results: Path, devices: Sequence[str] = (CPU,)) -> None:
        self.size, self._results, self._devices = size, results, tuple(devices)
        self._workers: list[_Worker] = []
        self._until: float | None = None  # when processes that were asked to stop are killed

    def start(self, run: Experiment) -> None:
        idle = [worker for worker in self._workers if worker.run is None]
        worker = idle[0] if idle else self._new_worker()
        worker.run = run
        try:
            worker.pipe.send(run)
        except OSError:
            raise self._death_of(worker) from None

    def _new_worker(self) -> _Worker:
        """Raises RunDied."""
        taken = [worker.device for worker in self._workers]  # one that is named twice takes twice as many
        device = min(self._devices, key=lambda device: taken.count(device) / self._devices.count(device))
        with process_context(fresh=device != CPU) as context:
            pipe, end_of_worker = context.Pipe()
            process = context.Process(target=_work, args=(end_of_worker, self._results, device))
            try:
                process.start()
            except (OSError, EOFError) as error:  # no memory for it, or the server that forks it was killed
                time.sleep(SECONDS_TO_END)
                raise RunDied(f"an error when it was started ({error})") from None
            finally:
                end_of_worker.close()
            worker = _Worker(device=device, process=process, pipe=pipe)
            self._workers.append(worker)  # before a signal that came meanwhile is heard, which is to stop it, too
        return worker

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        pipes = {worker.pipe: worker for worker in self._workers if worker.run is not None}
        for pipe in wait(list(pipes), timeout):
            worker = pipes[pipe]  # type: ignore[index]
            assert worker.run is not None
            run, worker.run = worker.run, None
            try:
                error = worker.pipe.recv()
            except (EOFError, OSError):
                error = self._death_of(worker)
            yield run, error

    def _death_of(self, worker: _Worker) -> RunDied:
        self._workers.remove(worker)
        worker.process.join()
        return RunDied(_in_words(worker.process.exitcode or 0))

    def stop(self) -> None:
        self._until = time.monotonic() + SECONDS_TO_SAVE
        for worker in self._workers:
            worker.process.terminate()

    def close(self) -> None:
        try:
            for worker in self._workers:
                worker.pipe.close()  # an idle process ends, the others after their runs
            for worker in self._workers:
                worker.process.join(None if self._until is None else max(0.0, self._until - time.monotonic()))
                if worker.process.is_alive():  # it does not hear: what it saved last is whole
                    worker.process.kill()
                    worker.process.join()
        except BaseException:
            for worker in self._workers:
                worker.process.kill()
            raise


def _in_words(code: int) -> str:
    """An exit code of `multiprocessing`."""
    if code == -signal.SIGKILL:
        return "SIGKILL (too little memory?)"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(pipe: Connection, results: Path, device: str) -> None:
    """The whole life of a worker process."""
    end_with_parent(signal.SIGTERM)  # stops its run
    with contextlib.suppress(EOFError, OSError):  # the launch is over, or was killed
        while True:
            pipe.send(attempt(pipe.recv(), results, device))


def attempt(experiment: Experiment, results: Path, device: str) -> FsslError | None:
    """Train a run in this process. Returns the error with which it ended; None where its record is written."""
    from benchmark.federated.engines import EngineOptions
    from benchmark.records.run import run
    from benchmark.verdicts.families import begun_under

    engine = EngineOptions(engine="pool", workers=1, devices=(device,))
    try:
        run(experiment, results, engine=engine, begun_under=partial(begun_under, experiment, results))
    except (ConfigError, DataError) as error:
        return type(error)(f"{named(experiment)}: {error}")
    except FsslError as error:
        return error
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return RunFailed(f"{named(experiment)}: failed with {error!r}")
    return None
