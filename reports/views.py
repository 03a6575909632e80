"""What the site's templates show, as plain values: every number is turned into text here, none in a template."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.experiment import to_json
from benchmark.papers.item import Item
from benchmark.tracking.record import RunRecord
from reports.agreement import Agreement, agreement
from reports.cells import ACCURACY, CellResult, Grid, Records, Row, seeds_of
from reports.files import slug
from reports.statistics import Paired
from reports.verdicts import Judged
from reports.words import (
    difference,
    difference_interval,
    in_unit,
    number,
    percent,
    points,
    points_interval,
    without_dollars,
)

PROFILES = {
    "demo": "A whole table in minutes on two CPU cores, on scikit-learn's handwritten digits.",
    "laptop": "Real images at reduced size and length, a few minutes a run on two CPU cores.",
    "gpu": "Full data and network, fewer local steps.",
    "paper": "Exactly as published.",
}
AGREEMENT_MARKS = {"matches": "=", "differs": "\u2260", "undecided": "?"}
MARKS = {"holds": "\u2713", "contradicted": "\u2717", "undecided": "?"}
SHOWN_VALUES = 3  # distinct values of a provenance entry that are listed; the rest are counted


def cell_page(label: str) -> str:
    """The file name of a cell's page, without its ending."""
    return f"cell-{slug(label)}"


def value_view(item: Item, result: CellResult | None) -> dict[str, Any] | None:
    """One reproduced number: mean, spread, runs, status; and, on profile paper only, its difference to the paper."""
    if result is None:
        return None
    seen, published = result.summary, result.cell.published
    compared = item.profile == "paper" and seen is not None and published is not None
    agreed = agreement(item, result)
    return {
        "href": cell_page(result.cell.label) + ".html",
        "label": result.cell.label,
        "mean": percent(seen.mean) if seen else None,
        "sort": seen.mean if seen else -1.0,
        "std": percent(seen.std) if seen and seen.std is not None else None,
        "counts": result.counts,
        "status": result.status,
        "published": None if published is None else f"{published:.2f}",
        "interval": points_free(seen.interval) if seen and seen.has_spread else None,
        "delta": points(seen.mean - published / 100) if compared and seen and published is not None else None,
        "agreement": agreement_view(agreed) if agreed else None,
    }


def agreement_view(agreed: Agreement) -> dict[str, str]:
    """A verdict on a published number with its interval, for a pill and the line below it."""
    return {
        "verdict": agreed.verdict,
        "mark": AGREEMENT_MARKS[agreed.verdict],
        "interval": points_interval(agreed.interval),
        "level": f"{100 * agreed.level:.4g} %",
        "reason": agreed.reason,
    }


def points_free(interval: tuple[float, float] | None) -> str | None:
    """An interval of fractions in percent, without signs: "[95.1, 96.4]"."""
    return None if interval is None else f"[{percent(interval[0], 1)}, {percent(interval[1], 1)}]"


def grid_view(item: Item, cells: Grid) -> dict[str, Any]:
    return {
        "corner": cells.corner,
        "constant": cells.constant,
        "methods": cells.methods,
        "published_methods": cells.published_methods,
        "others": cells.methods[1:],
        "baseline": cells.baseline,
        "rows": [_row_view(item, cells, row) for row in cells.rows],
    }


def _row_view(item: Item, cells: Grid, row: Row) -> dict[str, Any]:
    published = [row.results[m].cell.published if m in row.results else None for m in cells.published_methods]
    return {
        "name": row.name,
        "published": ["\u2013" if number is None else f"{number:.2f}" for number in published],
        "ours": [value_view(item, row.results.get(method)) for method in cells.methods],
        "differences": [_difference_view(row.difference(method, cells.baseline)) for method in cells.methods[1:]],
    }


def _difference_view(seen: Paired | None) -> dict[str, str] | None:
    if seen is None:
        return None
    interval = seen.interval if seen.has_spread else None
    sign = "" if interval is None else "up" if interval[0] > 0 else "down" if interval[1] < 0 else ""
    return {"mean": points(seen.mean), "interval": points_interval(interval), "n": str(seen.n), "sign": sign}


def claim_view(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    contrast = " ".join(
        f"{'+' if f > 0 else '-'} {'' if abs(f) == 1 else f'{abs(f):g} × '}{label}"
        for label, f in claim.contrast.items()
    ).removeprefix("+ ")
    rule = {
        "beyond": "holds if the interval lies above zero, contradicted if below",
        "within": f"holds if the interval lies within ±{in_unit(claim.metric, claim.margin)}, contradicted if outside",
    }[claim.test]
    return {
        "name": claim.name,
        "quote": without_dollars(claim.quote),
        "source": claim.source,
        "verdict": judged.verdict,
        "mark": MARKS[judged.verdict],
        "estimate": difference(claim.metric, judged.estimate),
        "unit": "points" if in_unit(claim.metric, 0).endswith("points") else "",
        "interval": difference_interval(claim.metric, judged.interval) if judged.interval else None,
        "level": f"{100 * judged.level:.1f} %",
        "n": judged.n,
        "reason": judged.reason.replace("+-", "±"),
        "seeds_needed": judged.seeds_needed,
        "contrast": contrast,
        "metric": claim.metric,
        "rule": f"{rule}; least difference of interest {in_unit(claim.metric, claim.margin)}",
        "plot": forest(judged),
    }


def forest(judged: Judged) -> dict[str, Any] | None:
    """Where estimate, interval, zero and margin lie on a line of 0 to 100; None without an estimate. Without an
    interval only the estimate is drawn."""
    if judged.estimate is None:
        return None
    low, high = judged.interval or (judged.estimate, judged.estimate)
    margin = judged.claim.margin
    least, most = min(low, -margin, 0.0), max(high, margin, 0.0)
    width = (most - least) or 1.0

    def place(value: float) -> str:
        return f"{4 + 92 * (value - least) / width:.2f}"

    return {
        "zero": place(0.0),
        "low": place(low),
        "high": place(high),
        "length": f"{92 * (high - low) / width:.2f}",
        "estimate": place(judged.estimate),
        "margin": place(-margin),
        "margin_length": f"{92 * 2 * margin / width:.2f}",
        "has_interval": judged.interval is not None,
    }


def run_view(record: RunRecord) -> dict[str, str]:
    """One line of a cell page's table of seeds."""
    wall, loss = record.result.get("wall_seconds"), record.selected("test/loss")
    return {
        "seed": str(record.seed),
        "status": record.status,
        "accuracy": percent(record.selected(ACCURACY)),
        "loss": "-" if loss is None else number(loss),
        "kept": percent(record.last("pseudo/kept")),
        "pseudo": percent(record.last("pseudo/accuracy")),
        "rounds": str(len(record.rounds)),
        "wall": f"{wall / 60:.1f} min" if isinstance(wall, (int, float)) else "-",
        "commit": str(record.manifest.get("code", {}).get("commit", "unknown"))[:10],
    }


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One entry of the provenance: where it stands in the manifests, and the distinct values found there."""

    name: str
    values: tuple[str, ...]  # at most SHOWN_VALUES
    more: int  # distinct values not listed
    mixed: bool  # runs differ in it


def provenance(records: Iterable[RunRecord]) -> list[Fact]:
    """Every entry of the runs' manifests with its distinct values, and the selection rule of the results. Times and
    attempts differ in every run and stay in the manifests."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        entries = {**_flat(record.manifest), "selection rule": str(record.result.get("selection", "not finished"))}
        for name, value in entries.items():
            found.setdefault(name, {})[value] = None
    return [
        Fact(
            name=name,
            values=tuple(sorted(values)[:SHOWN_VALUES]),
            more=max(0, len(values) - SHOWN_VALUES),
            mixed=len(values) > 1 and not name.startswith("data partition"),  # partitions differ with the seed
        )
        for name, values in sorted(found.items())
    ]


def _flat(entries: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in entries.items():
        path = f"{above} {name}".strip()
        if isinstance(value, Mapping):
            flat |= _flat(value, path)
        elif not isinstance(value, list) and "attempt" not in path and not name.endswith(("_at", "started")):
            flat[path] = "none" if value is None else str(value)
    return flat


def resolved(result: CellResult, records: Records) -> str:
    """The experiment as `fssl run --config` reads it: as a run recorded it, else as the item asks for it."""
    runs = seeds_of(records, result.cell)
    plain = runs[0].experiment if runs else to_json(result.cell.experiment)
    return json.dumps({**plain, "seed": 0}, indent=2, ensure_ascii=False) + "\n"
