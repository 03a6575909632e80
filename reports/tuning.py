"""A tuning study's page: what was searched and why, every trial in one table, and their course in one picture.

Built from the study's own JSON file under results/studies, without Optuna and without its storage.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from benchmark.verdicts.statistics import Paired, paired
from reports.figures import Dots, Picture, scatter
from reports.formatting import NONE, percent, points, points_interval
from reports.style import Look
from reports.tables import Column, Entry, Row, Table, csv_of

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
            values = study_values(json.loads(raw))
            pages[path.stem] = (values, {"study.json": raw, "trials.csv": csv_of(values["trials"]).encode()})
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            troubles.append(f"studies/{path.name}: {text}; `fssl tune` writes it again")
    return pages, troubles


def study_values(study: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows. Raises KeyError, TypeError or ValueError for a file that is no study."""
    states = Counter(STATES[trial["state"]] for trial in study["trials"])
    return {
        "study": study,
        "counts": ", ".join(f"{states[name]} {name}" for name in STATES.values() if name in states),
        "said": best_in_words(study),
        "history": _history(study),
        "trials": _trials(study),
        "command": f"fssl tune {study['study']} --profile {study['profile']} --seeds {len(study['seeds'])} "
        f"--trials {study['wanted']}",
    }


def best_over_default(study: Mapping[str, Any]) -> Paired | None:
    """The best trial's accuracy less the default's, paired by seed; None where one of them is missing."""
    scores = {trial["number"]: dict(zip(study["seeds"], trial["scores"], strict=False)) for trial in study["trials"]}
    best, default = scores.get(study["best"]), scores.get(study["default"])
    return None if best is None or default is None else paired(best, default)


def best_in_words(study: Mapping[str, Any]) -> str:
    """Empty where there is no best trial, or no default."""
    seen = best_over_default(study)
    if seen is None:
        return ""
    if study["best"] == study["default"]:
        return "No trial was better than the default."
    text = f"Paired by seed, the best has {points(seen.mean)} points over the default"
    if seen.interval is not None:
        text += f" ({points_interval(seen.interval)}, 95 %, n = {seen.n}; not corrected for selection)"
    decided = seen.interval is not None and seen.interval[0] > 0
    return text + ("." if decided else ": not distinguishable from the default.")


def _history(study: Mapping[str, Any]) -> Picture:
    """Each trial's mean over the seeds it had, and the best complete trial so far."""
    kinds = {study["default"]: "default", study["best"]: "best"}
    rows = [
        {
            "kind": kinds.get(trial["number"], "trial" if trial["state"] == "complete" else "given up"),
            "name": f"trial {trial['number']}",
            "x": trial["number"],
            "y": 100 * (fmean(trial["scores"]) if trial["value"] is None else trial["value"]),
            "complete": trial["state"] == "complete",
        }
        for trial in study["trials"]
        if trial["scores"]
    ]
    trials = pd.DataFrame(rows, columns=["kind", "name", "x", "y", "complete"])
    complete = trials[trials["complete"].astype(bool)]
    steps = list(zip(complete["x"], complete["y"].cummax(), strict=True))
    dots = Dots(x_title="Trial", y_title="Held-out accuracy, %", dots=trials, steps=steps)
    return scatter(dots, KINDS)


def _trials(study: Mapping[str, Any]) -> Table:
    """A column a field, with its range; values of the CSV are fractions."""
    importance = study["importance"] or {}
    columns = [Column(name="Trial", left=True), Column(name="Mean"), Column(name="Seeds"), Column(name="State")]
    for span in study["space"]:
        share = importance.get(span["field"])
        weight = "" if share is None else f"; importance {percent(share, 0)} %"
        columns.append(
            Column(name=span["field"], below=f"{span['low']:g} to {span['high']:g}, {span['scale']}{weight}")
        )
    rows, data = [], []
    for trial in study["trials"]:
        marks = tuple(word for word in ("best", "default") if trial["number"] == study[word])
        entries = (
            Entry(text=str(trial["number"]), below=marks),
            Entry(text=percent(trial["value"])),
            Entry(text=" ".join(percent(score, 1) for score in trial["scores"])),
            Entry(text=STATES[trial["state"]], below=(str(trial["why"]),) if trial.get("why") else ()),
        )
        values = [trial["values"].get(span["field"]) for span in study["space"]]
        rows.append(Row(entries=(*entries, *(Entry(text=NONE if v is None else f"{v:g}") for v in values))))
        scores = {f"seed={seed}": score for seed, score in zip(study["seeds"], trial["scores"], strict=False)}
        known = {"trial": trial["number"], "state": trial["state"], "value": trial["value"]}
        data.append({**known, **scores, **trial["values"]})
    return Table(name="trials", caption="Trials", columns=tuple(columns), rows=tuple(rows), data=data)
