"""Metrics that no run writes: made of what it wrote, once it has ended."""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from benchmark.records.record import RunRecord

# FedSwitch Figure 3 (right): "for the last 100 epochs of training", of 800.
LAST_PART = 8


def value_of(record: RunRecord, metric: str) -> float | None:
    """The run's value of the metric under its selection rule; None where it has none."""
    return DERIVED[metric](record) if metric in DERIVED else record.selected(metric)


def divergences(record: RunRecord) -> tuple[float, float] | None:
    """Of the pseudo-labels and of the true labels from equal shares, nats: means over the evaluated rounds of the last
    eighth (a committed copy has no others). None where no such round measured both."""
    names = ("pseudo/kl_uniform", "pseudo/kl_true")
    start = len(record.rounds) * (1 - 1 / LAST_PART)
    found = [
        [line[name] for name in names]
        for line in record.rounds
        if line["round"] > start and "test/accuracy" in line and all(name in line for name in names)
    ]
    if not found:
        return None
    given, true = (fmean(values) for values in zip(*found, strict=True))
    return given, true


def kl_ratio(record: RunRecord) -> float | None:
    """The pseudo-labels' divergence over the true labels'; none where these are in equal shares."""
    found = divergences(record)
    return found[0] / found[1] if found and found[1] > 0 else None


def kl_log_ratio(record: RunRecord) -> float | None:
    ratio = kl_ratio(record)
    return math.log(ratio) if ratio else None


def kl_gap(record: RunRecord) -> float | None:
    """The true labels' divergence less the pseudo-labels', nats."""
    found = divergences(record)
    return found[1] - found[0] if found else None


def labelled_weight(record: RunRecord) -> float | None:
    """What labelled clients weighed in the global model (RSCFed, section 4.2), mean of the rounds that others took part
    in; all, where labels alone are trained on."""
    alone = record.experiment.get("method", {}).get("kind") == "supervised_fl"
    return 1.0 if alone else record.mean("aggregation/labelled_share")


# What a run handed over ("exchange" in its result, benchmark/diagnostics/exchange.py), as FedSwitch Table 1 asks of it.

OF_OTHERS = {"helpers"}  # what a client receives that other clients made, and the server only passed on


def names(exchange: Mapping[str, Any], way: str) -> set[str]:
    """What clients received, sent or kept."""
    return set(exchange["holders"].get("client", {}).get(way, ()))


def is_private(exchange: Mapping[str, Any]) -> bool:
    """Section 3.1: clients send nothing but updates of what they received, and no client's update goes to another."""
    received = names(exchange, "received")
    return names(exchange, "sent") <= received and not received & OF_OTHERS


def is_stateless(exchange: Mapping[str, Any]) -> bool:
    """Clients keep nothing from one round to the next."""
    return not names(exchange, "kept")


def is_smoothed(exchange: Mapping[str, Any]) -> bool:
    """Anyone holds a teacher."""
    held = (seen[way] for seen in exchange["holders"].values() for way in ("received", "sent", "kept"))
    return "teacher" in exchange["state"] or any("teacher" in found for found in held)


def _of_exchange(holds: Callable[[Mapping[str, Any]], bool]) -> Callable[[RunRecord], float | None]:
    """1 where it holds, else 0; none where the run does not say what it handed over."""
    return lambda record: float(holds(record.result["exchange"])) if record.result.get("exchange") else None


DERIVED: Mapping[str, Callable[[RunRecord], float | None]] = {
    "aggregation/labelled_weight": labelled_weight,
    "pseudo/kl_ratio": kl_ratio,
    "pseudo/kl_log_ratio": kl_log_ratio,
    "pseudo/kl_gap": kl_gap,
    "exchange/privacy": _of_exchange(is_private),
    "exchange/statelessness": _of_exchange(is_stateless),
    "exchange/smoothing": _of_exchange(is_smoothed),
}
