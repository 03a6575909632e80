"""An item for other programs and for a paper: the JSON object of `reproduce --json`, and its files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.papers.item import Cell, Item
from benchmark.records.files import write_atomically
from benchmark.verdicts.results import Records
from reports.arena import arena_object, arena_tables, arenas, is_arena
from reports.claims import claim_values, claims_table, rows_of
from reports.figures import Picture
from reports.formatting import slug
from reports.interval_figures import dots
from reports.item_figures import figure_csv, item_picture
from reports.paper_table import entry_values, item_tables, metrics_of, notes_of
from reports.reported import Reported
from reports.results import csv_text
from reports.tables import Table, files_of

UNITS = {
    "published": "percent for metrics that are fractions, as printed",
    "mean": "fraction, or the metric's own unit",
    "std": "as mean, n - 1 in the denominator",
    "estimate": "unit of the claim's metric (accuracy: fraction)",
    "interval": "as estimate",
    "collapsed": "of each cell: runs that collapsed, and runs",
}


def item_result(item: Item, records: Records, report: str | None = None) -> dict[str, Any]:
    """The item's cells and claims as plain JSON values. `report`: the page that shows them, None where none was built.

    A cell without a finished run has mean and std null and status "missing"; one with a diverged run has status
    "diverged", and its mean, if any, is that of the runs that ended. "metrics" has each further metric of the item. An
    item that compares methods with each other has the comparison under "arena".
    """
    reported = Reported(item, records)
    first, *others = metrics_of(item)
    cells = []
    for cell in item.cells:
        more = {metric: _numbers(reported, cell, metric) for metric in others}
        setting = {"cell_key": cell.cell_key, "label": cell.label, "role": cell.role, "setting": dict(cell.setting)}
        cells.append({**setting, **_numbers(reported, cell, first), **({"metrics": more} if more else {})})
    return {
        "item": item.name,
        "title": item.title,
        "profile": item.profile,
        "metric": first,
        "units": dict(UNITS),
        "cells": cells,
        "claims": [claim_values(row) for row in rows_of(reported)],
        "notes": list(notes_of(reported)),
        "report": report,
        **({"arena": arena_object(reported)} if is_arena(item) else {}),
    }


def _numbers(reported: Reported, cell: Cell, metric: str) -> dict[str, Any]:
    published, values = cell.printed(metric), entry_values(reported, cell, metric)
    ours = {name: values[name] for name in ("mean", "std", "n", "n_wanted", "n_diverged", "status")}
    return {"published": None if published is None else float(published), **ours}


def tables_of(reported: Reported) -> list[Table]:
    """The item's own tables."""
    return arena_tables(reported) if is_arena(reported.item) else item_tables(reported)


def item_files(reported: Reported, tables: Sequence[Table], pictures: Mapping[str, Picture]) -> dict[str, bytes]:
    """The files of an item, by name.

    Tables and claims as Markdown, LaTeX and CSV; pictures as SVG and PDF; the numbers behind the figure as CSV.
    """
    files = files_of([*tables, *([claims_table(rows_of(reported))] if reported.item.claims else [])])
    for name, picture in pictures.items():
        files[f"{name}.svg"] = picture.svg().encode()
        files[f"{name}.pdf"] = picture.pdf()
    if reported.runs:
        files["figure.csv"] = csv_text(figure_csv(reported)).encode()
    return files


def item_pictures(reported: Reported) -> dict[str, Picture]:
    """The item's pictures, by file name.

    The figure and, in an arena, a picture of every seed for each of its tables.
    """
    pictures = {"figure": item_picture(reported)}
    if is_arena(reported.item):
        pictures |= {
            f"dots-{place}": dots(reported.item, arena) for place, arena in enumerate(arenas(reported), start=1)
        }
    return {name: picture for name, picture in pictures.items() if picture is not None}


def write_item(item: Item, records: Records, folder: Path) -> list[Path]:
    """Everything of one item into `folder`, named after it: ssfl-fig3-laptop-figure.pdf. Raises CannotWrite."""
    reported = Reported(item, records)
    start = "-".join(slug(part) for part in (*item.name.split("/"), item.profile))
    files = item_files(reported, tables_of(reported), item_pictures(reported))
    paths = []
    for name, content in files.items():
        paths.append(folder / f"{start}-{name}")
        write_atomically(paths[-1], content)
    return paths


def write_pictures(results: Sequence[tuple[Item, Records]], folder: Path) -> list[Path]:
    """The figures of these items as PNG, for the README: folder/ssfl/tab2-laptop.png. Raises CannotWrite."""
    paths = []
    for item, records in results:
        picture = item_picture(Reported(item, records))
        if picture is not None:
            paper, name = item.name.split("/")
            paths.append(folder / paper / f"{name}-{item.profile}.png")
            write_atomically(paths[-1], picture.png())
    return paths
