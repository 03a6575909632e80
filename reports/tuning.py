"""A tuning study's page: what was searched and why, the best setting beside the default, and every trial.

Built from the study's own JSON file under results/studies, without Optuna and without its storage.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from benchmark.verdicts.statistics import Paired, paired
from reports.figures import Dots, Picture, scatter
from reports.formatting import NONE, percent, points, points_interval
from reports.style import Look
from reports.tables import Entry, Table, csv_of, table_of

BELOW_ONE = "logarithmic in 1 - value"  # a scale's name in the file; drawn over 1 - value
STATES = {"complete": "complete", "pruned": "given up early", "failed": "failed"}
KINDS = {
    "trial": Look(colour=8),
    "given up": Look(colour=8, marker=6),
    "default": Look(colour=0, marker=1),
    "best": Look(colour=1, marker=3),
}


def study_pages(folder: Path) -> tuple[dict[str, tuple[dict[str, Any], dict[str, bytes]]], list[str]]:
    """Name -> values and files of the page of each study in the folder; and a line for each that cannot be read."""
    pages, troubles = {}, []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            raw = path.read_bytes()
            study = json.loads(raw)
            values = study_values(study)
            pages[path.stem] = (values, {"study.json": raw, "trials.csv": csv_of(values["trials"]).encode()})
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            troubles.append(f"studies/{path.name}: {text}; `fssl tune` writes it again")
    return pages, troubles


def study_values(study: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows. Raises KeyError, TypeError or ValueError for a file that is no study."""
    states = [STATES[trial["state"]] for trial in study["trials"]]
    difference = best_over_default(study)
    return {
        "study": study,
        "counts": ", ".join(f"{states.count(name)} {name}" for name in STATES.values() if name in states),
        "compared": _compared(study),
        "same": study["best"] == study["default"],
        "difference": points(difference.mean) if difference else "",
        "interval": points_interval(difference.interval) if difference else "",
        "n": difference.n if difference else 0,
        "undecided": undecided(difference),
        "history": _history(study),
        "fields": _fields(study),
        "drawn": _drawn_fields(study),
        "trials": _trials(study),
        "command": f"fssl tune {study['study']} --profile {study['profile']} --seeds {len(study['seeds'])} "
        f"--trials {study['wanted']}",
    }


def best_over_default(study: Mapping[str, Any]) -> Paired | None:
    """The best trial's accuracy less the default's, paired by seed; None where one of them is missing."""
    by_number = {trial["number"]: dict(zip(study["seeds"], trial["scores"], strict=False)) for trial in study["trials"]}
    best, default = by_number.get(study["best"]), by_number.get(study["default"])
    return None if best is None or default is None else paired(best, default)


def undecided(difference: Paired | None) -> bool:
    """Whether the seeds do not tell the best from the default, chosen or not."""
    return difference is None or difference.interval is None or difference.interval[0] <= 0


def _measured(study: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each trial that has a score: kind, name, number, complete, y (accuracy in percent: the mean over its
    seeds; of a trial that was given up, over those it had), and a column a field."""
    kinds = {study["default"]: "default", study["best"]: "best"}
    rows = [
        {
            "kind": kinds.get(trial["number"], "trial" if trial["state"] == "complete" else "given up"),
            "name": f"trial {trial['number']}",
            "number": trial["number"],
            "complete": trial["state"] == "complete",
            "y": 100 * (fmean(trial["scores"]) if trial["value"] is None else trial["value"]),
            **trial["values"],
        }
        for trial in study["trials"]
        if trial["scores"]
    ]
    return pd.DataFrame(rows, columns=None if rows else ["kind", "name", "number", "complete", "y"])


def _history(study: Mapping[str, Any]) -> Picture:
    trials = _measured(study)
    complete = trials[trials["complete"].astype(bool)]
    steps = list(zip(complete["number"], complete["y"].cummax(), strict=True))
    dots = Dots(x_title="Trial", y_title="Accuracy, %", dots=trials.assign(x=trials["number"]), steps=steps)
    return scatter([dots], KINDS, width=5.0, height=2.2)


def _drawn_fields(study: Mapping[str, Any]) -> list[tuple[str, Picture, str]]:
    trials, found = _measured(study), []
    for span in study["space"]:
        name, below = span["field"], span["scale"] == BELOW_ONE
        title = f"1 - {name}" if below else name
        x = trials[name] if name in trials else pd.Series(dtype=float)
        dots = Dots(
            x_title=title,
            y_title="Accuracy, %",
            dots=trials.assign(x=1 - x if below else x).dropna(subset="x"),
            x_log=span["scale"] != "linear",
        )
        found.append((title, scatter([dots], KINDS, width=3.2, height=2.0), span["reason"]))
    return found


def _compared(study: Mapping[str, Any]) -> Table | None:
    """The default and the best trial, seed by seed; None where one of them is missing."""
    trials = {trial["number"]: trial for trial in study["trials"]}
    rows = [
        (name, trial["number"], percent(trial["value"]), *(percent(score, 1) for score in trial["scores"]))
        for name, key in (("The default", "default"), ("The best trial", "best"))
        if (trial := trials.get(study[key]))
    ]
    heads = ("Setting", "Trial", "Mean", *(f"seed {seed}" for seed in study["seeds"]))
    return table_of("compared", "The best beside the default", heads, rows) if len(rows) == 2 else None


def _fields(study: Mapping[str, Any]) -> Table:
    best: Mapping[str, float] = next(
        (trial["values"] for trial in study["trials"] if trial["number"] == study["best"]), {}
    )
    importance = study["importance"] or {}
    rows = [
        (
            name := span["field"],
            f"{span['default']:g}",
            f"{best[name]:g}" if name in best else NONE,
            f"{percent(importance[name], 0)} %" if name in importance else NONE,
            f"{span['low']:g} to {span['high']:g}, {span['scale']}",
        )
        for span in study["space"]
    ]
    return table_of("fields", "Fields", ("Field", "Default", "Best", "Importance", "Range"), rows)


def _trials(study: Mapping[str, Any]) -> Table:
    names = [span["field"] for span in study["space"]]
    rows, data = [], []
    for trial in study["trials"]:
        marks = tuple(word for word in ("best", "default") if trial["number"] == study[word])
        rows.append(
            (
                Entry(text=str(trial["number"]), below=marks),
                percent(trial["value"]),
                " ".join(percent(score, 1) for score in trial["scores"]),
                Entry(text=STATES[trial["state"]], below=(str(trial["why"]),) if trial.get("why") else ()),
                *(f"{trial['values'][name]:g}" if name in trial["values"] else NONE for name in names),
            )
        )
        scores = {f"seed={seed}": score for seed, score in zip(study["seeds"], trial["scores"], strict=False)}
        known = {"trial": trial["number"], "state": trial["state"], "value": trial["value"]}
        data.append({**known, **scores, **trial["values"]})
    return table_of("trials", "Trials", ("Trial", "Mean", "Seeds", "State", *names), rows, data=pd.DataFrame(data))
