"""`result.json` of a run, made of its rounds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmark.experiment import NUMERICS, Experiment
from benchmark.records.record import Round, measurements

NO_METRICS = ("cell_key", "seed", "round")  # of a line in rounds.jsonl
COSTS = {"local_steps": "local_steps", "bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down"}
FALL = 0.2  # of accuracy (a fraction) below the run's own best before it
AGAINST_A_FALL = (
    "clients may be learning wrong pseudo-labels; what usually helps: a longer warm start "
    "(method.warm_start_rounds), a lower learning rate, smaller batches, more labels"
)


def result_of(
    experiment: Experiment,
    rounds: Sequence[Round],
    *,
    status: str,
    exchange: Mapping[str, Any],
    cpu_seconds_after: float,
    error: str | None,
) -> dict[str, Any]:
    """All of it but the digest.

    `status`: done or diverged, by which `error`. `exchange`: who sent what, `Exchange.summary`. `cpu_seconds_after`:
    since the last round's line.
    """
    return {
        "status": status,
        "cell_key": experiment.cell_key,
        "seed": experiment.seed,
        "numerics": NUMERICS,
        **settings_of(experiment),
        **sums_of(rounds),
        "exchange": exchange,
        "wall_seconds": round(sum(line["time/round_seconds"] for line in rounds), 3),
        "cpu_seconds": round(sum(line["time/cpu_seconds"] for line in rounds) + cpu_seconds_after, 3),
        **({"error": error} if error else {}),
    }


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """What the result repeats of the experiment."""
    evaluation = experiment.evaluation
    measured = measurements(evaluation)
    return {"profile": experiment.profile, "selection": evaluation.selection, "measured": measured}


def sums_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """What the result sums up of the rounds."""
    fall = fall_of(rounds)
    return {
        "rounds": len(rounds),
        "last": _last(rounds),
        "best": _best(rounds),
        **({"fall": fall} if fall else {}),
        "cost": {name: sum(line.get(metric, 0) for line in rounds) for name, metric in COSTS.items()},
    }


def _last(rounds: Sequence[Round]) -> dict[str, float]:
    """The latest value of every metric."""
    last: dict[str, float] = {}
    for line in rounds:
        last.update(line)
    return {name: last[name] for name in sorted(last) if name not in NO_METRICS and not name.startswith("time/")}


def _best(rounds: Sequence[Round]) -> dict[str, float] | None:
    """The first round of the best accuracy, with what was measured there; None where no round was evaluated."""
    evaluated = [line for line in rounds if _accuracy(line) is not None]
    if not evaluated:
        return None
    best = max(evaluated, key=_accuracy)
    return {"round": best["round"], **{name: best[name] for name in best if name.startswith(("test/", "validation/"))}}


def _accuracy(line: Round) -> Any:
    return line.get("test/accuracy", line.get("validation/accuracy"))


def fall_of(rounds: Iterable[Round]) -> dict[str, Any] | None:
    """The deepest fall of the accuracy below the best before it: its rounds and accuracies; None below `FALL`."""
    best: tuple[float, int] | None = None
    deepest: dict[str, Any] | None = None
    for line in rounds:
        accuracy = _accuracy(line)
        if accuracy is None:
            continue
        if best is None or accuracy > best[0]:
            best = accuracy, line["round"]
        depth = best[0] - accuracy
        if depth > max(FALL, deepest["depth"] if deepest else 0.0):
            deepest = {"depth": depth, "round": line["round"], "accuracy": accuracy, "from": best[0], "best": best[1]}
    return deepest


def fall_in_words(fall: Mapping[str, Any]) -> str:
    """ "accuracy fell from 91.0 % (round 30) to 44.3 % (round 40)" """
    return (
        f"accuracy fell from {100 * fall['from']:.1f} % (round {fall['best']}) "
        f"to {100 * fall['accuracy']:.1f} % (round {fall['round']})"
    )
