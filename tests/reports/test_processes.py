"""Tasks in several processes give what they give in one, in order."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmark.errors import CannotWrite, FsslError
from reports.in_processes import FEWEST, run_all
from tests.conftest import ROOT, alive, wait_until


def square(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


def refuse() -> tuple[int, int]:
    raise CannotWrite("full")


@pytest.mark.parametrize("many", [FEWEST - 1, 2 * FEWEST])
def test_results_come_in_order(many: int) -> None:
    results = run_all([partial(square, number) for number in range(many)])
    squares = [number**2 for number in range(many)]
    assert [number for number, _ in results] == squares
    assert (os.getpid() in {process for _, process in results}) == (many < FEWEST or len(os.sched_getaffinity(0)) == 1)


def test_an_error_of_a_task_is_raised_here() -> None:
    tasks: list[Callable[[], tuple[int, int]]] = [partial(square, number) for number in range(FEWEST)]
    with pytest.raises(CannotWrite, match="full"):
        run_all([*tasks, refuse])


def test_tasks_that_compute_end_although_this_process_has_computed():
    """OpenMP's threads are not there after a fork, and a task that shares its work with them would wait for ever."""
    script = """
import torch
from reports.in_processes import run_all

def task():
    return float(torch.ones(4_000_000).add(1).sum())

torch.set_num_threads(2)
task()
print(sum(run_all([task] * 60)), torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["480000000.0", "2"], done.stderr


def draw_without_end(folder: Path) -> None:
    """Draw as a command does, with the signals of a fresh process."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

    def task() -> None:
        (folder / f"{os.getpid()}").touch()
        time.sleep(60)

    run_all([task] * 60)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core draws alone")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT])
def test_processes_that_draw_end_with_their_command(number: signal.Signals, tmp_path: Path) -> None:
    """The command is a forked process, which has torch loaded."""
    process = multiprocessing.get_context("fork").Process(target=draw_without_end, args=(tmp_path,))
    process.start()
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1)
    os.kill(process.pid or 0, number)
    process.join(30)
    assert process.exitcode
    wait_until(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()), 30)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core draws alone")
def test_one_that_is_killed_for_want_of_memory_is_one_line() -> None:
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(FsslError, match="memory"):
        run_all([killed] * FEWEST)
