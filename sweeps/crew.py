"""Processes that train runs, one run at a time each, each on one device. What they hold on disk is theirs
(`records.lease`): one that dies takes nothing with it but the rounds since its last checkpoint."""

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.federated.start import hear, starting

CPU = "cpu"  # the device of runs that need no other: any number of processes share it


class RunFailed(FsslError):
    """A run ended with an error that is not the user's, or its process was killed again and again."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a run. `error`: None where its record is written; `died`: what ended its process, if it died.

    `here`: whether it trained; not, where another process had finished the run in the meantime. `moved`: nothing is
    wrong with the run, but where it was trained is gone; it goes on elsewhere.
    """

    run: Experiment
    here: bool = False
    error: FsslError | None = None
    died: str | None = None  # for people: "SIGKILL", "exit code 3"
    moved: bool = False


@dataclass(kw_only=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    device: str
    run: Experiment | None = None


class Crew:
    """Up to `size` processes, started when there is work for them, as many on each of `devices` as on any other: in
    this order, and one that ends leaves its place to the next. Close it after use (`contextlib.closing`).
    """

    def __init__(
        self, size: int, results: Path, data_root: Path | None, patience: float, devices: Sequence[str] = (CPU,)
    ) -> None:
        self.size = size
        self._results, self._data_root, self._patience = results, data_root, patience
        self._devices = tuple(devices)
        self._workers: list[_Worker] = []

    @property
    def running(self) -> set[Experiment]:
        return {worker.run for worker in self._workers if worker.run is not None}

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.size

    @property
    def places(self) -> dict[int, str]:
        """The device of each process, by its number."""
        return {worker.process.pid: worker.device for worker in self._workers if worker.process.pid is not None}

    def start(self, run: Experiment) -> None:
        """Give the run to a process without work. Needs `has_room`."""
        worker = next((worker for worker in self._workers if worker.run is None), None) or self._hire()
        worker.run = run
        with contextlib.suppress(OSError):  # it died without work: `ended` finds that out
            worker.connection.send(run)

    def _hire(self) -> _Worker:
        mine, theirs = multiprocessing.Pipe()
        device = least_used(self._devices, [worker.device for worker in self._workers])
        arguments = (theirs, self._results, self._data_root, self._patience, device)
        with starting(fresh=device != CPU) as context:  # whole, or not at all: an interrupt finds it on the list
            worker = _Worker(process=context.Process(target=_serve, args=arguments), connection=mine, device=device)
            worker.process.start()
            theirs.close()
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
                    yield Ended(run=run, died=_said(worker.process.exitcode or 0))
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


def least_used(devices: Sequence[str], hired: Sequence[str]) -> str:
    """The device with the fewest processes; the first of several."""
    return min(devices, key=hired.count)


def _said(code: int) -> str:
    """An exit code of `multiprocessing` in words."""
    if code == -signal.SIGKILL:
        return "SIGKILL (too little memory?)"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _serve(connection: Connection, results: Path, data_root: Path | None, patience: float, device: str) -> None:
    """A worker's life: runs come in; whether it trained, and None or an error, go out, until the other end is gone."""
    hear()
    while True:
        try:
            experiment = connection.recv()
        except EOFError:
            return
        told = attempted(experiment, results, data_root, patience, device)
        try:
            connection.send(told)
        except OSError:
            return  # nobody is there any more to be told


def attempted(
    experiment: Experiment, results: Path, data_root: Path | None, patience: float, device: str
) -> tuple[bool, FsslError | None]:
    """Train in this process: whether it did, and None or the error, where its record is not written."""
    import pytorch_lightning as pl

    from benchmark.records.run import run

    class Begun(pl.Callback):
        """`here` turns true when the first round begins."""

        here = False

        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.here = True

    begun = Begun()
    try:
        run(
            experiment,
            results,
            data_root=data_root,
            callbacks=[begun],
            engine="reference",
            device=None if device == CPU else _current(device),
            patience=patience,
        )
    except FsslError as found:
        return begun.here, found
    except Exception as found:
        traceback.print_exc(file=sys.stderr)
        return begun.here, RunFailed(f"cell {experiment.cell_key}, seed {experiment.seed}: failed with {found!r}")
    return begun.here, None


def _current(device: str) -> str:
    """The device, made the one that whatever names none takes in this process: no context is opened on another."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    return device
