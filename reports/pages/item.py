"""An item's page: the table in the paper's layout, figures, claims, what is ambiguous, and what makes it again."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.papers.item import Item
from benchmark.papers.published import read_published
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect, seeds_of
from reports.aggregate import aggregate
from reports.agreement import agreement
from reports.arena.table import columns as arena_columns
from reports.arena.table import method_of, methods
from reports.cells import SELECTED_ON_TEST, grid, ladder, notes_of
from reports.chart import chart, legend, swatch
from reports.figures import DIVERSITY, measured, panels, variant_words
from reports.pages.explained import item_gains
from reports.pages.paper import paper_page
from reports.series import finished_runs, seeds_series
from reports.style import Look, looks, series_looks
from reports.trust import remarks
from reports.views import (
    AGREEMENT_MARKS,
    MARKS,
    PROFILES,
    Scale,
    claim_view,
    grid_view,
    points_free,
    provenance,
    scale_of,
    scale_text,
    value_view,
)
from reports.words import mean_spread, metric_name, percent

KEPT = ("pseudo/kept", "pseudo/accuracy")
WIDEST_GRID = 8  # methods beside each other; a list reads better than a wider table
MOST_LINES = 16  # a chart; more say nothing
PANEL_POINTS = 120
MOST_CHOICES = 30  # values of a setting that a list is filtered by


def heading(item: Item, results: Mapping[str, CellResult], judged: Sequence[Judged]) -> dict[str, Any]:
    """What the front page and the item's own say of it in numbers."""
    results = {label: result for label, result in results.items() if result.awaited}
    statuses = [result.status for result in results.values()]
    agreed = [seen for result in results.values() if (seen := agreement(item, result)) is not None]
    return {
        "item": item,
        "paper": item.name.split("/")[0],
        "paper_page": paper_page(item.name.split("/")[0]),
        "profile_text": PROFILES.get(item.profile, ""),
        "done": sum(status == "done" for status in statuses),
        "total": len(statuses) + len(item.choices),
        "runs_done": sum(min(result.n, item.seeds) for result in results.values()),
        "runs_wanted": item.seeds * (len(statuses) + len(item.choices)),
        "diverged": sum(len(result.diverged) for result in results.values()),
        "verdicts": {mark: sum(one.verdict == mark for one in judged) for mark in MARKS},
        "agreements": {mark: sum(one.verdict == mark for one in agreed) for mark in AGREEMENT_MARKS},
        "marks": {**AGREEMENT_MARKS, **MARKS},
    }


def item_values(item: Item, records: Records, arena: Mapping[str, Any] | None) -> dict[str, Any]:
    """`records`: of the item's own seeds only. `arena`: its view where rows are methods, else None."""
    results, judged = collect(item, records), judge(item, records)
    cells = grid(results.values())
    if arena or (cells and len(cells.methods) > WIDEST_GRID):
        cells = None
    runs = [record for cell in item.cells for record in seeds_of(records, cell)]
    scale = scale_of(result.summary for result in results.values())
    return {
        **heading(item, results, judged),
        "arena": arena,
        "grid": grid_view(item, cells) if cells else None,
        "notes": notes_of(item, results.values()),
        "selection": SELECTED_ON_TEST if any(r.selected_on_test for r in results.values()) else None,
        "cells": [_listed(item, result, scale) for result in results.values() if result.cell.role != "ladder"],
        "scale": scale_text(scale),
        "choices": list_filters(results.values()),
        "ladder": [_rung(item, result, records, scale) for result in ladder(results.values())],
        "claims": [claim_view(one, results) for one in judged],
        "margin": margin_text(item),
        "aggregates": aggregates(item, results),
        "gains": item_gains(item, records),
        "charts": charts(item, records),
        "ambiguities": ambiguities(item),
        "open_questions": open_questions(item),
        "command": f"fssl reproduce {item.name} --profile {item.profile} --seeds {item.seeds}",
        "alone": f"fssl report {item.name} --profile {item.profile} --out FOLDER",
        "remarks": remarks(runs, item.profile),
        "provenance": provenance(runs),
        "n_runs": len(runs),
    }


def aggregates(item: Item, results: Mapping[str, CellResult]) -> list[dict[str, Any]]:
    """Interquartile mean and bootstrap interval of every method over the cells that all methods have finished, best
    first; empty where that is one cell, which the table shows already."""
    known = [r for r in results.values() if r.cell.role in ("published", "control") and "method" in r.cell.setting]
    places: dict[str, dict[str, CellResult]] = {}
    for result in known:
        setting = {key: value for key, value in result.cell.setting.items() if key != "method"}
        places.setdefault(json.dumps(setting, sort_keys=True), {})[method_of(result.cell)] = result
    names = list(dict.fromkeys(method_of(result.cell) for result in known))
    whole = {
        place: found
        for place, found in places.items()
        if set(found) == set(names) and all(one.values and not one.diverged for one in found.values())
    }
    if len(whole) < 2 or len(names) < 2:
        return []
    found = {
        name: aggregate({place: list(cells[name].values.values()) for place, cells in whole.items()}) for name in names
    }
    chosen = looks(names)
    return [
        {
            "method": name,
            "key": swatch(chosen[name]),
            "mean": percent(seen.mean),
            "sort": seen.mean,
            "interval": points_free(seen.interval) or "",
            "n": seen.n,
            "cells": seen.cells,
        }
        for name, seen in sorted(found.items(), key=lambda pair: -pair[1].mean)
    ]


def charts(item: Item, records: Records) -> dict[str, Any] | None:
    """Panels of lines: a row a metric, a column a row of the table (arena: a column of it). None without a run."""
    if not any(records.values()):
        return None
    metrics = [ACCURACY] if item.methods_are_rows else [ACCURACY, DIVERSITY, KEPT[0]]
    found = item_panels(item, records)
    names = list(dict.fromkeys(name for _, lines in found for name in lines))
    if not names or any(len(lines) > MOST_LINES for _, lines in found):
        return None
    styles = line_looks(item, names)
    return {
        "legend": legend(styles) if names != [""] else Markup(""),
        "columns": len(found),
        "rows": [
            {
                "metric": metric_name(metric),
                "variant": variant_words(metric) if metric.startswith("diversity/") else "",
                "panels": [
                    {"title": title, "svg": _panel(metric, title, lines, records, styles)} for title, lines in found
                ],
            }
            for metric in metrics
            if metric == ACCURACY or measured(records, metric)
        ],
    }


def _panel(
    metric: str, title: str, lines: Mapping[str, CellResult], records: Records, styles: Mapping[str, Look]
) -> Markup:
    series = {name: (seeds_series(r, records, metric, PANEL_POINTS), styles[name]) for name, r in lines.items()}
    return chart(metric, series, label=f"{title}: " if title else "")


def item_panels(item: Item, records: Records) -> list[tuple[str, dict[str, CellResult]]]:
    """Title and lines of each panel."""
    return _arena_panels(item, records) if item.methods_are_rows else panels(item, records)


def line_looks(item: Item, names: Sequence[str]) -> dict[str, Look]:
    """The methods' looks where lines are methods; by place where they are settings."""
    known = {str(cell.setting.get("method")) for cell in item.cells}
    if set(names) <= known:
        return looks(names)
    return dict(zip(names, series_looks(len(names)), strict=True))


def _arena_panels(item: Item, records: Records) -> list[tuple[str, dict[str, CellResult]]]:
    found = []
    for column in arena_columns(item, records):
        cells = {method_of(r.cell): r for r in (*(e.result for e in column.entries), *column.apart)}
        lines = {name: cells[name] for name in methods(item) if name in cells}
        if any(result.n or result.diverged for result in lines.values()):
            found.append(("" if column.value is None else column.name, lines))
    return found


def ambiguities(item: Item) -> list[dict[str, str]]:
    """Settings in which the paper and its released code differ, and what the item's cells take."""
    taken: dict[str, dict[str, int]] = {}
    for cell in item.cells:
        for name, value in _choices(to_json(cell.experiment)).items():
            counts = taken.setdefault(name, {})
            counts[value] = counts.get(value, 0) + 1
    words = {"paper": "as the paper says", "released_code": "as the released code does"}
    return [
        {
            "name": name,
            "taken": ", ".join(
                words[value] + (f" ({count} of {sum(counts.values())} cells)" if len(counts) > 1 else "")
                for value, count in sorted(counts.items())
            ),
        }
        for name, counts in sorted(taken.items())
    ]


def _choices(entries: Mapping[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in entries.items():
        if isinstance(value, Mapping):
            found |= _choices(value, f"{above}{key}.")
        elif value in ("paper", "released_code") and key != "profile":
            found[f"{above}{key}"] = str(value)
    return found


def open_questions(item: Item) -> list[str]:
    """What the published file notes of the item and the page does not say already."""
    try:
        found = read_published(item.name)
    except ConfigError:
        return []
    return [str(note) for note in found.get("notes", ()) if note not in item.notes]


def margin_text(item: Item) -> str:
    """Whose choice it is that two numbers count as equal; empty where none are compared."""
    compared = any(cell.printed() is not None for cell in item.cells)
    if item.profile != "paper" or item.margin is None or not compared:
        return ""
    return (
        f"A published and a reproduced accuracy count as equal within \u00b1{100 * item.margin:.1f} points. "
        "That margin is our choice, fixed in the file of published numbers before any run; the paper names none."
    )


def list_filters(results: Iterable[CellResult]) -> dict[str, list[str]]:
    """What a list can be filtered by: each key of the settings with a few values, and those."""
    values: dict[str, dict[str, None]] = {}
    for result in results:
        for key, value in result.cell.setting.items() if result.cell.role != "ladder" else ():
            values.setdefault(key, {})[str(value)] = None
    return {key: list(found) for key, found in values.items() if 2 <= len(found) <= MOST_CHOICES}


def _listed(item: Item, result: CellResult, scale: Scale | None) -> dict[str, Any]:
    return {
        "setting": {key: str(v) for key, v in result.cell.setting.items()},
        "value": value_view(item, result, scale),
    }


def _rung(item: Item, result: CellResult, records: Records, scale: Scale | None) -> dict[str, Any]:
    """A ladder cell: accuracy, and the means of what its finished runs measured of their pseudo-labels."""
    quality = {}
    for metric in KEPT:
        values = [value for run in finished_runs(records, result) if (value := run.selected(metric)) is not None]
        quality[metric_name(metric)] = percent(sum(values) / len(values)) if values else "-"
    text = mean_spread(result.summary) if result.summary else None
    return {"value": value_view(item, result, scale), "text": text, "quality": quality}
