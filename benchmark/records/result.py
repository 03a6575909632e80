"""`result.json` of a run, made of its rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.experiment import NUMERICS, Experiment
from benchmark.records.record import Round, measurements, metrics_in

COSTS = {"local_steps": "local_steps", "bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down"}


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
    return {
        "rounds": len(rounds),
        "last": metrics_in({name: value for line in rounds for name, value in line.items()}),  # the latest of each
        "best": _best(rounds),
        "cost": {name: sum(line.get(metric, 0) for line in rounds) for name, metric in COSTS.items()},
    }


def _best(rounds: Sequence[Round]) -> dict[str, float] | None:
    """The first round of the best accuracy, with what was measured there; None where no round was evaluated."""
    evaluated = [line for line in rounds if _accuracy(line) is not None]
    if not evaluated:
        return None
    best = max(evaluated, key=_accuracy)
    return {"round": best["round"], **{name: best[name] for name in best if name.startswith(("test/", "validation/"))}}


def _accuracy(line: Round) -> Any:
    return line.get("test/accuracy", line.get("validation/accuracy"))
