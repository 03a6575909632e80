"""The object that `fssl reproduce --json` prints: cells with published and reproduced numbers, claims with verdicts.

Plain JSON values only. Reproduced values are fractions, as in the records; `published` is percent, as the paper prints
it and as results/published/ holds it. "units" says so in the object itself, so that no reader has to guess.
"""

from typing import Any

from benchmark.papers.item import Item
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect, counted
from reports.arena.exports import arena_object
from reports.cells import notes_of

UNITS = {
    "published": "percent, as printed",
    "mean": "fraction",
    "std": "fraction, n - 1 in the denominator",
    "estimate": "unit of the claim's metric (accuracy: fraction)",
    "interval": "as estimate",
}


def item_result(item: Item, records: Records, report: str | None = None) -> dict[str, Any]:
    """The item's cells and claims. `report` is the path of the page that shows them, None where none was built.

    A cell without a finished run has mean and std null and status "missing"; one with a diverged run has status
    "diverged" and its mean, if any, is that of the runs that ended. An item whose rows are methods has the arena's
    comparison besides, under "arena".
    """
    records = counted(item, records)
    results = collect(item, records)
    return {
        "item": item.name,
        "title": item.title,
        "profile": item.profile,
        "metric": ACCURACY,
        "units": dict(UNITS),
        "cells": [_cell(result) for result in results.values()],
        "claims": [_claim(judged) for judged in judge(item, records)],
        "notes": list(notes_of(item, results.values())),
        "report": report,
        **({"arena": arena_object(item, records)} if item.methods_are_rows else {}),
    }


def _cell(result: CellResult) -> dict[str, Any]:
    seen, published = result.summary, result.cell.printed()
    return {
        "cell_key": result.cell.cell_key,
        "label": result.cell.label,
        "role": result.cell.role,
        "setting": dict(result.cell.setting),
        "published": None if published is None else float(published),
        "mean": seen.mean if seen else None,
        "std": seen.std if seen else None,
        "n": result.n,
        "n_wanted": result.n_wanted,
        "n_diverged": len(result.diverged),
        "status": result.status,
    }


def _claim(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    return {
        "name": claim.name,
        "text": claim.quote or claim.name,
        "source": claim.source,
        "metric": claim.metric,
        "test": claim.form,
        "margin": float(claim.least),
        "verdict": judged.verdict,
        "estimate": judged.estimate,
        "interval": None if judged.interval is None else list(judged.interval),
        "level": judged.level,
        "n": judged.n,
        "seeds_needed": judged.seeds_needed,
        "reason": judged.reason,
    }
