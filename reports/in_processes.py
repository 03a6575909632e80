"""Run the tasks of a site in several forked processes, which end with this one."""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import Any

import torch

from benchmark.errors import FsslError
from benchmark.federated.processes import usable_cores

FEWEST = 40  # tasks: with fewer, starting further processes costs more time than it saves
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
MOST = 8  # processes, because each needs memory for the records that it changes

_tasks: Sequence[Callable[[], object]] = ()  # the tasks that forked processes share


def run_all(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the tasks in several processes and return their results in order. Raise the error of a task that fails.

    Most of the time of a site is spent on drawing. Processes are forked, so that they share the records of this one.
    If the system cannot fork safely, or if there are few tasks, all tasks run in this process.
    """
    processes = min(MOST, usable_cores()) if sys.platform == "linux" else 1
    if processes == 1 or len(tasks) < FEWEST:
        return [task() for task in tasks]
    global _tasks
    _tasks = tasks
    gc.freeze()  # saves a sixth of the time, because existing objects are not searched for garbage again
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads do not exist after a fork, and waiting for them would never end
    others = set(active_children())
    try:
        with ProcessPoolExecutor(processes, get_context("fork"), _end_with_parent, (os.getpid(),)) as pool:
            try:
                return list(pool.map(_run, range(len(tasks)), chunksize=4))
            except BrokenProcessPool:
                raise FsslError(
                    "a process that draws pages was killed, most likely for want of memory; "
                    "free some memory and type the same again"
                ) from None
            except BaseException:
                for process in set(active_children()) - others:
                    process.kill()  # nothing is lost, because its pages are not written yet
                raise
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()


def _end_with_parent(parent: int) -> None:
    """Make this forked process end with its parent, the only process that handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request above took effect
        os._exit(1)


def _run(number: int) -> Any:
    return _tasks[number]()
