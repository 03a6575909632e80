"""`result.json` of a run, made of its rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.experiment import NUMERICS, Experiment
from benchmark.records.fall import fall_of
from benchmark.records.record import Round, measurements

NO_METRICS = ("cell_key", "seed", "round")  # of a line in rounds.jsonl


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
    fall = fall_of(rounds)
    return {
        "status": status,
        "cell_key": experiment.cell_key,
        "seed": experiment.seed,
        "profile": experiment.profile,
        "numerics": NUMERICS,
        "rounds": len(rounds),
        "selection": experiment.evaluation.selection,
        "measured": measurements(experiment.evaluation),
        "last": _last(rounds),
        "best": _best(rounds),
        **({"fall": fall} if fall else {}),
        "cost": {
            "local_steps": sum(line.get("local_steps", 0) for line in rounds),
            "bytes_up": sum(line.get("comm/bytes_up", 0) for line in rounds),
            "bytes_down": sum(line.get("comm/bytes_down", 0) for line in rounds),
        },
        "exchange": exchange,
        "wall_seconds": round(sum(line["time/round_seconds"] for line in rounds), 3),
        "cpu_seconds": round(sum(line["time/cpu_seconds"] for line in rounds) + cpu_seconds_after, 3),
        **({"error": error} if error else {}),
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
