"""Tasks in several processes give what they give in one, in order."""

import os
from collections.abc import Callable
from functools import partial

import pytest

from benchmark.errors import CannotWrite
from reports.processes import FEWEST, run_all


def square(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


def refuse() -> tuple[int, int]:
    raise CannotWrite("full")


@pytest.mark.parametrize("many", [FEWEST - 1, 2 * FEWEST])
def test_results_come_in_order(many: int) -> None:
    results = run_all([partial(square, number) for number in range(many)])
    assert [number for number, _ in results] == [number**2 for number in range(many)]
    assert (os.getpid() in {process for _, process in results}) == (many < FEWEST or len(os.sched_getaffinity(0)) == 1)


def test_an_error_of_a_task_is_raised_here() -> None:
    tasks: list[Callable[[], tuple[int, int]]] = [partial(square, number) for number in range(FEWEST)]
    with pytest.raises(CannotWrite, match="full"):
        run_all([*tasks, refuse])
