"""What of a run a claim speaks of: a number made of its record, by the claim's `endpoint`. Pure functions.

last       the value under the run's selection rule, in general after the last round (the papers' own endpoint)
end        the mean of the evaluations in the last tenth of the run
last_100   the mean over the last 100 rounds, and over no more than the last eighth (FedSwitch: 100 of 800 epochs)
speed      the mean log-odds of accuracy over the rounds since clients take part, given back as an accuracy
throughout the mean of the evaluations since clients take part
spread     the standard deviation over the last third of the run's evaluations
collapse   whether the run stood until its end (evidence.py): claims about collapse count runs
arithmetic what needs no training, or is the same in every run: counts and sizes
"""

from collections.abc import Iterable

import numpy as np
from scipy.special import expit, logit

from benchmark.papers.item import ACCURACY, LAST_ROUNDS
from benchmark.records.record import RunRecord
from benchmark.verdicts.derived import LAST_PART, value_of
from benchmark.verdicts.rule import FALL, SURE, TENTH
from benchmark.verdicts.units import is_fraction


def value_at(record: RunRecord, metric: str, endpoint: str) -> float | None:
    """The run's value, in the metric's own unit; None where it has none. Raises KeyError for an unknown endpoint."""
    last_rounds = LAST_ROUNDS.fullmatch(endpoint)
    if last_rounds:
        rounds = _length(record)
        return _mean(_between(record, metric, rounds - min(int(last_rounds[1]), rounds / LAST_PART), rounds))
    made = {"last": value_of, "arithmetic": value_of, "end": end}
    made |= {"speed": speed, "throughout": throughout, "spread": spread}
    return made[endpoint](record, metric)


def end(record: RunRecord, metric: str) -> float | None:
    """At least the last round is evaluated, so that there is a value wherever the metric was measured."""
    rounds = _length(record)
    found = _between(record, metric, (1 - TENTH) * rounds, rounds)
    return _mean(found) if found else value_of(record, metric)


def fell_from_its_best(record: RunRecord) -> bool:
    """Whether it ends at least `FALL` below the best evaluation that it had."""
    best = max((line[ACCURACY] for line in record.rounds if ACCURACY in line), default=0.0)
    last = end(record, ACCURACY)
    return last is not None and bool(last <= best - FALL + 1e-9)


def gain_at_end(record: RunRecord, metric: str) -> float | None:
    """What the last tenth of the run gains on the tenth before. Where that was not evaluated: on the last evaluation
    before it. None without one, and for metrics that are no fractions."""
    rounds = _length(record)
    last = _mean(_between(record, metric, (1 - TENTH) * rounds, rounds))
    before = _between(record, metric, (1 - 2 * TENTH) * rounds, (1 - TENTH) * rounds)
    before = before or _between(record, metric, 0, (1 - TENTH) * rounds)[-1:]
    if last is None or not before or not is_fraction(metric):
        return None
    return last - float(np.mean(before))


def speed(record: RunRecord, metric: str) -> float | None:
    """The area under the log-odds, trapezoids between evaluations, over the rounds that it spans."""
    joined = _joined(record)
    found = [(line["round"], line[metric]) for line in record.rounds if metric in line and line["round"] >= joined]
    if len(found) < 2:
        return None
    rounds, values = np.array(found, dtype=np.float64).T
    odds = logit(np.clip(values, SURE, 1 - SURE))
    return float(expit(np.trapezoid(odds, rounds) / (rounds[-1] - rounds[0])))


def to_target(record: RunRecord, metric: str, target: float) -> tuple[int, int] | None:
    """The first round, since clients take part, whose evaluation is at least the target, and the bytes that were sent
    both ways until its end; None for a run that never is."""
    sent, joined = 0, _joined(record)
    for line in record.rounds:
        sent += line.get("comm/bytes_up", 0) + line.get("comm/bytes_down", 0)
        if line["round"] >= joined and line.get(metric, -np.inf) >= target:
            return line["round"], sent
    return None


def before_clients(record: RunRecord, metric: str) -> float | None:
    """The last evaluation before clients take part; None where they do from the start."""
    found = _between(record, metric, 0, _joined(record))
    return found[-1] if found else None


def throughout(record: RunRecord, metric: str) -> float | None:
    return _mean(_between(record, metric, _joined(record), _length(record)))


def spread(record: RunRecord, metric: str) -> float | None:
    values = _between(record, metric, 0, _length(record))
    values = values[-max(2, len(values) // 3) :]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _joined(record: RunRecord) -> int:
    """The rounds in which the server is alone."""
    return int((record.experiment.get("method") or {}).get("warm_start_rounds", 0))


def _length(record: RunRecord) -> int:
    return int(record.rounds[-1]["round"]) if record.rounds else 0


def _between(record: RunRecord, metric: str, after: float, until: float) -> list[float]:
    """The metric's values in rounds after the first and up to the second."""
    near = 1e-9 * max(1.0, until)  # .9 of 100 rounds is round 90
    inside = (line for line in record.rounds if after + near < line["round"] <= until + near)
    return [float(line[metric]) for line in inside if metric in line]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.mean(found)) if found else None
