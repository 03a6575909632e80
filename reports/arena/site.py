"""The arena's part of an item page, as plain values for reports/templates/arena.html."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records
from reports.arena.figures import dots, dots_csv
from reports.arena.properties import arena_properties
from reports.arena.table import BASES, Basis, Column, Placing, columns, footnotes, methods
from reports.arena.text import (
    BASIS_NAMES,
    Line,
    budgets,
    caption,
    costs,
    every_seed,
    lines,
    standing,
    title,
    to_best,
)
from reports.chart import swatch
from reports.drawing import inline, pdf, svg
from reports.files import slug
from reports.style import Look, looks
from reports.views import Scale, cell_page, points_free, scale_of, scale_text, whisker
from reports.words import percent


def arena_view(item: Item, records: Records) -> dict[str, Any]:
    """Tables, footnotes, properties; and `files`, the dot plots' SVG by file name."""
    found = columns(item, records)
    plots = {column.name: _plot(item, column) for column in found}
    files = {name: content for plot in plots.values() for name, content in plot.files.items()}
    series = looks(methods(item))
    return {
        "caption": caption(),
        "columns": [_column_view(item, column, series, plots[column.name]) for column in found],
        "footnotes": {number: note for note, number in footnotes(item).items()},
        "properties": arena_properties(item, records),
        "files": files,
    }


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A dot plot; empty where there is nothing to draw."""

    name: str = ""  # of its files, without their endings
    text: str = ""  # its SVG
    files: Mapping[str, bytes] = field(default_factory=dict)  # SVG, PDF and the numbers


def _plot(item: Item, column: Column) -> Plot:
    figure = dots(item, column)
    if figure is None:
        return Plot()
    name, text = f"dots-{slug(str(column.value))}", svg(figure)
    files = {f"{name}.svg": text.encode(), f"{name}.pdf": pdf(figure), f"{name}.csv": dots_csv(item, column).encode()}
    return Plot(name=name, text=text, files=files)


def _column_view(item: Item, column: Column, series: Mapping[str, Look], plot: Plot) -> dict[str, Any]:
    scale = scale_of(place.summary for entry in column.entries for place in entry.places.values())
    rows = [_row_view(line, column, series, scale) for line in lines(item, column)]
    return {
        "title": title(column),
        "standing": standing(column, item.seeds),
        "heads": [{"name": BASIS_NAMES[basis].capitalize(), "budget": budgets(column)[basis]} for basis in BASES],
        "compared": [row for row in rows if row["kind"] == "compared"],
        "apart": [row for row in rows if row["kind"] in ("apart", "waiting")],
        "bounds": [row for row in rows if row["kind"] == "bound"],
        "plot": Markup(inline(plot.text, plot.name)) if plot.text else None,
        "plot_files": list(plot.files),
        "scale": scale_text(scale),
    }


def _row_view(line: Line, column: Column, series: Mapping[str, Look], scale: Scale | None) -> dict[str, Any]:
    result, entry = line.result, line.entry
    steps, sent = costs(line)
    bound = line.bound.summary if line.bound else None
    return {
        "kind": line.kind,
        "method": line.method,
        "swatch": swatch(series[line.method]) if line.method in series else None,
        "marks": ", ".join(map(str, line.marks)),
        "href": f"{cell_page(result.cell.label)}.html" if result else None,
        "status": line.status,
        "state": result.status if result else "missing",
        "partial": result.counts if result and result.status == "partial" else None,
        "places": [_place_view(line.place(basis), basis, column, scale) for basis in BASES] if entry else [],
        "mean": percent(bound.mean) if bound else None,
        "std": percent(bound.std) if bound and bound.std is not None else None,
        "steps": {"text": steps, "sort": entry.costs["steps"] if entry else -1},
        "bytes": {"text": sent, "sort": entry.costs["bytes"] if entry else -1},
    }


def _place_view(placing: Placing | None, basis: Basis, column: Column, scale: Scale | None) -> dict[str, Any] | None:
    """One value with its rank or group; below it the difference to the best, or (at equal rounds) every seed."""
    if placing is None:
        return None
    seeds = every_seed(placing.values) if basis == "rounds" and len(placing.values) > 1 else ""
    return {
        "mean": percent(placing.summary.mean),
        "sort": placing.summary.mean,
        "std": None if placing.summary.std is None else percent(placing.summary.std),
        "interval": points_free(placing.summary.interval) if placing.summary.has_spread else None,
        "whisker": whisker(placing.summary, scale),
        "place": str(placing.rank or placing.group or ""),
        "below": to_best(placing) if column.ranked else seeds,
    }
