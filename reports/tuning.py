"""Describe tuning studies in one sentence: the search on held-out labels, and the gain of the best setting.

Only a study's JSON file under results/studies is needed, neither Optuna nor the study's storage.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import one_line
from benchmark.verdicts.statistics import paired
from reports.formatting import count, points


def studies_in(folder: Path) -> tuple[dict[str, tuple[str, bytes]], list[str]]:
    """Return a sentence and the file of each study by its name, and one line per file that cannot be read."""
    studies, troubles = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            content = path.read_bytes()
            study = json.loads(content)
            name = f"{study['title']} ({study['study']}, profile {study['profile']})"
            data = study["data"]
            trials = f"{counts_text(study)} trials on {data['N_validation']} labels of {data['name']}"
            studies[path.stem] = (f"{name}: {trials}. {best_text(study)}".rstrip(), content)
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            troubles.append(f"studies/{path.name}: {one_line(error)}; `fssl tune` writes it again")
    return studies, troubles


def counts_text(study: Mapping[str, Any]) -> str:
    """Write the numbers of trials by state: "14 complete, 10 pruned"."""
    counts = Counter(trial["state"] for trial in study["trials"])
    return ", ".join(f"{counts[state]} {state}" for state in ("complete", "pruned") if state in counts)


def best_text(study: Mapping[str, Any]) -> str:
    """Say how much better the best trial is than the default, over their common seeds; "" if one of them is missing."""
    scores = {trial["number"]: dict(zip(study["seeds"], trial["scores"], strict=False)) for trial in study["trials"]}
    difference = paired(scores.get(study["best"], {}), scores.get(study["default"], {}))
    if difference is None:
        return ""
    if study["best"] == study["default"]:
        return "No trial was better than the default."
    seeds = count(difference.n, "common seed")
    return f"The best trial differs from the default by {points(difference.mean)} points, over {seeds}."
