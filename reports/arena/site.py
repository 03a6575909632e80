"""The arena's part of an item page, as plain values for reports/templates/arena.html."""

from typing import Any

from markupsafe import Markup

from benchmark.papers.item import Item
from reports.arena.figures import dots
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
from reports.cells import Records
from reports.drawing import inline, svg
from reports.files import slug
from reports.style import looks
from reports.views import cell_page
from reports.words import percent


def arena_view(item: Item, records: Records) -> dict[str, Any]:
    """Tables, footnotes, properties; and `files`, the dot plots' SVG by file name."""
    found = columns(item, records)
    plots = {column.name: _plot(item, column) for column in found}
    files = {name: text.encode() for name, text in plots.values() if text}
    series = {method: look.colour for method, look in looks(methods(item)).items()}
    return {
        "caption": caption(),
        "columns": [_column_view(item, column, series, *plots[column.name]) for column in found],
        "footnotes": {number: note for note, number in footnotes(item).items()},
        "properties": arena_properties(item, records),
        "files": files,
    }


def _plot(item: Item, column: Column) -> tuple[str, str]:
    """The dot plot's file name and SVG; both empty where there is nothing to draw."""
    figure = dots(item, column)
    return (f"dots-{slug(str(column.value))}.svg", svg(figure)) if figure else ("", "")


def _column_view(item: Item, column: Column, series: dict[str, int], file: str, text: str) -> dict[str, Any]:
    rows = [_row_view(line, column, series) for line in lines(item, column)]
    return {
        "title": title(column),
        "standing": standing(column, item.seeds),
        "heads": [{"name": BASIS_NAMES[basis].capitalize(), "budget": budgets(column)[basis]} for basis in BASES],
        "compared": [row for row in rows if row["kind"] == "compared"],
        "apart": [row for row in rows if row["kind"] in ("apart", "waiting")],
        "bounds": [row for row in rows if row["kind"] == "bound"],
        "plot": Markup(inline(text, file.removesuffix(".svg"))) if text else None,
        "plot_file": file,
    }


def _row_view(line: Line, column: Column, series: dict[str, int]) -> dict[str, Any]:
    result, entry = line.result, line.entry
    steps, sent = costs(line)
    bound = line.bound.summary if line.bound else None
    return {
        "kind": line.kind,
        "method": line.method,
        "series": series.get(line.method),
        "marks": ", ".join(map(str, line.marks)),
        "href": f"{cell_page(result.cell.label)}.html" if result else None,
        "status": line.status,
        "state": result.status if result else "missing",
        "partial": result.counts if result and result.status == "partial" else None,
        "places": [_place_view(line.place(basis), basis, column) for basis in BASES] if entry else [],
        "mean": percent(bound.mean) if bound else None,
        "std": percent(bound.std) if bound and bound.std is not None else None,
        "steps": {"text": steps, "sort": entry.costs["steps"] if entry else -1},
        "bytes": {"text": sent, "sort": entry.costs["bytes"] if entry else -1},
    }


def _place_view(placing: Placing | None, basis: Basis, column: Column) -> dict[str, Any] | None:
    """One value with its rank or group; below it the difference to the best, or (at equal rounds) every seed."""
    if placing is None:
        return None
    seeds = every_seed(placing.values) if basis == "rounds" and len(placing.values) > 1 else ""
    return {
        "mean": percent(placing.summary.mean),
        "sort": placing.summary.mean,
        "std": None if placing.summary.std is None else percent(placing.summary.std),
        "place": str(placing.rank or placing.group or ""),
        "below": to_best(placing) if column.ranked else seeds,
    }
