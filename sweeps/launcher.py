"""Launching runs: side by side in processes of this machine, one core and one thread each, or by other workers (Ray).

Two runs on two cores finish sooner than one run on both. Any number of launchers, on any number of machines that share
the folder of results, may be at the same runs: each run has one process at a time (`records.claim`), a launcher
passes over what others are at, and comes back to it when they have finished it, stopped, or died. A process that dies
takes nothing with it but the rounds since its last save.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from benchmark.errors import ConfigError, DataError, Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment
from benchmark.federated.start import hear, starting
from benchmark.records.claim import PATIENCE, is_held
from benchmark.records.record import is_recorded, run_folder

CPU = "cpu"  # the device of runs that need no other: any number of processes share it
MOST_DEATHS = 3  # of a run's process; then the run is left alone and the others go on
SECONDS_BETWEEN_LOOKS = 2.0  # at a run that another process is at


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


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a launch is."""

    running: set[Experiment]  # here or elsewhere
    finished: Sequence[Experiment]  # by whomever; with those that failed
    failed: int
    trained: int  # those of the finished that were trained here


Watch = Callable[[Standing], None]


class Workers(Protocol):
    """Who trains runs for a launcher."""

    @property
    def size(self) -> int: ...  # runs side by side at most
    @property
    def running(self) -> set[Experiment]: ...
    def start(self, run: Experiment) -> None: ...  # needs room: fewer running than `size`
    def ended(self, timeout: float) -> Iterator[Ended]: ...  # the runs that ended, after at most `timeout` seconds
    def stop(self) -> None: ...  # runs are kept up to their last finished round
    def close(self) -> None: ...  # wait until all have ended; being interrupted here ends them at once


def launch(
    workers: Workers,
    runs: Sequence[Experiment],
    results: Path,
    *,
    watch: Watch = lambda standing: None,
    patience: float = PATIENCE,
) -> Standing:
    """Let the workers train all runs, and close them. A failing run does not stop the others; the first error is raised
    in the end.

    What others are at is waited for. `patience`: see `records.run`. A run whose process is killed
    goes on from its last save, and is left alone the third time. Ctrl-C or SIGTERM stops the workers at their last
    finished round and raises Stopped; nothing is lost.
    """
    queue = _Queue(runs, results, patience)
    with _stopped_with_us(workers):
        while workers.running or queue.waiting:
            while len(workers.running) < workers.size and (run := queue.next()) is not None:
                workers.start(run)
            for ended in workers.ended(timeout=0.5):
                queue.note(ended)
            watch(queue.standing(workers.running))
            if queue.stopped:
                workers.stop()
                break
    if queue.failures:
        first, *others = queue.failures
        raise type(first)(f"{first}; {len(others)} more failed") if others else first
    return queue.standing(set())


class _Queue:
    """Which run is next, and what became of the others."""

    def __init__(self, runs: Sequence[Experiment], results: Path, patience: float) -> None:
        self.waiting = list(runs)
        self.failures: list[FsslError] = []
        self.stopped = False
        self._results, self._patience = results, patience
        self._finished: list[Experiment] = []
        self._trained = 0
        self._deaths: Counter[Experiment] = Counter()
        self._elsewhere: dict[Experiment, float] = {}  # when it was looked at last

    def next(self) -> Experiment | None:
        """The first run that nobody is at, taken out; what others have finished is put with the finished ones."""
        for run in list(self.waiting):
            if time.monotonic() - self._elsewhere.get(run, -SECONDS_BETWEEN_LOOKS) < SECONDS_BETWEEN_LOOKS:
                continue
            folder = run_folder(self._results, run)
            if is_recorded(self._results, run):
                self.waiting.remove(run)
                self._finished.append(run)
            elif is_held(folder, self._patience):
                self._elsewhere[run] = time.monotonic()
                continue
            else:
                self.waiting.remove(run)
                self._elsewhere.pop(run, None)
                return run
            self._elsewhere.pop(run, None)
        return None

    def note(self, ended: Ended) -> None:
        run, error = ended.run, ended.error
        if isinstance(error, RunningElsewhere):
            self._elsewhere[run] = time.monotonic()
        if isinstance(error, RunningElsewhere) or ended.moved:
            self.waiting.insert(0, run)
            return
        if ended.died is not None:
            self._deaths[run] += 1
            if self._deaths[run] < MOST_DEATHS:
                self.waiting.insert(0, run)
                return
            error = RunFailed(_killed(run, ended.died))
        if error is not None and not isinstance(error, Diverged):
            self.failures.append(error)
        else:
            self._trained += ended.here
        self.stopped = self.stopped or isinstance(error, Stopped)
        self._finished.append(run)

    def standing(self, running: set[Experiment]) -> Standing:
        return Standing(
            running=running | self._elsewhere.keys(),
            finished=tuple(self._finished),
            failed=len(self.failures),
            trained=self._trained,
        )


def _killed(run: Experiment, died: str) -> str:
    return (
        f"cell {run.cell_key}, seed {run.seed}: its process ended {MOST_DEATHS} times, last by {died}; "
        "the same command goes on from its last save"
    )


@contextlib.contextmanager
def _stopped_with_us(workers: Workers) -> Iterator[None]:
    """The workers are closed in the end, and stopped where anything goes wrong. Raises Stopped (Ctrl-C, SIGTERM)."""
    with sigterm_as_interrupt(), contextlib.closing(workers):
        try:
            yield
        except KeyboardInterrupt:
            workers.stop()
            raise Stopped("stopped; the same command goes on from the last saves") from None
        except BaseException:
            workers.stop()
            raise


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, which would end this process at once and leave its workers waiting, does what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(kw_only=True)
class _Slot:
    """A pool of one process: one that is killed breaks its own pool, and no other run's."""

    device: str
    pool: ProcessPoolExecutor
    process: BaseProcess
    future: "Future[tuple[bool, FsslError | None]]"
    run: Experiment | None


_starting = threading.Lock()  # a new process is told by who is there that was not there before


class LocalWorkers:
    """Up to `size` processes, started when there is work for them and shared evenly among `devices`; one that dies
    leaves its place to the next."""

    def __init__(
        self,
        size: int,
        results: Path,
        data_root: Path | None = None,
        patience: float = PATIENCE,
        devices: Sequence[str] = (CPU,),
    ) -> None:
        self.size = size
        self._with, self._devices = (results, data_root, patience), tuple(devices)
        self._slots: list[_Slot] = []

    @property
    def running(self) -> set[Experiment]:
        return {slot.run for slot in self._slots if slot.run is not None}

    @property
    def places(self) -> dict[int, str]:
        """The device of each process, by its number."""
        return {slot.process.pid: slot.device for slot in self._slots if slot.process.pid is not None}

    def start(self, run: Experiment) -> None:
        slot = next((slot for slot in self._slots if slot.run is None), None)
        if slot is not None:
            try:
                slot.future, slot.run = slot.pool.submit(attempted, run, *self._with, slot.device), run
                return
            except BrokenProcessPool:  # it died without work
                self._slots.remove(slot)
        device = min(self._devices, key=[slot.device for slot in self._slots].count)  # with the fewest
        with _starting, starting(fresh=device != CPU) as context:
            pool = ProcessPoolExecutor(1, context, initializer=begin_worker)
            before = set(multiprocessing.active_children())
            future = pool.submit(attempted, run, *self._with, device)
            (process,) = set(multiprocessing.active_children()) - before
            self._slots.append(_Slot(device=device, pool=pool, process=process, future=future, run=run))

    def ended(self, timeout: float) -> Iterator[Ended]:
        working = {slot.future: slot for slot in self._slots if slot.run is not None}
        if not working:
            time.sleep(timeout)
        for future in wait(working, timeout, FIRST_COMPLETED).done:
            slot = working[future]
            assert slot.run is not None
            run, slot.run = slot.run, None
            try:
                here, error = future.result()
            except BrokenProcessPool:
                slot.process.join()
                self._slots.remove(slot)
                yield Ended(run=run, died=_in_words(slot.process.exitcode or 0))
            else:
                yield Ended(run=run, here=here, error=error)

    def stop(self) -> None:
        for slot in self._slots:
            if slot.process.is_alive() and slot.process.pid is not None:
                os.kill(slot.process.pid, signal.SIGTERM)

    def close(self) -> None:
        try:
            for slot in self._slots:
                slot.pool.shutdown()
        except BaseException:
            for slot in self._slots:
                slot.process.kill()
            raise


def _in_words(code: int) -> str:
    """An exit code of `multiprocessing`."""
    if code == -signal.SIGKILL:
        return "SIGKILL (too little memory?)"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


_training = threading.Lock()


def begin_worker() -> None:
    """A worker's first act. The launcher passes Ctrl-C on as SIGTERM; where it died, a run is ended first."""
    hear()

    def leave_with_the_launcher() -> None:
        launcher = multiprocessing.parent_process()
        assert launcher is not None
        launcher.join()
        with _training:
            os.kill(os.getpid(), signal.SIGTERM)  # which ends it, as `hear` says

    threading.Thread(target=leave_with_the_launcher, daemon=True).start()


def attempted(
    experiment: Experiment, results: Path, data_root: Path | None, patience: float, device: str
) -> tuple[bool, FsslError | None]:
    """Train in this process: whether it did, and None or the error, where its record is not written."""
    import pytorch_lightning as pl
    import torch

    from benchmark.records.run import run
    from benchmark.verdicts.families import begun_under

    class Begun(pl.Callback):
        """`here` turns true when the first round begins."""

        here = False

        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.here = True

    begun = Begun()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)  # what names no device opens no context on another one
    try:
        with _training:
            run(
                experiment,
                results,
                data_root=data_root,
                callbacks=[begun],
                engine="pool" if device == CPU else "reference",
                workers=1 if device == CPU else None,
                device=None if device == CPU else device,
                patience=patience,
                begun_under=partial(begun_under, experiment, results),
            )
    except (ConfigError, DataError) as found:
        return begun.here, type(found)(f"cell {experiment.cell_key}, seed {experiment.seed}: {found}")
    except FsslError as found:
        return begun.here, found
    except Exception as found:
        traceback.print_exc(file=sys.stderr)
        return begun.here, RunFailed(f"cell {experiment.cell_key}, seed {experiment.seed}: failed with {found!r}")
    return begun.here, None
