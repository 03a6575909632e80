"""What the site's templates show, as plain values: every number is turned into text here, none in a template."""

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmark.experiment import to_json
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.results import ACCURACY, CellResult, Records, seeds_of
from benchmark.verdicts.statistics import Paired, Summary
from reports.agreement import Agreement, agreement
from reports.cells import Grid, Row
from reports.files import item_page, slug
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


Scale: TypeAlias = tuple[float, float]  # the least and the largest accuracy that a table's bars reach, fractions


def scale_of(summaries: Iterable[Summary | None]) -> Scale | None:
    """One for all bars of a table; None without a number. No bar reaches beyond 0 and 1."""
    seen = [found for found in summaries if found is not None]
    ends = [edge for one in seen for edge in (one.mean, *((one.interval or ()) if one.has_spread else ()))]
    return (max(0.0, min(ends)), min(1.0, max(ends))) if ends else None


def whisker(seen: Summary | None, scale: Scale | None) -> dict[str, str] | None:
    """Where mean and interval lie on the table's scale, in percent of its width; None where all of it is one point."""
    if seen is None or scale is None or scale[1] <= scale[0]:
        return None
    interval = seen.interval if seen.has_spread and seen.interval else (seen.mean, seen.mean)
    low, high, at = (
        100 * (min(max(v, scale[0]), scale[1]) - scale[0]) / (scale[1] - scale[0]) for v in (*interval, seen.mean)
    )
    return {"low": f"{low:.1f}", "length": f"{high - low:.1f}", "at": f"{at:.1f}"}


def scale_text(scale: Scale | None) -> str:
    return "" if scale is None else f"{percent(scale[0], 1)} to {percent(scale[1], 1)} %"


def value_view(item: Item, result: CellResult | None, scale: Scale | None = None) -> dict[str, Any] | None:
    """One reproduced number: mean, spread, runs, status; and, on profile paper only, its difference to the paper.
    `scale`: of the bar that draws its interval; without one there is no bar."""
    if result is None:
        return None
    seen, published = result.summary, result.cell.printed()
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
        "whisker": whisker(seen, scale),
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
    scale = scale_of(result.summary for row in cells.rows for result in row.results.values())
    return {
        "scale": scale_text(scale),
        "corner": cells.corner,
        "constant": cells.constant,
        "methods": cells.methods,
        "published_methods": cells.published_methods,
        "others": cells.methods[1:],
        "baseline": cells.baseline,
        "rows": [_row_view(item, cells, row, scale) for row in cells.rows],
    }


def _row_view(item: Item, cells: Grid, row: Row, scale: Scale | None) -> dict[str, Any]:
    published = [row.results[m].cell.printed() if m in row.results else None for m in cells.published_methods]
    return {
        "name": row.name,
        "published": ["\u2013" if number is None else f"{number:.2f}" for number in published],
        "ours": [value_view(item, row.results.get(method), scale) for method in cells.methods],
        "differences": [_difference_view(item, cells, row, method) for method in cells.methods[1:]],
    }


def compare_link(item: Item, labels: Iterable[str]) -> str:
    """The compare page with these cells chosen, from the site's root; the first is what the others are held against."""
    folder = item_page(item).parent
    return "compare.html#" + ",".join(f"{folder.as_posix()}/{cell_page(label)}.html" for label in labels)


def _difference_view(item: Item, cells: Grid, row: Row, method: str) -> dict[str, str] | None:
    seen: Paired | None = row.difference(method, cells.baseline)
    if seen is None:
        return None
    href = compare_link(item, (row.results[name].cell.label for name in (cells.baseline, method)))
    interval = seen.interval if seen.has_spread else None
    sign = "" if interval is None else "up" if interval[0] > 0 else "down" if interval[1] < 0 else ""
    return {
        "mean": points(seen.mean),
        "interval": points_interval(interval),
        "n": str(seen.n),
        "sign": sign,
        "href": href,
    }


def claim_view(judged: Judged, labels: Container[str] = ()) -> dict[str, Any]:
    """`labels`: of the cells that have a page beside the claim's, to which its contrast links."""
    claim = judged.claim
    contrast = [
        {
            "factor": f"{'+' if f > 0 else '-'} {'' if abs(f) == 1 else f'{abs(f):g} × '}".removeprefix(
                "" if place else "+ "
            ),
            "label": label,
            "href": f"{cell_page(label)}.html" if label in labels else None,
        }
        for place, (label, f) in enumerate(claim.contrast.items())
    ]
    least = in_unit(claim.metric, claim.least)
    rule = {
        "improves": "holds if the interval lies above zero, contradicted if below",
        "comparable": f"holds if the interval lies within ±{least}, contradicted if outside",
    }[claim.form]
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
        "rule": f"{rule}; least difference of interest {in_unit(claim.metric, claim.least)}",
        "plot": forest(judged),
    }


def forest(judged: Judged) -> dict[str, Any] | None:
    """Where estimate, interval, zero and margin lie on a line of 0 to 100; None without an estimate. Without an
    interval only the estimate is drawn."""
    if judged.estimate is None:
        return None
    low, high = judged.interval or (judged.estimate, judged.estimate)
    margin = judged.claim.least
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
