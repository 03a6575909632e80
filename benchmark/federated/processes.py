"""Processes: how many the machine has room for, and how one is begun.

Loading torch and Lightning takes five CPU seconds. It is done once, by a server that the first process to start others
starts beside itself, and every process is forked from that one (multiprocessing's `forkserver`, Linux). Nothing ran in
the server, so that a forked process is as good as a fresh one; what else it should have of its parent, its
environment variables and its standard streams, it is given.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing import forkserver, reduction, resource_tracker, util
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

LOADED = ["benchmark.records.run", "benchmark.federated.worker"]  # by the server, for all that it forks
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # read when a process loads torch
# Elsewhere libraries may break in a forked process, or nothing forks.
METHOD = "forkserver" if sys.platform == "linux" else "spawn"


class Maker(Protocol):
    """Makes a process that calls target(*args) when it is started."""

    def __call__(self, target: Callable[..., None], *args: Any, daemon: bool) -> BaseProcess: ...


@contextlib.contextmanager
def births(threads: int = 1, *, fresh: bool = False) -> Iterator[Maker]:
    """Gives what makes processes. Those started in here have so many threads and are born with SIGINT blocked; a SIGINT
    or SIGTERM to this process is heard afterwards. `fresh`: each loads everything anew, as one should that will use
    another device than the CPU.

    The terminal sends Ctrl-C to all, and a process that is still loading Python would end with a traceback; so would
    one whose parent is interrupted before it has told it what to do. The parent's block is not enough for that: a
    thread that blocks nothing may take the signal, and Python raises it in the main thread. And multiprocessing's
    resource tracker is started first: when it starts with the first spawned process, it lifts the block just before
    that process is born (Python 3.11, resource_tracker.py, `ensure_running`).

    The server that processes are forked from is deaf to SIGTERM too, for ever: whoever ends all processes of a group
    would else take from us what became of those that have something to finish. It ends with the last of them. What else
    this process starts by multiprocessing's `forkserver` is forked from it too, and has to lift both blocks itself.
    """
    resource_tracker.ensure_running()
    came: list[int] = []
    ears: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        ears = {number: ear for number, ear in found.items() if ear is not None}  # None: not Python's to put back
    method = "spawn" if fresh else METHOD
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    for number in ears:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        if method == "forkserver" and not _server_runs():
            method = "spawn"
        signal.pthread_sigmask(signal.SIG_SETMASK, before | {signal.SIGINT})
        with environment_of(threads):
            yield partial(_process, method)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, ear in ears.items():
            signal.signal(number, ear)
        if came:
            signal.raise_signal(came[0])


def load_ahead() -> None:
    """Start the server now, for processes that are needed in a while: it loads beside whatever this process does."""
    with births():
        pass  # where there cannot be a server, each process will load everything itself


def _server_runs() -> bool:
    """Start the server if it is not there. False where it cannot: no folder for temporary files, or with so long a name
    that no socket can have one in it (108 bytes)."""
    forkserver.set_forkserver_preload(LOADED)
    try:
        with environment_of(1):
            forkserver.ensure_running()
    except OSError:
        return False
    _ended_with(os.getpid())
    _in_vain(os.getpid())
    return True


@cache
def _ended_with(pid: int) -> util.Finalize:
    """Wait for the server when this process ends, after its processes: nothing is left of it, and whoever measures the
    command finds all its CPU seconds. `_stop` is what Python's own tests end it with."""
    return util.Finalize(None, lambda: forkserver._forkserver._stop(), exitpriority=-2)  # type: ignore[attr-defined]


@cache
def _in_vain(pid: int) -> util.Finalize:
    """Before that, kill a server that nothing was forked from: it may still load, and nobody should wait for it."""
    server: Any = forkserver._forkserver
    return util.Finalize(None, lambda: os.kill(server._forkserver_pid, signal.SIGKILL), exitpriority=-1)


def _process(method: str, target: Callable[..., None], *args: Any, daemon: bool) -> BaseProcess:
    if method == "forkserver":
        _in_vain(os.getpid()).cancel()
    context: Any = multiprocessing.get_context(method)
    made: BaseProcess = context.Process(target=_live, args=(Surroundings(), target, *args), daemon=daemon)
    return made


class Surroundings:
    """Environment variables and standard output and error of the process that starts another, as they are then.

    They are taken when it is sent to that process, and are in force there when it is received.
    """

    def __getstate__(self) -> tuple[dict[str, str], dict[int, Any]]:
        return dict(os.environ), {stream: reduction.DupFd(stream) for stream in (1, 2) if _is_open(stream)}

    def __setstate__(self, state: tuple[dict[str, str], dict[int, Any]]) -> None:
        variables, streams = state
        os.environ.clear()
        os.environ.update(variables)
        for stream, sent in streams.items():
            if (given := sent.detach()) != stream:
                os.dup2(given, stream)
                os.close(given)


def _is_open(stream: int) -> bool:
    try:
        os.fstat(stream)
    except OSError:
        return False
    return True


def _live(_surroundings: Surroundings, target: Callable[..., None], *args: Any) -> None:
    """The life of a process. It is deaf to SIGINT until it says otherwise."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    target(*args)


@contextlib.contextmanager
def environment_of(threads: int) -> Iterator[None]:
    """Processes started in here load torch for so many threads."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
