"""A study's page: what was searched and why, the best setting beside the default, and every trial.

Built from the study's own JSON file (`sweeps/tune/summary.py` writes it), without Optuna and without its storage.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.verdicts.statistics import Paired, paired
from reports.files import slug
from reports.scatter import Kind, Mark, key, scatter
from reports.words import csv_safe, percent, points, points_interval

BELOW_ONE = "logarithmic in 1 - value"  # a scale's name in the file; drawn over 1 - value
STATES = {"complete": "complete", "pruned": "given up early", "failed": "failed"}


@dataclass(frozen=True, kw_only=True)
class StudyPage:
    """Where a study's page stands, what it shows, and the files beside it."""

    page: Path  # relative to the site
    values: Mapping[str, Any]
    files: Mapping[str, bytes]


def study_pages(folder: Path) -> tuple[list[StudyPage], list[str]]:
    """A page for each study in the folder, and a line for each file that could not be read."""
    pages, troubles = [], []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            pages.append(_page(path))
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            troubles.append(f"studies/{path.name}: {text}; `fssl tune` writes it again")
    return pages, troubles


def _page(path: Path) -> StudyPage:
    raw = path.read_bytes()
    study = json.loads(raw)
    patch = path.with_suffix(".diff")
    diff = patch.read_text() if patch.is_file() else ""
    files = {"study.json": raw, "trials.csv": _csv(study).encode(), **({"best.diff": diff.encode()} if diff else {})}
    return StudyPage(page=Path("tune", slug(path.stem), "index.html"), values=study_values(study, diff), files=files)


def study_values(study: Mapping[str, Any], diff: str) -> dict[str, Any]:
    """Everything the template shows. Raises KeyError, TypeError or ValueError for a file that is no study."""
    trials = {int(trial["number"]): trial for trial in study["trials"]}
    best, default = trials.get(study["best"]), trials.get(study["default"])
    states = [STATES[trial["state"]] for trial in trials.values()]
    drawn = [(trial, kind) for trial in trials.values() if (kind := _kind(trial, study)) and trial["scores"]]
    return {
        "study": study,
        "counts": [(name, states.count(name)) for name in STATES.values() if name in states],
        "compared": _compared(study, best, default),
        "history": scatter(
            [_mark(t, k, t["number"]) for t, k in drawn], log=False, label=_in_words(study, best), best_so_far=True
        ),
        "key": key([kind for _, kind in drawn]),
        "fields": [_field(span, study, best, drawn) for span in study["space"]],
        "names": [span["field"] for span in study["space"]],
        "trials": [_row(trial, study) for trial in trials.values()],
        "diff": diff,
        "command": f"fssl tune {study['study']} --profile {study['profile']} --seeds {len(study['seeds'])} "
        f"--trials {study['wanted']}",
    }


def _kind(trial: Mapping[str, Any], study: Mapping[str, Any]) -> Kind | None:
    if trial["state"] != "complete":
        return "pruned" if trial["state"] == "pruned" else None
    if trial["number"] == study["best"]:
        return "best"
    return "default" if trial["number"] == study["default"] else "trial"


def _accuracy(trial: Mapping[str, Any]) -> float:
    """The mean over its seeds; of a trial that was given up, over those it had."""
    scores = trial["scores"]
    return float(trial["value"]) if trial["value"] is not None else sum(scores) / len(scores)


def _mark(trial: Mapping[str, Any], kind: Kind, x: float) -> Mark:
    return Mark(
        x=x, y=100 * _accuracy(trial), kind=kind, text=f"trial {trial['number']}: {percent(_accuracy(trial))} %"
    )


def best_over_default(study: Mapping[str, Any]) -> Paired | None:
    """The best trial's accuracy less the default's, paired by seed; None where one of them is missing."""
    by_number = {trial["number"]: dict(zip(study["seeds"], trial["scores"], strict=False)) for trial in study["trials"]}
    best, default = by_number.get(study["best"]), by_number.get(study["default"])
    return None if best is None or default is None else paired(best, default)


def undecided(difference: Paired | None) -> bool:
    """Whether the seeds do not tell the best from the default, chosen or not."""
    return difference is None or difference.interval is None or difference.interval[0] <= 0


def _compared(
    study: Mapping[str, Any], best: Mapping[str, Any] | None, default: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The best trial against the default, seed by seed; None where one of them is missing."""
    if best is None or default is None:
        return None
    difference = best_over_default(study)
    return {
        "rows": [
            {
                "name": name,
                "number": t["number"],
                "mean": percent(t["value"]),
                "scores": [percent(s, 1) for s in t["scores"]],
            }
            for name, t in (("The default", default), ("The best of the trials", best))
        ],
        "same": best["number"] == default["number"],
        "undecided": undecided(difference),
        "difference": points(difference.mean) if difference else "",
        "interval": points_interval(difference.interval) if difference and difference.interval else "",
        "n": difference.n if difference else 0,
        "seeds": study["seeds"],
    }


def _field(
    span: Mapping[str, Any],
    study: Mapping[str, Any],
    best: Mapping[str, Any] | None,
    drawn: Sequence[tuple[Mapping[str, Any], Kind]],
) -> dict[str, Any]:
    name, below = span["field"], span["scale"] == BELOW_ONE
    share = (study["importance"] or {}).get(name)

    def x(value: float) -> float:
        return 1 - value if below else value

    shown = [_mark(trial, kind, x(trial["values"][name])) for trial, kind in drawn if name in trial["values"]]
    title = f"1 - {name}" if below else name
    return {
        **span,
        "title": title,
        "best": f"{best['values'][name]:g}" if best else "–",
        "importance": None if share is None else percent(share, 0),
        "share": None if share is None else f"{100 * share:.1f}",
        "svg": scatter(shown, log=span["scale"] != "linear", label=f"Accuracy of the trials over {title}"),
    }


def _row(trial: Mapping[str, Any], study: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "number": trial["number"],
        "state": STATES[trial["state"]],
        "why": trial.get("why", ""),
        "mean": percent(trial["value"]) if trial["value"] is not None else "–",
        "scores": " ".join(percent(score, 1) for score in trial["scores"]),
        "values": [
            f"{trial['values'][s['field']]:g}" if s["field"] in trial["values"] else "–" for s in study["space"]
        ],
        "marks": [word for word in ("best", "default") if trial["number"] == study[word]],
    }


def _in_words(study: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    found = f"the best is trial {best['number']} with {percent(best['value'])} percent" if best else "none is complete"
    return f"Accuracy on held-out labels of {len(study['trials'])} trials; {found}"


def _csv(study: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [span["field"] for span in study["space"]]
    writer.writerow(["trial", "state", "value", *(f"seed={seed}" for seed in study["seeds"]), *map(csv_safe, names)])
    for trial in study["trials"]:
        scores = [*trial["scores"], *[""] * (len(study["seeds"]) - len(trial["scores"]))]
        value = "" if trial["value"] is None else trial["value"]
        writer.writerow([trial["number"], trial["state"], value, *scores, *(trial["values"].get(n, "") for n in names)])
    return text.getvalue()
