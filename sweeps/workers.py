"""The workers of a launch on this machine: processes on the cores or on given devices, with one run at a time each.

With `together`, a process trains several runs of one cell at a time, and their jobs train as one.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmark.errors import ConfigError, DataError, FsslError
from benchmark.experiment import Experiment
from benchmark.failures import failure_of
from benchmark.federated.processes import CPU, end_with_parent, process_context
from sweeps.launcher import RunDied, RunFailed, named

if TYPE_CHECKING:  # loads torch
    from pytorch_lightning import Callback

    from benchmark.federated.stacked.together import Seat

SECONDS_TO_SAVE = 45.0  # from the request to stop until a process is killed, so that all end within a minute
SECONDS_TO_END = 0.5  # of a killed fork server, which counts as alive until then, so that no new one is started


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The settings for mirroring the runs of a launch to W&B while they are trained."""

    mode: Literal["online", "offline"]
    cells: Mapping[str, str]  # cell key -> the name of the cell, such as "ssfl/tab2:FedAvg/full"


@dataclass(kw_only=True)
class _Worker:
    """A process that trains lists of runs in sequence."""

    device: str
    process: BaseProcess
    pipe: Connection  # receives lists of runs, returns (place, error or None) of each run; closed if it dies
    runs: dict[int, Experiment] = field(default_factory=dict)  # unfinished runs by place in the list


class LocalWorkers:
    """Up to `processes` processes that start when there is work for them, and are distributed evenly among `devices`.

    `together` is the number of runs of one cell that a process trains at a time with the stacked engine. If it is None,
    a process trains one run at a time with the pool engine.
    """

    def __init__(
        self,
        processes: int,
        results: Path,
        devices: Sequence[str] = (CPU,),
        together: int | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.size = processes * (together or 1)
        self._processes, self._results, self._devices = processes, results, tuple(devices)
        self._together, self._mirror = together, mirror
        self._gathered: list[Experiment] = []  # runs that wait for a process; only with `together`
        self._apart = set[Experiment]()  # runs of a process that died; a different run of it may be the cause
        self._workers: list[_Worker] = []
        self._until: float | None = None  # time for killing processes that are stopping

    def start(self, run: Experiment) -> None:
        if self._together is None:
            self._send([run])
        else:
            self._gathered.append(run)  # `ended` sends them after all runs have been added

    def _send(self, runs: Sequence[Experiment]) -> None:
        """Send these runs to a process, which trains them. Raise RunDied if the process has died."""
        idle = [worker for worker in self._workers if not worker.runs]
        worker = idle[0] if idle else self._new_worker()
        worker.runs = dict(enumerate(runs))
        try:
            worker.pipe.send(runs)
        except OSError:
            raise self._death_of(worker) from None

    def _hand_out(self) -> Iterator[tuple[Experiment, FsslError]]:
        """Send gathered runs to idle processes, with runs of one cell for each. Yield runs that cannot start."""
        while self._gathered and sum(bool(worker.runs) for worker in self._workers) < self._processes:
            first = self._gathered[0]
            alike = [run for run in self._gathered if run.cell_key == first.cell_key and run not in self._apart]
            runs = [first] if first in self._apart else alike[: self._together]
            self._gathered = [run for run in self._gathered if run not in runs]
            try:
                self._send(runs)
            except RunDied as death:
                for run in runs:
                    yield run, death

    def _new_worker(self) -> _Worker:
        """Start a process on the least used device. Raise RunDied if it cannot start."""
        taken = [worker.device for worker in self._workers]  # a device that is named twice gets twice the number
        device = min(self._devices, key=lambda device: taken.count(device) / self._devices.count(device))
        with process_context(fresh=device != CPU) as context:
            pipe, end_of_worker = context.Pipe()
            orders = (end_of_worker, self._results, device, self._together, self._mirror)
            process = context.Process(target=_work, args=orders)
            try:
                process.start()
            except (OSError, EOFError) as error:  # memory is short, or the fork server was killed
                time.sleep(SECONDS_TO_END)
                raise RunDied(f"an error at its start ({error})") from None
            finally:
                end_of_worker.close()
            worker = _Worker(device=device, process=process, pipe=pipe)
            self._workers.append(worker)  # before a pending signal is handled, which must also stop this process
        return worker

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        yield from self._hand_out()
        pipes = {worker.pipe: worker for worker in self._workers if worker.runs}
        for pipe in wait(list(pipes), timeout):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                place, error = worker.pipe.recv()
            except (EOFError, OSError):
                death = self._death_of(worker)
                self._apart.update(worker.runs.values())
                for run in worker.runs.values():
                    yield run, death
            else:
                yield worker.runs.pop(place), error

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
                worker.pipe.close()  # an idle process ends now, and the others end after their runs
            for worker in self._workers:
                worker.process.join(None if self._until is None else max(0.0, self._until - time.monotonic()))
                if worker.process.is_alive():  # it does not react; its last save is complete
                    worker.process.kill()
                    worker.process.join()
        except BaseException:
            for worker in self._workers:
                worker.process.kill()
            raise


def _in_words(code: int) -> str:
    """Describe an exit code of `multiprocessing`, which is negative for a signal."""
    if code == -signal.SIGKILL:
        return "SIGKILL (too little memory?)"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(pipe: Connection, results: Path, device: str, together: int | None, mirror: Mirror | None) -> None:
    """Receive lists of runs, train them, and send the results, until the launch ends. A worker process calls this."""
    end_with_parent(signal.SIGTERM)  # stops its run
    with contextlib.suppress(EOFError, OSError):  # the launch has ended or was killed
        while True:
            runs = pipe.recv()
            if together is None:
                pipe.send((0, attempt(runs[0], results, device, mirror=mirror)))
            else:
                attempt_together(runs, results, device, lambda place, error: pipe.send((place, error)), mirror)


def attempt_together(
    runs: Sequence[Experiment],
    results: Path,
    device: str,
    tell: Callable[[int, FsslError | None], object],
    mirror: Mirror | None = None,
) -> None:
    """Train runs of one cell together in this process. Call `tell` with the place and the error of each when it ends.

    SIGTERM stops all runs at their last finished round.
    """
    from benchmark.federated.stacked.together import Together
    from benchmark.federated.stopping import StopOnSignal
    from benchmark.records.cpu_clock import CpuClock

    def work(place: int, seat: "Seat") -> None:
        tell(place, attempt(runs[place], results, device, seat, mirror))

    with StopOnSignal(at_once=False).listening():
        works = [partial(work, place) for place in range(len(runs))]
        for ended in Together(lap=CpuClock().lap).play(works):
            if ended is not None:  # the launch has ended, and nobody reads the results
                raise ended


def attempt(
    experiment: Experiment,
    results: Path,
    device: str,
    seat: "Seat | None" = None,
    mirror: Mirror | None = None,
) -> FsslError | None:
    """Train a run in this process. Return its error, or None if its run record is written.

    `seat` is the run's seat if it trains together with other runs of its cell.
    """
    from benchmark.federated.engines import EngineOptions
    from benchmark.records.run import run
    from benchmark.verdicts.families import begun_under

    engine = EngineOptions(engine="pool", workers=1, devices=(device,))
    if seat is not None:
        engine = EngineOptions(engine="stacked", devices=(device,))
    try:
        with _mirrored(experiment, results, mirror) as callbacks:
            run(
                experiment,
                results,
                callbacks=callbacks,
                engine=engine,
                begun_under=partial(begun_under, experiment, results),
                seat=seat,
            )
    except (ConfigError, DataError) as error:
        return type(error)(f"{named(experiment)}: {error}")
    except FsslError as error:
        return error
    except Exception as error:
        failure = failure_of(error)
        if failure is None:  # a bug of this suite; the launch's process does not have its traceback
            traceback.print_exc(file=sys.stderr)
            return RunFailed(f"{named(experiment)} failed with {error!r}")
        return RunFailed(f"{named(experiment)} failed with {failure.line()}", failure)
    return None


@contextlib.contextmanager
def _mirrored(experiment: Experiment, results: Path, mirror: Mirror | None) -> "Iterator[list[Callback]]":
    """Yield the callbacks that mirror the run in W&B, or none without a mirror."""
    if mirror is None:
        yield []
        return
    from benchmark.records.record import run_folder
    from benchmark.records.wandb_mirror import mirrored

    os.environ.setdefault("WANDB_SILENT", "true")  # without this, each run prints three lines
    cell = mirror.cells.get(experiment.cell_key)
    words = {} if cell is None else {"cell": cell}
    folder = run_folder(results, experiment)
    with mirrored(experiment, folder, words=words, mode=mirror.mode, wandb_folder=results / "wandb") as callbacks:
        yield callbacks
