"""Metrics that no run writes, computed from what it wrote."""

import math
import re
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from benchmark.papers.item import ACCURACY
from benchmark.records.record import RunRecord

# FedSwitch Figure 3 (right): "for the last 100 epochs of training", of 800.
LAST_PART = 8
ROUNDS_TO = re.compile(r"rounds_to/(0?\.\d+)")  # "rounds_to/0.4": the rounds to an accuracy of 40 %


def value_of(record: RunRecord, metric: str) -> float | None:
    """The run's value of the metric under its selection rule; None where it has none."""
    if target := ROUNDS_TO.fullmatch(metric):
        reached = to_target(record, ACCURACY, float(target[1]))
        return float(reached[0]) if reached else None
    return DERIVED[metric](record) if metric in DERIVED else record.selected(metric)


def is_derived(metric: str) -> bool:
    """Whether no run writes it."""
    return metric in DERIVED or bool(ROUNDS_TO.fullmatch(metric))


def to_target(record: RunRecord, metric: str, target: float) -> tuple[int, int] | None:
    """(round, bytes) until an evaluation is at least the target, since clients take part; None if none is.

    Bytes are those sent both ways until the end of that round.
    """
    sent, start = 0, rounds_without_clients(record)
    for line in record.rounds:
        sent += line.get("comm/bytes_up", 0) + line.get("comm/bytes_down", 0)
        if line["round"] >= start and line.get(metric, -math.inf) >= target:
            return line["round"], sent
    return None


def rounds_without_clients(record: RunRecord) -> int:
    return int((record.experiment.get("method") or {}).get("warm_start_rounds", 0))


def divergences(record: RunRecord) -> tuple[float, float] | None:
    """Of the pseudo-labels and of the true labels from equal shares, in nats.

    Means over the evaluated rounds of the last eighth (a committed copy has no others); None where no such round
    measured both.
    """
    names = ("pseudo/kl_uniform", "pseudo/kl_true")
    start = len(record.rounds) * (1 - 1 / LAST_PART)
    measured = [
        [line[name] for name in names]
        for line in record.rounds
        if line["round"] > start and "test/accuracy" in line and all(name in line for name in names)
    ]
    if not measured:
        return None
    pseudo, true = (fmean(values) for values in zip(*measured, strict=True))
    return pseudo, true


def _of_divergences(value: Callable[[float, float], float | None]) -> Callable[[RunRecord], float | None]:
    """A metric of the two divergences; None where they were not measured."""
    return lambda record: value(*both) if (both := divergences(record)) else None


def labelled_weight(record: RunRecord) -> float | None:
    """The weight of labelled clients in the global model (RSCFed, section 4.2).

    A mean over the rounds in which other clients took part; 1 where labels alone are trained on.
    """
    alone = record.experiment.get("method", {}).get("kind") == "supervised_fl"
    return 1.0 if alone else record.summary("aggregation/labelled_share").get("mean")


def millions(record: RunRecord) -> float | None:
    """Numbers sent both ways in a round, in millions: bytes over four, the mean of all rounds (ProxyFL, Table 7)."""
    up, down = (record.summary(f"comm/bytes_{way}").get("mean") for way in ("up", "down"))
    return None if up is None or down is None else (up + down) / 4e6


# What was exchanged in a run ("exchange" in its result, benchmark/diagnostics/exchange.py), for FedSwitch's Table 1.

OF_OTHERS = {"helpers"}  # what a client receives that other clients made, and that the server only passed on


def names(exchange: Mapping[str, Any], way: str) -> set[str]:
    """What clients "received", "sent" or "kept"."""
    return set(exchange["holders"].get("client", {}).get(way, ()))


def is_private(exchange: Mapping[str, Any]) -> bool:
    """Section 3.1: clients send nothing but updates of what they received, and no client's update goes to another."""
    received = names(exchange, "received")
    return names(exchange, "sent") <= received and not received & OF_OTHERS


def is_stateless(exchange: Mapping[str, Any]) -> bool:
    """Clients keep nothing from one round to the next."""
    return not names(exchange, "kept")


def is_smoothed(exchange: Mapping[str, Any]) -> bool:
    """The server or a client holds a teacher."""
    held = (holder[way] for holder in exchange["holders"].values() for way in ("received", "sent", "kept"))
    return "teacher" in exchange["state"] or any("teacher" in trees for trees in held)


def _property(holds: Callable[[Mapping[str, Any]], bool]) -> Callable[[RunRecord], float | None]:
    """1 where the property holds, else 0; None where the run did not record its exchange."""
    return lambda record: float(holds(record.result["exchange"])) if record.result.get("exchange") else None


DERIVED: Mapping[str, Callable[[RunRecord], float | None]] = {
    "aggregation/labelled_weight": labelled_weight,
    "comm/millions": millions,
    # No ratio where the true labels are in equal shares, and no logarithm where the pseudo-labels are.
    "pseudo/kl_ratio": _of_divergences(lambda pseudo, true: pseudo / true if true > 0 else None),
    "pseudo/kl_log_ratio": _of_divergences(lambda pseudo, true: math.log(pseudo / true) if pseudo and true else None),
    "pseudo/kl_gap": _of_divergences(lambda pseudo, true: true - pseudo),  # in nats
    "exchange/privacy": _property(is_private),
    "exchange/statelessness": _property(is_stateless),
    "exchange/smoothing": _property(is_smoothed),
}
