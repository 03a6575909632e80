"""A tuning study's page: what was searched and why, and a table of all trials.

Built from the study's JSON file under results/studies alone: it needs neither Optuna nor the study's storage.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.verdicts.statistics import paired
from reports.formatting import NONE, count, percent, points
from reports.tables import Column, Entry, Row, Table, csv_of


def study_pages(folder: Path) -> tuple[dict[str, tuple[dict[str, Any], dict[str, bytes]]], list[str]]:
    """Name -> values and files of each study's page. Also a line for each file that cannot be read."""
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
    """What the template shows. Raises KeyError, TypeError or ValueError for a file that is not a study."""
    return {
        "study": study,
        "counts": counts_text(study),
        "best_text": best_text(study),
        "trials": _trials(study),
        "command": f"fssl tune {study['study']} --profile {study['profile']} --seeds {len(study['seeds'])} "
        f"--trials {study['wanted']}",
    }


def counts_text(study: Mapping[str, Any]) -> str:
    """ "14 complete, 10 pruned" """
    counts = Counter(trial["state"] for trial in study["trials"])
    return ", ".join(f"{counts[state]} {state}" for state in ("complete", "pruned") if state in counts)


def best_text(study: Mapping[str, Any]) -> str:
    """The best trial less the default, over their common seeds. Empty where one of them is missing."""
    scores = {trial["number"]: dict(zip(study["seeds"], trial["scores"], strict=False)) for trial in study["trials"]}
    difference = paired(scores.get(study["best"], {}), scores.get(study["default"], {}))
    if difference is None:
        return ""
    if study["best"] == study["default"]:
        return "No trial was better than the default."
    return f"The best has {points(difference.mean)} points over the default, over {count(difference.n, 'common seed')}."


def _trials(study: Mapping[str, Any]) -> Table:
    """One column a field, with its range. Values in the CSV are fractions."""
    importance = study["importance"] or {}
    columns = [Column(name="Trial", left=True), Column(name="Mean"), Column(name="Seeds"), Column(name="State")]
    for field in study["space"]:
        span = f"{field['low']:g} to {field['high']:g}, {field['scale']}"
        share = importance.get(field["field"])
        weight = "" if share is None else f"; importance {percent(share, 0)} %"
        columns.append(Column(name=field["field"], below=span + weight))
    rows, data = [], []
    for trial in study["trials"]:
        marks = tuple(word for word in ("best", "default") if trial["number"] == study[word])
        entries = (
            Entry(text=str(trial["number"]), below=marks),
            Entry(text=percent(trial["value"])),
            Entry(text=" ".join(percent(score, 1) for score in trial["scores"])),
            Entry(text=trial["state"]),
        )
        values = [trial["values"].get(field["field"]) for field in study["space"]]
        rows.append(Row(entries=(*entries, *(Entry(text=NONE if v is None else f"{v:g}") for v in values))))
        scores = {f"seed={seed}": score for seed, score in zip(study["seeds"], trial["scores"], strict=False)}
        known = {"trial": trial["number"], "state": trial["state"], "value": trial["value"]}
        data.append({**known, **scores, **trial["values"]})
    return Table(name="trials", caption="Trials", columns=tuple(columns), rows=tuple(rows), data=data)
