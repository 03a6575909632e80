"""A study as one compact JSON file, which git keeps and the report is built from: no clock, no host, no storage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna import __version__ as optuna_version
from optuna.trial import FrozenTrial, TrialState

from benchmark.experiment import to_json
from sweeps.tune.book import FAILED, Book, best_of
from sweeps.tune.study import METRIC, Plan

FOLDER = "studies"  # of the results
STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def summary_of(book: Book) -> dict[str, Any]:
    """What the study asked, each trial that ended, and which setting was best. Accuracies are fractions."""
    plan, trials = book.plan, book.trials()
    shown = [_trial(book, trial) for trial in trials if trial.state in STATES]
    best = best_of(trials)
    default = next((t["number"] for t in shown if t["values"] == plan.defaults and t["state"] == "complete"), None)
    importances = book.importances()
    return {
        **_question(plan),
        "trials": shown,
        "best": None if best is None else best.number,
        "default": default,
        "importance": None if importances is None else {name: float(f"{v:.4g}") for name, v in importances.items()},
        "importance_method": "PED-ANOVA",
        "versions": {"optuna": optuna_version},
    }


def _question(plan: Plan) -> dict[str, Any]:
    study, data = plan.study, plan.default.data
    experiment = to_json(plan.runs(plan.defaults)[0])
    return {
        "study": study.name,
        "title": study.title,
        "reason": study.reason,
        "profile": plan.profile,
        "key": plan.key,
        "metric": METRIC,
        "data": {"name": data.name, "N_s": data.N_s, "N_validation": data.N_validation},
        "seeds": list(plan.trial_seeds),
        "wanted": plan.trials,
        "startup": study.startup,
        "prune_below": study.prune_below,
        "space": [
            {
                "field": span.field,
                "low": span.low,
                "high": span.high,
                "scale": span.scale.name,
                "reason": span.reason,
                "default": plan.defaults[span.field],
            }
            for span in study.space
        ],
        "experiment": {key: value for key, value in experiment.items() if key != "seed"},
    }


def _trial(book: Book, trial: FrozenTrial) -> dict[str, Any]:
    values = book.values_of(trial)
    found = {
        "number": trial.number,
        "state": STATES[trial.state],
        "values": values,
        "scores": [trial.intermediate_values[place] for place in sorted(trial.intermediate_values)],
        "value": trial.value if trial.state == TrialState.COMPLETE else None,
        "cell_key": book.plan.runs(values)[0].cell_key if len(values) == len(book.plan.study.space) else None,
    }
    return {**found, "why": trial.user_attrs[FAILED]} if FAILED in trial.user_attrs else found


def best_values(summary: Mapping[str, Any]) -> dict[str, float] | None:
    """Field -> value of the best trial."""
    found = {trial["number"]: trial["values"] for trial in summary["trials"]}
    return None if summary["best"] is None else dict(found[summary["best"]])


def summary_file(results: Path, plan: Plan) -> Path:
    return results / FOLDER / f"{plan.slug}.json"
