"""A tuning study's page: what was searched and why, the best setting beside the default, and every trial.

Built from the study's own JSON file under results/studies, without Optuna and without its storage.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.verdicts.statistics import Paired, paired
from reports.figures import Dots, Picture, scatter
from reports.formatting import NONE, percent, points, points_interval
from reports.style import Look
from reports.tables import Column, Entry, Row, Table

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
            diff = patch.read_text() if (patch := path.with_suffix(".diff")).is_file() else ""
            values = {**study_values(study), "diff": diff}
            files = {"study.json": raw, "trials.csv": values["trials"].data.to_csv(index=False).encode()}
            pages[path.stem] = (values, {**files, **({"best.diff": diff.encode()} if diff else {})})
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


def _kind(trial: Mapping[str, Any], study: Mapping[str, Any]) -> str:
    if trial["number"] in (study["best"], study["default"]):
        return "best" if trial["number"] == study["best"] else "default"
    return "trial" if trial["state"] == "complete" else "given up"


def _accuracy(trial: Mapping[str, Any]) -> float:
    """In percent, the mean over its seeds; of a trial that was given up, over those it had."""
    scores = trial["scores"]
    return 100 * (float(trial["value"]) if trial["value"] is not None else sum(scores) / len(scores))


def _dots(study: Mapping[str, Any], x: Any, **more: Any) -> Dots:
    places: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for trial in study["trials"]:
        if trial["scores"] and (at := x(trial)) is not None:
            places[_kind(trial, study)].append((at, _accuracy(trial)))
            names[_kind(trial, study)].append(f"trial {trial['number']}")
    return Dots(title="", y_title="Accuracy, %", places=places, names=names, **more)


def _history(study: Mapping[str, Any]) -> Picture:
    best, steps = float("-inf"), []
    for trial in study["trials"]:
        if trial["state"] == "complete":
            best = max(best, _accuracy(trial))
            steps.append((trial["number"], best))
    return scatter([_dots(study, lambda t: t["number"], x_title="Trial", steps=steps)], KINDS, width=5.0, height=2.2)


def _drawn_fields(study: Mapping[str, Any]) -> list[tuple[str, Picture, str]]:
    found = []
    for span in study["space"]:
        below, name = span["scale"] == BELOW_ONE, span["field"]
        title = f"1 - {name}" if below else name

        def x(trial: Mapping[str, Any], name: str = name, below: bool = below) -> float | None:
            value = trial["values"].get(name)
            return value if value is None or not below else 1 - value

        dots = _dots(study, x, x_title=title, x_log=span["scale"] != "linear")
        found.append((title, scatter([dots], KINDS, width=3.2, height=2.0), span["reason"]))
    return found


def _compared(study: Mapping[str, Any]) -> Table | None:
    by_number = {trial["number"]: trial for trial in study["trials"]}
    chosen = [
        (name, by_number.get(study[key])) for name, key in (("The default", "default"), ("The best trial", "best"))
    ]
    if any(trial is None for _, trial in chosen):
        return None
    rows = []
    for name, trial in chosen:
        assert trial is not None
        texts = [str(trial["number"]), percent(trial["value"]), *(percent(score, 1) for score in trial["scores"])]
        rows.append(Row(entries=(Entry(text=name), *(Entry(text=text) for text in texts))))
    heads = ("Setting", "Trial", "Mean", *(f"seed {seed}" for seed in study["seeds"]))
    return _table("compared", "The best beside the default", heads, rows)


def _fields(study: Mapping[str, Any]) -> Table:
    best = next((trial for trial in study["trials"] if trial["number"] == study["best"]), None)
    rows = []
    for span in study["space"]:
        share = (study["importance"] or {}).get(span["field"])
        texts = (
            span["field"],
            f"{span['default']:g}",
            f"{best['values'][span['field']]:g}" if best else NONE,
            NONE if share is None else f"{percent(share, 0)} %",
            f"{span['low']:g} to {span['high']:g}, {span['scale']}",
        )
        rows.append(Row(entries=tuple(Entry(text=text) for text in texts)))
    return _table("fields", "Fields", ("Field", "Default", "Best", "Importance", "Range"), rows)


def _trials(study: Mapping[str, Any]) -> Table:
    names = [span["field"] for span in study["space"]]
    rows, data = [], []
    for trial in study["trials"]:
        marks = tuple(word for word in ("best", "default") if trial["number"] == study[word])
        values = [f"{trial['values'][name]:g}" if name in trial["values"] else NONE for name in names]
        state = Entry(text=STATES[trial["state"]], below=(str(trial["why"]),) if trial.get("why") else ())
        scores = " ".join(percent(score, 1) for score in trial["scores"])
        texts = [Entry(text=percent(trial["value"])), Entry(text=scores), state, *(Entry(text=v) for v in values)]
        rows.append(Row(entries=(Entry(text=str(trial["number"]), below=marks), *texts)))
        known = {f"seed={seed}": score for seed, score in zip(study["seeds"], trial["scores"], strict=False)}
        data.append(
            {"trial": trial["number"], "state": trial["state"], "value": trial["value"], **known, **trial["values"]}
        )
    return _table("trials", "Trials", ("Trial", "Mean", "Seeds", "State", *names), rows, pd.DataFrame(data))


def _table(name: str, caption: str, heads: tuple[str, ...], rows: list[Row], data: pd.DataFrame | None = None) -> Table:
    columns = tuple(Column(name=head, left=place == 0) for place, head in enumerate(heads))
    frame = pd.DataFrame() if data is None else data
    return Table(name=name, caption=caption, columns=columns, rows=tuple(rows), data=frame)
