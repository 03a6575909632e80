"""Budgets: words, which runs fit, and the gate that keeps to them. Expected numbers are added up in the docstrings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import ConfigError
from sweeps.budget import Budget, Gate, fitting, parsed
from sweeps.status import in_words
from tests.conftest import tiny_experiment

RUNS = [tiny_experiment().with_seed(seed) for seed in range(5)]
SECONDS = dict(zip(RUNS, (50.0, 40.0, 30.0, 20.0, 10.0), strict=True))


@pytest.mark.parametrize(
    ("word", "seconds", "kind"),
    [
        ("2h", 7200, "wall"),
        ("90m", 5400, "wall"),
        ("30s", 30, "wall"),
        ("0.5h", 1800, "wall"),
        ("4core-h", 4 * 3600, "core"),
        ("30 core-min", 1800, "core"),
    ],
)
def test_words(word, seconds, kind):
    assert parsed(word) == Budget(seconds=seconds, kind=kind)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (99, "99 s"), (100, "1.7 min"), (120, "2 min"), (150, "2.5 min"), (720, "12 min"), (7200, "2 h")],
)
def test_times_for_people(seconds, said):
    assert in_words(seconds) == said


@pytest.mark.parametrize("word", ["", "2", "h", "2hours", "-1h", "0h", "2cpu-h", "1e3s", "2h30m"])
def test_what_is_no_budget_says_what_would_be(word):
    with pytest.raises(ConfigError, match="write it as 90m, 2h or 4core-h"):
        parsed(word)


@pytest.mark.parametrize(
    ("kind", "lanes", "left", "fits", "used"),
    [
        # One lane: 50 + 40 > 80, so 40 is passed over; 50 + 30 = 80 fits exactly, and nothing after it.
        ("wall", 1, 80.0, [0, 2], 80.0),
        # Two lanes: 50 and 40; 30 ends at 70 on the second; 20 at 70 on the first; 10 at 80.
        ("wall", 2, 80.0, [0, 1, 2, 3, 4], 80.0),
        # Core time is used up by all lanes together: as one lane.
        ("core", 2, 80.0, [0, 2], 80.0),
        ("wall", 2, 9.0, [], 0.0),
    ],
)
def test_what_fits_by_hand(kind, lanes, left, fits, used):
    found = fitting(RUNS, SECONDS.__getitem__, left, kind, lanes)
    assert list(found.taken) == [RUNS[index] for index in fits] and found.seconds == used
    assert set(found.taken) | set(found.left_out) == set(RUNS) and not set(found.taken) & set(found.left_out)


@given(
    costs=st.lists(st.floats(1, 100), min_size=5, max_size=5),
    left=st.floats(0, 400),
    lanes=st.integers(1, 4),
    kind=st.sampled_from(["wall", "core"]),
)
def test_a_budget_is_never_overdrawn_and_what_is_left_out_would_overdraw_it(costs, left, lanes, kind):
    seconds = dict(zip(RUNS, costs, strict=True))
    found = fitting(RUNS, seconds.__getitem__, left, kind, lanes)
    total = sum(seconds[run] for run in found.taken)
    assert found.seconds <= left and total <= left * (lanes if kind == "wall" else 1)
    for run in found.left_out:  # at its turn no lane had room, so even the mean of the lanes is too full at the end
        assert seconds[run] + found.seconds > left


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_run_is_started_only_while_it_fits():
    """100 s less 3 to stop. At 40 s, 57 are left: 50 fits. At 60 s, 37: 40 does not, 30 does. At 97 s all stops."""
    clock = Clock()
    gate = Gate(Budget(seconds=100.0), clock=clock)
    gate.expect(SECONDS)
    clock.now = 40.0
    assert gate.admits(RUNS[0]) and not gate.is_closed()
    clock.now = 60.0
    assert not gate.admits(RUNS[1]) and gate.admits(RUNS[2]) and gate.refused == {RUNS[1]}
    clock.now = 96.9
    assert not gate.is_closed()
    clock.now = 97.0
    assert gate.is_closed()


def test_core_time_is_promised_to_what_is_at_work():
    """100 s of CPU time, two runs of 50 and 40 s at work: 10 s fit beside them, 20 do not. When 60 are used after 30 s
    on two cores, the two still have a claim on 20 + 10, and 10 more fit."""
    clock, used = Clock(), [0.0]
    gate = Gate(Budget(seconds=100.0, kind="core"), clock=clock, used=lambda: used[0])
    gate.expect(SECONDS)
    assert gate.admits(RUNS[0]) and gate.admits(RUNS[1])
    assert not gate.admits(RUNS[3])
    clock.now, used[0] = 30.0, 60.0
    assert gate.admits(RUNS[4])
    used[0] = 100.0
    assert gate.is_closed()


def test_what_a_run_without_a_result_had_claimed_is_free_again():
    """It was expected to use 80 of 100 core-seconds, and diverged at once."""
    gate = Gate(Budget(seconds=100.0, kind="core"), clock=Clock(), used=lambda: 1.0)
    gate.expect({RUNS[0]: 80.0, RUNS[1]: 30.0, RUNS[2]: 30.0})
    assert gate.admits(RUNS[0]) and not gate.admits(RUNS[1])
    gate.gone(RUNS[0])
    assert gate.admits(RUNS[2])


def test_estimates_are_corrected_by_outcomes():
    """One run of 50 s took 100: it counts as much as the estimates' own weight of one run of 50, (100 + 50)/(50 + 50).
    With a second of 40 that took 80, and the mean of 45 as the estimates' own: (180 + 45)/(90 + 45) = 5/3."""
    gate = Gate(Budget(seconds=1000.0), clock=Clock())
    assert gate.correction == 1.0
    gate.ended(RUNS[0], 50.0, 100.0)
    assert gate.correction == pytest.approx(1.5)
    gate.ended(RUNS[1], 40.0, 80.0)
    assert gate.correction == pytest.approx(5 / 3)
    gate.expect({RUNS[2]: 600.0})
    assert not gate.admits(RUNS[2])  # 600 x 5/3 = 1000 s, of which 3 are for stopping
