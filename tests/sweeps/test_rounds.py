"""Many rounds counted from some of them, against the sum over all."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark.data.partition import Dirichlet
from benchmark.experiment import Federation
from benchmark.methods.semifl import SemiFL
from sweeps.cost import ESTIMATED, cost_of
from sweeps.rounds import ALL, WINDOW, over_rounds
from sweeps.work import Work
from tests.conftest import tiny_experiment


def constant(value: float, shape: str = "usual"):
    return Work(totals={"local_steps": value}), frozenset({(shape,)})


@pytest.mark.parametrize("rounds", [1, ALL, ALL + 1, 100, 6400])
@pytest.mark.parametrize("warm", [0, 1, 30])
def test_stretches_of_equal_rounds_are_summed_exactly(rounds, warm):
    """A warm start of 3 steps a round, then 7, and 5 more in the last round: the sum, from few rounds."""
    asked = []

    def count(number: int) -> tuple[Work, Any]:
        asked.append(number)
        return constant((3 if number <= warm else 7) + 5 * (number == rounds), "warm" if number <= warm else "usual")

    work, exact = over_rounds(count, rounds)
    expected = 3 * min(warm, rounds) + 7 * max(0, rounds - warm) + 5
    assert exact and work.total("local_steps") == expected
    assert len(asked) == len(set(asked)) <= ALL


def test_a_rhythm_of_ten_rounds_is_estimated_from_a_window():
    """Two in twenty rounds count 11, the others 1: 2 a round in the mean, and nobody calls it exact."""
    work, exact = over_rounds(lambda number: constant(11 if number % 10 == 0 else 1), 1000)
    assert not exact and WINDOW % 10 == 0
    assert work.total("local_steps") == pytest.approx(2000, abs=20)


def test_a_warm_start_before_random_cohorts_is_found():
    """30 rounds of 1 step, then cohorts of 90 to 110 steps: within 1 % of the true sum."""
    draws = np.random.default_rng(0).integers(90, 111, 2000)

    def count(number: int) -> tuple[Work, Any]:
        return constant(1, "warm") if number <= 30 else constant(int(draws[number - 1]))

    work, exact = over_rounds(count, 2000)
    assert not exact
    assert work.total("local_steps") == pytest.approx(30 + draws[30:].sum(), rel=0.05)


def test_unequal_clients_over_many_rounds_are_called_an_estimate():
    federation = Federation(K=5, C=2, rounds=200, epochs=1)
    experiment = replace(tiny_experiment(), method=SemiFL(), partition=Dirichlet(alpha=0.5), federation=federation)
    assert ESTIMATED in cost_of(experiment).notes
    assert ESTIMATED not in cost_of(replace(experiment, federation=replace(federation, C=5))).notes
