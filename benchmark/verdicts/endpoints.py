"""The number of a run that a claim is about, by the claim's `endpoint`: pure functions of a record.

last       the value under the run's selection rule, in general after the last round (the papers' own endpoint)
end        the mean of the evaluations in the last tenth of the run
last_100   the mean over the last 100 rounds, at most the last eighth (FedSwitch: 100 of 800 epochs)
speed      the mean log-odds of accuracy over the rounds since clients take part, as an accuracy again
throughout the mean of the evaluations since clients take part
reached    of "rounds_to/0.9": the rounds to that accuracy; one more than the run has where it never comes there
spread     the standard deviation over the last third of the run's evaluations
collapse   as end; claims about collapse count the runs that did not (evidence.py)
arithmetic counts and sizes, which need no training or are the same in every run
"""

import numpy as np
from scipy.special import expit, logit

from benchmark.papers.item import ACCURACY, LAST_ROUNDS
from benchmark.records.record import RunRecord
from benchmark.verdicts.derived import LAST_PART, rounds_without_clients, value_of
from benchmark.verdicts.rule import FALL, SURE, TENTH
from benchmark.verdicts.units import is_fraction


def value_at(record: RunRecord, metric: str, endpoint: str) -> float | None:
    """The run's value, in the metric's own unit; None where it has none. Raises KeyError for an unknown endpoint."""
    last_rounds = LAST_ROUNDS.fullmatch(endpoint)
    if last_rounds:
        rounds = _length(record)
        return _mean(_between(record, metric, rounds - min(int(last_rounds[1]), rounds / LAST_PART), rounds))
    functions = {"last": value_of, "arithmetic": value_of, "end": end, "collapse": end}
    functions |= {"speed": speed, "throughout": throughout, "spread": spread, "reached": reached}
    return functions[endpoint](record, metric)


def end(record: RunRecord, metric: str) -> float | None:
    """The mean of the last tenth; the last value where that tenth has no evaluation."""
    rounds = _length(record)
    values = _between(record, metric, (1 - TENTH) * rounds, rounds)
    return _mean(values) if values else value_of(record, metric)


def fell_from_its_best(record: RunRecord) -> bool:
    """Whether the run ends at least `FALL` below its best evaluation."""
    best = max((line[ACCURACY] for line in record.rounds if ACCURACY in line), default=0.0)
    last = end(record, ACCURACY)
    return last is not None and bool(last <= best - FALL + 1e-9)


def gain_at_end(record: RunRecord, metric: str) -> float | None:
    """The gain of the run's last tenth over the tenth before, or over the last evaluation before it.

    None where there is none, and for metrics that are not fractions.
    """
    rounds = _length(record)
    last = _mean(_between(record, metric, (1 - TENTH) * rounds, rounds))
    before = _between(record, metric, (1 - 2 * TENTH) * rounds, (1 - TENTH) * rounds)
    before = before or _between(record, metric, 0, (1 - TENTH) * rounds)[-1:]
    if last is None or not before or not is_fraction(metric):
        return None
    return last - float(np.mean(before))


def speed(record: RunRecord, metric: str) -> float | None:
    """The area under the log-odds (trapezoids between evaluations), divided by the rounds that it spans."""
    start = rounds_without_clients(record)
    points = [(line["round"], line[metric]) for line in record.rounds if metric in line and line["round"] >= start]
    if len(points) < 2:
        return None
    rounds, values = np.array(points, dtype=np.float64).T
    odds = logit(np.clip(values, SURE, 1 - SURE))
    return float(expit(np.trapezoid(odds, rounds) / (rounds[-1] - rounds[0])))


def reached(record: RunRecord, metric: str) -> float:
    """The rounds to the metric's target; a run that never comes there needs more than it has.

    So the sign of a difference of two runs is never turned: where both fail it is 0.
    """
    value = value_of(record, metric)
    return never_reached(_length(record)) if value is None else value


def never_reached(rounds: int) -> float:
    """What counts as the rounds to a target that a run of so many rounds does not come to."""
    return rounds + 1.0


def before_clients(record: RunRecord, metric: str) -> float | None:
    """The last evaluation before clients take part; None where they do from the start."""
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
    """The metric's values in rounds after the first and up to the second."""
    rounding = 1e-9 * max(1.0, until)  # .9 of 100 rounds is round 90
    inside = (line for line in record.rounds if after + rounding < line["round"] <= until + rounding)
    return [float(line[metric]) for line in inside if metric in line]


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
