"""The local launcher: runs side by side in spawned processes, one core and one thread each.

Two runs on two cores finish sooner than one run on both, and a process that dies takes one run with it, which
resumes from its checkpoint at the next call.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from benchmark.errors import Diverged, FsslError, Stopped
from benchmark.experiment import Experiment

Watch = Callable[[set[Experiment], Sequence[Experiment]], None]  # (running, finished so far)


class LaunchFailed(FsslError):
    """Some runs ended with an error; the others went on."""


def launch(
    runs: Sequence[Experiment],
    results: Path,
    *,
    data_root: Path | None,
    workers: int,
    watch: Watch,
) -> None:
    """Train all runs. A failing run does not stop the others; the first error is raised in the end.

    Ctrl-C or SIGTERM stops the workers at their last finished round and raises Stopped; nothing is lost.
    """
    if not runs:
        return
    os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    context = multiprocessing.get_context("spawn")
    workers = min(workers, len(runs))
    failures: list[BaseException] = []
    with (
        _sigterm_as_interrupt(),
        ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool,
    ):
        waiting = list(reversed(runs))
        running: dict[Future, Experiment] = {}
        finished: list[Experiment] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    experiment = waiting.pop()
                    running[pool.submit(_work, experiment, results, data_root)] = experiment
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    finished.append(running.pop(future))
                    error = future.exception()
                    if error is not None and not isinstance(error, Diverged):
                        failures.append(error)
                watch(set(running.values()), finished)
                if any(isinstance(error, BrokenProcessPool | Stopped) for error in failures):
                    break
        except KeyboardInterrupt:
            _stop(pool)
            raise Stopped("stopped; the same command goes on from the checkpoints") from None
        if failures:
            _stop(pool)
    _raise(failures)


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
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


def _raise(failures: Sequence[BaseException]) -> None:
    for error in failures:
        if isinstance(error, FsslError):
            raise error
    if failures:
        raise LaunchFailed(f"{len(failures)} runs failed, the first with {failures[0]!r}; run again to go on")


def _stop(pool: ProcessPoolExecutor) -> None:
    """Workers save their last finished round and end; work not yet started is dropped."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to all: the parent passes it on


def _work(experiment: Experiment, results: Path, data_root: Path | None) -> None:
    from benchmark.tracking.run import run

    run(experiment, results, data_root=data_root)
