"""Build `result.json` of a run from its rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.experiment import NUMERICS, Experiment
from benchmark.records.record import Round, measurements, metrics_in

SERVER_SECONDS = "time/server_seconds"
COSTS = {"local_steps": "local_steps", "bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down"}


def result_of(
    experiment: Experiment,
    rounds: Sequence[Round],
    *,
    status: str,
    exchange: Mapping[str, Any],
    measures: Mapping[str, Any],
    cpu_seconds_after: float,
    error: str | None,
) -> dict[str, Any]:
    """Build the result without its digest.

    `status` is "done", or "diverged" with the `error`. `exchange` is the communication summary
    (diagnostics/communication.py), and `measures` are the method's own
    (diagnostics/own_measures.py). `cpu_seconds_after` is the CPU time since the last round's line.
    """
    wall_seconds = sum(line["time/round_seconds"] for line in rounds)
    server_seconds = [line[SERVER_SECONDS] for line in rounds if SERVER_SECONDS in line]
    has_server_time = len(server_seconds) == len(rounds)  # not if an older version trained the first rounds
    cpu_seconds = sum(line["time/cpu_seconds"] for line in rounds) + cpu_seconds_after
    return {
        "status": status,
        "cell_key": experiment.cell_key,
        "seed": experiment.seed,
        "numerics": NUMERICS,
        **settings_of(experiment),
        **sums_of(rounds),
        "exchange": exchange,
        **({"measures": measures} if measures else {}),
        "wall_seconds": round(wall_seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        **({"server_seconds": round(sum(server_seconds), 3)} if has_server_time else {}),
        **({"error": error} if error else {}),
    }


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return the settings of the experiment that the result repeats."""
    evaluation = experiment.evaluation
    measured = measurements(evaluation)
    return {"profile": experiment.profile, "selection": evaluation.selection, "measured": measured}


def sums_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """Summarise the rounds: their number, the latest value of each metric, the best values and the total costs."""
    latest: dict[str, Any] = {}
    for line in rounds:
        latest.update(line)
    cost = {}
    for name, metric in COSTS.items():
        cost[name] = sum(line.get(metric, 0) for line in rounds)
    return {
        "rounds": len(rounds),
        "last": metrics_in(latest),
        "best": _best(rounds),
        "cost": cost,
    }


def _best(rounds: Sequence[Round]) -> dict[str, float] | None:
    """Return the first round with the best accuracy and its evaluation, or None if no round was evaluated."""
    evaluated = [line for line in rounds if _accuracy(line) is not None]
    if not evaluated:
        return None
    best = max(evaluated, key=_accuracy)
    return {"round": best["round"], **{name: best[name] for name in best if name.startswith(("test/", "validation/"))}}


def _accuracy(line: Round) -> Any:
    return line.get("test/accuracy", line.get("validation/accuracy"))
