"""Processes that are born deaf to the keyboard's interrupt: the terminal sends it to all, and one that is still loading
Python would end with a traceback."""

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def born_deaf() -> Iterator[None]:
    """Processes started in here are born with SIGINT blocked; what comes meanwhile is heard afterwards.

    multiprocessing's resource tracker is started first: when it starts with the first spawned process, it lifts the
    block just before that process is born (Python 3.11, resource_tracker.py, `ensure_running`).
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
