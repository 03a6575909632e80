"""Processes: how many the machine has room for, and how one is begun."""

import contextlib
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def born_deaf() -> Iterator[None]:
    """Processes started in here are born with SIGINT blocked; what comes meanwhile is heard afterwards.

    The terminal sends Ctrl-C to all, and a process that is still loading Python would end with a traceback.
    multiprocessing's resource tracker is started first: when it starts with the first spawned process, it lifts the
    block just before that process is born (Python 3.11, resource_tracker.py, `ensure_running`).
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
