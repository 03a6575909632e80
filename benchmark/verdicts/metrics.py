"""Compute the value of a run for a claim: a metric at an endpoint, as a pure function of the record.

A metric was either written by the run or is computed in this module from its record. The
endpoints are:

last       the value under the run's selection rule, usually after the last round (the papers' own endpoint)
end        the mean of the evaluations in the last tenth of the run
last_100   the mean over the last 100 rounds, but at most the last eighth (FedSwitch: 100 of 800 epochs)
speed      the mean log-odds of accuracy from the last round before clients join on, converted back to an accuracy
throughout the mean of the evaluations after clients join
reached    for "rounds_to/0.9": the number of rounds to that accuracy; a run that never reaches it counts one more
           round than it has
spread     the standard deviation over the last third of the run's evaluations
collapse   as end; claims about collapse count the runs that did not collapse (collapse.py)
arithmetic counts and sizes, which need no training or are the same in every run
"""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import expit, logit

from benchmark.fractions import is_fraction
from benchmark.papers.item import ACCURACY, LAST_ROUNDS, ROUNDS_TO
from benchmark.records.record import RunRecord
from benchmark.verdicts.rule import SURE, TENTH

# FedSwitch's Figure 3 (right): "for the last 100 epochs of training", of 800.
LAST_PART = 8


def value_of(record: RunRecord, metric: str) -> float | None:
    """Return the run's value of the metric under its selection rule, or None if it has none."""
    if target := ROUNDS_TO.fullmatch(metric):
        return rounds_to(record, float(target[1]))
    return DERIVED[metric](record) if metric in DERIVED else record.selected(metric)


def is_derived(metric: str) -> bool:
    """Return whether the metric is computed in this module rather than written by runs."""
    return metric in DERIVED or bool(ROUNDS_TO.fullmatch(metric))


def rounds_to(record: RunRecord, target: float) -> float | None:
    """Return the first round with at least the target accuracy, or None if it is never reached.

    Rounds count from the last one before clients join.
    """
    start = rounds_without_clients(record)
    lines = (line for line in record.rounds if line["round"] >= start)
    return next((float(line["round"]) for line in lines if line.get(ACCURACY, -math.inf) >= target), None)


def rounds_without_clients(record: RunRecord) -> int:
    return int((record.experiment.get("method") or {}).get("warm_start_rounds", 0))


def divergences(record: RunRecord) -> tuple[float, float] | None:
    """Compute the divergence of the pseudo-labels and of the true labels from equal shares, in nats.

    Both are means over the evaluated rounds of the last eighth, because a committed copy has no others.
    Return None if no such round measured both.
    """
    needed = {"test/accuracy", "pseudo/kl_uniform", "pseudo/kl_true"}
    start = len(record.rounds) * (1 - 1 / LAST_PART)
    measured = [line for line in record.rounds if line["round"] > start and needed <= line.keys()]
    if not measured:
        return None
    pseudo = fmean(line["pseudo/kl_uniform"] for line in measured)
    true = fmean(line["pseudo/kl_true"] for line in measured)
    return pseudo, true


def _of_divergences(value: Callable[[float, float], float | None]) -> Callable[[RunRecord], float | None]:
    """Return a metric of the two divergences, which is None if they were not measured."""
    return lambda record: value(*both) if (both := divergences(record)) else None


def labelled_weight(record: RunRecord) -> float | None:
    """Return the weight of labelled clients in the global model (RSCFed, section 4.2).

    It is a mean over the rounds with other clients, and 1 for methods that train only on labels.
    """
    alone = record.experiment.get("method", {}).get("kind") == "supervised_fl"
    return 1.0 if alone else record.summary("aggregation/labelled_share").get("mean")


def millions(record: RunRecord) -> float | None:
    """Return the numbers sent in both directions per round, in millions: bytes divided by four,
    averaged over all rounds.

    ProxyFL's Table 7 reports this quantity. Return None if the run did not count bytes.
    """
    up, down = (record.summary(f"comm/bytes_{way}").get("mean") for way in ("up", "down"))
    return None if up is None or down is None else (up + down) / 4e6


def cpu_seconds_per_round(record: RunRecord) -> float | None:
    """Return the CPU seconds of a round: the local work of its participants, with aggregation and evaluations.

    FedSwitch's section 3.3 compares the time of methods by their communication, and not by their computation. Return
    None if the run recorded no time.
    """
    seconds, rounds = record.result.get("cpu_seconds"), record.result.get("rounds")
    return seconds / rounds if seconds is not None and rounds else None


# Properties of the run's communication summary ("exchange" in its result, benchmark/diagnostics/communication.py),
# for FedSwitch's Table 1.

OF_OTHERS = {"helpers"}  # trees that a client receives from other clients, and that the server only passes on


def names(exchange: Mapping[str, Any], way: str) -> set[str]:
    """Return the names of the trees that clients "received", "sent" or "kept"."""
    return set(exchange["holders"].get("client", {}).get(way, ()))


def is_private(exchange: Mapping[str, Any]) -> bool:
    """Return whether clients only send updates of received values, and no update goes to another
    client (section 3.1).
    """
    received = names(exchange, "received")
    return names(exchange, "sent") <= received and not received & OF_OTHERS


def is_stateless(exchange: Mapping[str, Any]) -> bool:
    """Return whether clients keep nothing from one round to the next."""
    return not names(exchange, "kept")


def is_smoothed(exchange: Mapping[str, Any]) -> bool:
    """Return whether the server or a client has a teacher."""
    held = (holder[way] for holder in exchange["holders"].values() for way in ("received", "sent", "kept"))
    return "teacher" in exchange["state"] or any("teacher" in trees for trees in held)


def _property(holds: Callable[[Mapping[str, Any]], bool]) -> Callable[[RunRecord], float | None]:
    """Return a metric that is 1 if the property is true and 0 if not, or None without a communication summary."""
    return lambda record: float(holds(record.result["exchange"])) if record.result.get("exchange") else None


DERIVED: Mapping[str, Callable[[RunRecord], float | None]] = {
    "aggregation/labelled_weight": labelled_weight,
    "comm/millions": millions,
    "time/cpu_seconds_per_round": cpu_seconds_per_round,
    # There is no ratio if the true labels have equal shares, and no logarithm if the pseudo-labels do.
    "pseudo/kl_ratio": _of_divergences(lambda pseudo, true: pseudo / true if true > 0 else None),
    "pseudo/kl_log_ratio": _of_divergences(lambda pseudo, true: math.log(pseudo / true) if pseudo and true else None),
    "pseudo/kl_gap": _of_divergences(lambda pseudo, true: true - pseudo),  # in nats
    "exchange/privacy": _property(is_private),
    "exchange/statelessness": _property(is_stateless),
    "exchange/smoothing": _property(is_smoothed),
}


# Endpoints.


def value_at(record: RunRecord, metric: str, endpoint: str) -> float | None:
    """Return the run's value at the endpoint, in the metric's own unit, or None if it has none.

    Raise KeyError for an unknown endpoint.
    """
    if last_rounds := LAST_ROUNDS.fullmatch(endpoint):
        rounds = _length(record)
        return _mean(_between(record, metric, rounds - min(int(last_rounds[1]), rounds / LAST_PART), rounds))
    match endpoint:
        case "last" | "arithmetic":
            return value_of(record, metric)
        case "end" | "collapse":
            return end(record, metric)
        case "speed":
            return speed(record, metric)
        case "throughout":
            return throughout(record, metric)
        case "reached":
            return reached(record, metric)
        case "spread":
            return spread(record, metric)
    raise KeyError(endpoint)


def end(record: RunRecord, metric: str) -> float | None:
    """Return the mean of the last tenth of the run, or the last value if that tenth has no evaluation."""
    rounds = _length(record)
    values = _between(record, metric, (1 - TENTH) * rounds, rounds)
    return _mean(values) if values else value_of(record, metric)


def gain_at_end(record: RunRecord, metric: str) -> float | None:
    """Return the gain of the run's last tenth over the tenth before it, or over the last evaluation before it.

    Return None if one of them is missing, and for metrics that are not fractions.
    """
    rounds = _length(record)
    last = _mean(_between(record, metric, (1 - TENTH) * rounds, rounds))
    before = _between(record, metric, (1 - 2 * TENTH) * rounds, (1 - TENTH) * rounds)
    before = before or _between(record, metric, 0, (1 - TENTH) * rounds)[-1:]
    if last is None or not before or not is_fraction(metric):
        return None
    return last - float(np.mean(before))


def speed(record: RunRecord, metric: str) -> float | None:
    """Return the area under the log-odds, in trapezoids between evaluations, divided by the
    rounds that it spans, as a fraction.

    The first evaluation is that of the last round before clients join. Return None with fewer than two evaluations.
    """
    start = rounds_without_clients(record)
    points = [(line["round"], line[metric]) for line in record.rounds if metric in line and line["round"] >= start]
    if len(points) < 2:
        return None
    rounds, values = np.array(points, dtype=np.float64).T
    odds = logit(np.clip(values, SURE, 1 - SURE))
    return float(expit(np.trapezoid(odds, rounds) / (rounds[-1] - rounds[0])))


def reached(record: RunRecord, metric: str) -> float:
    """Return the number of rounds to the metric's target; a run that never reaches it counts one
    more round than it has.

    The sign of a difference between two runs is therefore never wrong; if both fail, the difference
    is 0.
    """
    value = value_of(record, metric)
    return never_reached(_length(record)) if value is None else value


def never_reached(rounds: int) -> float:
    """Return the number of rounds to a target that a run with `rounds` rounds does not reach."""
    return rounds + 1.0


def before_clients(record: RunRecord, metric: str) -> float | None:
    """Return the last evaluation before clients join, or None if they join at the start."""
    values = _between(record, metric, 0, rounds_without_clients(record))
    return values[-1] if values else None


def throughout(record: RunRecord, metric: str) -> float | None:
    return _mean(_between(record, metric, rounds_without_clients(record), _length(record)))


def spread(record: RunRecord, metric: str) -> float | None:
    values = _between(record, metric, 0, _length(record))
    values = values[-max(2, len(values) // 3) :]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _length(record: RunRecord) -> int:
    return int(record.rounds[-1]["round"]) if record.rounds else 0


def _between(record: RunRecord, metric: str, after: float, until: float) -> list[float]:
    """Return the metric's values in rounds after `after`, up to and including `until`."""
    rounding = 1e-9 * max(1.0, until)  # .9 of 100 rounds is round 90
    inside = (line for line in record.rounds if after + rounding < line["round"] <= until + rounding)
    return [float(line[metric]) for line in inside if metric in line]


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
