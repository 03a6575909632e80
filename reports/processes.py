"""Tasks shared out to several processes: drawing takes most of the time of a site."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

Result = TypeVar("Result")
FEWEST = 40  # tasks, below which further processes are not worth their start
MOST = 8  # processes: each holds what it changes of the records

_tasks: Sequence[Callable[[], object]] = ()


def run_all(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """What each task returns, in order. Raises what a task raises.

    Processes are forked, so that they share the records of this one; where the system cannot fork safely, and for few
    tasks, all is done here.
    """
    processes = min(MOST, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1
    if processes == 1 or len(tasks) < FEWEST:
        return [task() for task in tasks]
    global _tasks
    _tasks = tasks
    gc.freeze()  # what is here is not looked through for garbage again: a sixth of the time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's are not there after a fork, and who counts on them waits for ever
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            return list(pool.map(_run, range(len(tasks)), chunksize=4))  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()


def _run(number: int) -> object:
    return _tasks[number]()
