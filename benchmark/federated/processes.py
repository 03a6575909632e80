"""Processes: how many the machine has room for, and how one is begun."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any


@contextlib.contextmanager
def born_deaf() -> Iterator[None]:
    """Processes started in here are born with SIGINT blocked; a SIGINT or SIGTERM to this one is heard afterwards.

    The terminal sends Ctrl-C to all, and a process that is still loading Python would end with a traceback; so would
    one whose parent is interrupted before it has told it what to do. The parent's block is not enough for that: a
    thread that blocks nothing may take the signal, and Python raises it in the main thread. And multiprocessing's
    resource tracker is started first: when it starts with the first spawned process, it lifts the block just before
    that process is born (Python 3.11, resource_tracker.py, `ensure_running`).
    """
    resource_tracker.ensure_running()
    came: list[int] = []
    ears: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        ears = {number: ear for number, ear in found.items() if ear is not None}  # None: not Python's to put back
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    for number in ears:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, ear in ears.items():
            signal.signal(number, ear)
        if came:
            signal.raise_signal(came[0])


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
