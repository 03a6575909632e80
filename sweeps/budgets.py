"""What became of budgets: `results/budgets/<UTC time>-<n>/plan.json`, and `outcome.json` when it is spent.

Both are written once and atomically; a plan without an outcome is being spent, or was killed.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite
from benchmark.experiment import Experiment
from benchmark.papers.item import Item
from benchmark.records.cputime import cpu_seconds
from benchmark.records.files import read_json, write_json
from benchmark.records.provenance import commit, hardware
from benchmark.records.record import last_round, run_folder
from sweeps.budget import Budget, Fit, Gate, in_words

FOLDER = "budgets"


def write_plan(
    results: Path, budget: Budget, items: Sequence[Item], jobs: int, fit: Fit, estimates: Mapping[Experiment, float]
) -> Path:
    """A new folder with `plan.json`. `estimates`: CPU seconds of whole runs. Raises CannotWrite."""
    folder = _new_folder(results / FOLDER)
    plan = {
        "begun": _now(),
        "budget": {"seconds": budget.seconds, "kind": budget.kind},
        "items": [{"item": item.name, "profile": item.profile} for item in items],
        "jobs": jobs,
        "hardware": hardware(),
        "code": commit(),
        "estimated_seconds": round(fit.seconds, 1),
        "runs": [_named(run, estimates) for run in fit.taken],
        "left_out": [_named(run, estimates) for run in fit.left_out],
    }
    write_json(folder / "plan.json", plan)
    return folder


def write_outcome(
    folder: Path, results: Path, gate: Gate, estimates: Mapping[Experiment, float], asked: Iterable[Experiment]
) -> None:
    """`outcome.json` beside the plan, of all runs that were missing before. Raises CannotWrite."""
    rows = [_outcome(run, results, estimates) for run in sorted(asked, key=lambda run: (run.seed, run.cell_key))]
    begun = [row for row in rows if row["rounds"]]
    outcome = {
        "ended": _now(),
        "used_seconds": round(gate.used, 1),
        "cpu_seconds": round(cpu_seconds(), 1),
        "correction": round(gate.correction, 3),
        "in_time": gate.used <= gate.budget.seconds,
        "runs": begun,
        "missing": [row for row in rows if row["status"] == "unfinished"],
    }
    write_json(folder / "outcome.json", outcome)


def _outcome(run: Experiment, results: Path, estimates: Mapping[Experiment, float]) -> dict[str, Any]:
    folder = run_folder(results, run)
    result = read_json(folder / "result.json") or {}
    last = last_round(folder) or {}
    costs = {name: result[name] for name in ("cpu_seconds", "wall_seconds") if name in result}
    return {
        **_named(run, estimates),
        "status": result.get("status", "unfinished"),
        "rounds": int(last.get("round", 0)),
        **costs,
    }


def _named(run: Experiment, estimates: Mapping[Experiment, float]) -> dict[str, Any]:
    estimate = estimates.get(run)
    return {
        "cell_key": run.cell_key,
        "seed": run.seed,
        "estimated_cpu_seconds": None if estimate is None else round(estimate, 2),
    }


def newest_line(results: Path) -> str | None:
    """The latest budget on one line, for people; None where there never was one."""
    folders = sorted(path.parent for path in (results / FOLDER).glob("*/plan.json"))
    if not folders:
        return None
    plan, outcome = read_json(folders[-1] / "plan.json"), read_json(folders[-1] / "outcome.json")
    names = ", ".join(f"{entry['item']} ({entry['profile']})" for entry in plan["items"])
    kind = Budget(seconds=plan["budget"]["seconds"], kind=plan["budget"]["kind"])
    head = f"last budget: {kind} for {names}, {plan['begun']}: {len(plan['runs'])} runs planned, "
    head += f"about {in_words(plan['estimated_seconds'])}, {len(plan['left_out'])} left out; "
    if outcome is None:
        return head + "not ended"
    done = sum(row["status"] != "unfinished" for row in outcome["runs"])
    return head + f"{done} done in {in_words(outcome['used_seconds'])}, {len(outcome['missing'])} missing"


def _new_folder(parent: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        folder = parent / f"{stamp}-{number}"
        try:
            os.makedirs(folder)
        except FileExistsError:
            continue
        except OSError as error:
            raise CannotWrite(f"{folder}: {error.strerror}; a folder of yours with room would be right") from None
        return folder
    raise CannotWrite(f"{parent}: a thousand budgets were begun in this second")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
