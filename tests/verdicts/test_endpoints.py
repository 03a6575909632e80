"""Endpoints and derived metrics of runs written by hand: every expected value is worked out in the docstring."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.integrate import trapezoid

from benchmark.records.copies import pack, unpack
from benchmark.records.record import RunRecord
from benchmark.verdicts.metrics import gain_at_end, is_private, is_smoothed, is_stateless, value_at, value_of
from tests.reports.fakes import make_cell, make_record

CELL = make_cell("a", {"method": "A"}, 40)


def run(accuracies: Mapping[int, float], rounds: int, joined: int = 0) -> RunRecord:
    """Make a run that was evaluated in these rounds."""
    lines = [{"round": t} | ({"test/accuracy": accuracies[t]} if t in accuracies else {}) for t in range(1, rounds + 1)]
    last = {"test/accuracy": accuracies[max(accuracies)]}
    record = make_record(CELL, 0, last, rounds=lines)
    return replace(record, experiment={"method": {"warm_start_rounds": joined}})


def test_the_gain_at_the_end_is_on_the_tenth_before():
    """Rounds 37 to 40 against 33 to 36: .7 - .5. Where those were not evaluated, against the last evaluation before."""
    assert gain_at_end(run({33: 0.4, 36: 0.6, 40: 0.7}, 40), "test/accuracy") == pytest.approx(0.2)
    assert gain_at_end(run({1: 0.1, 20: 0.6, 40: 0.7}, 40), "test/accuracy") == pytest.approx(0.1)
    assert gain_at_end(run({40: 0.7}, 40), "test/accuracy") is None


def test_speed_is_an_area_under_log_odds_given_back_as_an_accuracy():
    """Log-odds of .2, .5, .8 are -ln 4, 0, ln 4: over equal steps the mean is 0, of accuracy .5. A constant is itself.
    Rounds before clients take part do not count. One step of 1 and one of 3 rounds by SciPy's trapezoids."""
    assert value_at(run({10: 0.2, 20: 0.5, 30: 0.8}, 30), "test/accuracy", "speed") == pytest.approx(0.5)
    assert value_at(run({10: 0.9, 20: 0.9}, 20), "test/accuracy", "speed") == pytest.approx(0.9)
    joined = run({2: 0.1, 5: 0.1, 10: 0.2, 20: 0.5, 30: 0.8}, 30, joined=10)
    assert value_at(joined, "test/accuracy", "speed") == pytest.approx(0.5)
    uneven = value_at(run({1: 0.5, 2: 0.75, 5: 0.9}, 5), "test/accuracy", "speed")
    odds = trapezoid([1.0, 3.0, 9.0], [1, 2, 5])  # odds themselves, only to see that log-odds give less
    assert uneven is not None and 0.75 < uneven < odds / 4 / (1 + odds / 4)


def test_rounds_to_a_target():
    """Round 2 is above .5, but clients do not take part before round 5; round 8 is the first from there on that is
    evaluated at .5 or more. As a metric .71 is never reached, and a claim counts 11 for a run of 10."""
    one = run({2: 0.6, 6: 0.4, 8: 0.5, 10: 0.7}, 10, joined=5)
    assert value_of(one, "rounds_to/0.5") == value_at(one, "rounds_to/0.5", "reached") == 8
    assert value_of(one, "rounds_to/0.71") is None and value_at(one, "rounds_to/0.71", "reached") == 11


TENTH, LAST = {2: 0.1, 36: 0.0, 38: 0.6, 40: 0.8}, {34: 0.0, 36: 0.1, 38: 0.6, 40: 0.8}
WAVES = dict(enumerate((0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.5, 0.6, 0.7), start=1))
ENDPOINTS = [  # the curve, from which round on clients take part, the endpoint, its value
    (TENTH, 0, "end", 0.7),  # the last tenth, rounds 37 to 40
    (TENTH, 0, "last", 0.8),
    ({10: 0.2, 11: 0.4, 30: 0.9}, 10, "throughout", 0.65),  # (.4 + .9) / 2, each once, however far apart
    (LAST, 0, "last_4", 0.7),  # rounds 37 to 40
    (LAST, 0, "last_100", 0.5),  # at most an eighth of the run: 36 to 40
    ({t: t / 1000 for t in range(1, 801)}, 0, "last_100", 0.7505),  # FedSwitch's 100 of 800
    (WAVES, 0, "spread", 0.1),  # standard deviation of the last third of the evaluations: .5, .6, .7
]


@pytest.mark.parametrize(("curve", "joined", "endpoint", "value"), ENDPOINTS)
def test_endpoints_by_hand(curve, joined, endpoint, value):
    one = run(curve, max(curve), joined)
    assert value_at(one, "test/accuracy", endpoint) == pytest.approx(value)
    assert value_at(one, "test/loss", endpoint) is None  # was not measured


# Metrics that no run writes

# Sixteen rounds, evaluated every second one: the last eighth is rounds 15 and 16, of which 16 was evaluated.
KL = [(0.1 * t, 0.2 * t) for t in range(1, 17)]


def record(kl=KL, every=2, **result) -> RunRecord:
    rounds = [
        {"round": t, "pseudo/kl_uniform": given, "pseudo/kl_true": true} | ({} if t % every else {"test/accuracy": 0.5})
        for t, (given, true) in enumerate(kl, 1)
    ]
    last = {"status": "done", "last": rounds[-1] if rounds else {}}
    return RunRecord(cell_key="c", seed=0, experiment={}, manifest={}, result=last | result, rounds=rounds)


def test_divergences_are_means_over_the_last_eighth():
    """Evaluated in every round: rounds 15 and 16 have (1.5 + 1.6) / 2 = 1.55 and (3 + 5) / 2 = 4."""
    run = record([*KL[:14], (1.5, 3.0), (1.6, 5.0)], every=1)
    assert value_of(run, "pseudo/kl_ratio") == pytest.approx(1.55 / 4)
    assert value_of(run, "pseudo/kl_log_ratio") == pytest.approx(math.log(1.55 / 4))
    assert value_of(run, "pseudo/kl_gap") == pytest.approx(4 - 1.55)
    assert value_of(run, "pseudo/kl_true") == 5.0  # what the run wrote is its last round's


def test_a_committed_copy_says_the_same_and_there_is_no_ratio_without_a_true_divergence():
    """As where clients have equal shares, or nobody gave pseudo-labels."""
    copy = unpack(pack(record()), Path("copy"))
    assert value_of(record(), "pseudo/kl_ratio") == value_of(copy, "pseudo/kl_ratio") == pytest.approx(0.5)
    assert value_of(copy, "pseudo/kl_gap") == pytest.approx(value_of(record(), "pseudo/kl_gap"))
    for kl in ([], [(0.5, 0.0)] * 16):
        assert value_of(record(kl), "pseudo/kl_ratio") is None and value_of(record(kl), "pseudo/kl_log_ratio") is None
        assert value_of(record(kl), "pseudo/kl_gap") == (pytest.approx(-0.5) if kl else None)


def test_numbers_sent_are_bytes_both_ways_over_four():
    """Two rounds of 8 and 16 MB up, 4 and 4 down: (12 + 20) / 2 / 4 = 4 millions."""
    rounds = [{"comm/bytes_up": 8e6, "comm/bytes_down": 4e6}, {"comm/bytes_up": 16e6, "comm/bytes_down": 4e6}]
    assert value_of(replace(record(), rounds=rounds), "comm/millions") == pytest.approx(4.0)
    assert value_of(record(), "comm/millions") is None


def test_the_time_of_a_round_is_the_cpu_time_of_the_run_over_its_rounds():
    timed = replace(record(), result={"cpu_seconds": 30.0, "rounds": 60})
    assert value_of(timed, "time/cpu_seconds_per_round") == pytest.approx(0.5)
    assert value_of(replace(timed, result={"rounds": 60}), "time/cpu_seconds_per_round") is None


def test_the_weight_of_labelled_clients_is_the_mean_of_the_rounds_that_have_it():
    """None in the warm start's round; .9, 0 and .6 after it, of which one was evaluated; a committed copy says so."""
    rounds = [
        {"round": 1, "test/accuracy": 0.1},
        {"round": 2, "aggregation/labelled_share": 0.9},
        {"round": 3, "aggregation/labelled_share": 0.0},
        {"round": 4, "aggregation/labelled_share": 0.6, "test/accuracy": 0.5},
    ]
    run = replace(record(), rounds=rounds)
    assert value_of(run, "aggregation/labelled_weight") == pytest.approx(0.5)
    assert value_of(unpack(pack(run), Path("copy")), "aggregation/labelled_weight") == pytest.approx(0.5)
    assert value_of(record(), "aggregation/labelled_weight") is None
    alone = replace(record(), experiment={"method": {"kind": "supervised_fl"}})
    assert value_of(alone, "aggregation/labelled_weight") == 1.0


def exchange(received=("student",), sent=("student",), kept=(), state=("student",)):
    client = {"received": dict.fromkeys(received, 8), "sent": dict.fromkeys(sent, 8), "kept": dict.fromkeys(kept, 8)}
    return {"holders": {"client": client}, "state": dict.fromkeys(state, 8)}


@pytest.mark.parametrize(
    ("handed", "private", "stateless", "smoothed"),
    [
        (exchange(), True, True, False),
        (exchange(received=("student", "teacher")), True, True, True),  # TS-Server EMA
        (exchange(sent=("student", "kl_student")), False, True, False),  # FedSwitch's divergences
        (exchange(received=("psi", "helpers"), sent=("psi",)), False, True, False),  # FedMatch's helpers
        (exchange(kept=("momentum",)), True, False, False),
        (exchange(state=("student", "teacher")), True, True, True),
        ({"holders": {}, "state": {}}, True, True, False),  # no client takes part
    ],
)
def test_what_table_1_of_fedswitch_asks(handed, private, stateless, smoothed):
    assert (is_private(handed), is_stateless(handed), is_smoothed(handed)) == (private, stateless, smoothed)
    run = record(exchange=handed)
    assert value_of(run, "exchange/privacy") == float(private)
