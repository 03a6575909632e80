"""Export an item for other programs and for a paper: the JSON object of `reproduce --json`, and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.files import write_atomically
from benchmark.papers.item import Cell, Item
from benchmark.records.versions import older_numerics
from benchmark.verdicts.cell_results import Records
from reports.arena_tables import arena_rows, arena_tables
from reports.claims import rows_of
from reports.claims_table import claim_values, claims_table
from reports.costs_and_curves import CURVE_COLUMNS, curve_rows
from reports.entries import entry_values, is_arena, metrics_of, notes_of
from reports.figures import Picture
from reports.formatting import WORDS, slug
from reports.gains import gains_table
from reports.item_figures import drawn_metrics, item_picture
from reports.item_results import ItemResults
from reports.leads import lead_rows, lead_table
from reports.paper_table import item_tables
from reports.published_table import published_table
from reports.sentences import sentence_values, sentences_of
from reports.tables import Table, csv_of, files_of


def item_result(item: Item, records: Records, report: str | None = None) -> dict[str, Any]:
    """Return the item's cells and claims as plain JSON values. `report`: the page that shows them, if it was built.

    A cell without a finished run has mean and std null and status "missing". A cell with a diverged run has status
    "diverged", and its mean, if any, is the mean of the runs that ended. "metrics" has each further metric of the item.
    A method comparison has the rows of its CSV under "arena".
    """
    reported = ItemResults(item, records)
    first, *others = metrics_of(item)
    cells = []
    for cell in item.cells:
        more = {metric: _numbers(reported, cell, metric) for metric in others}
        setting = {"cell_key": cell.cell_key, "label": cell.label, "role": cell.role, "setting": dict(cell.setting)}
        cells.append({**setting, **_numbers(reported, cell, first), **({"metrics": more} if more else {})})
    rows = rows_of(reported)
    claims = [claim_values(row) for row in rows]
    sentences = [sentence_values(sentence) for sentence in sentences_of(rows)]
    return {
        "item": item.name,
        "title": item.title,
        "profile": item.profile,
        "metric": first,
        "units": WORDS["units"],
        "cells": cells,
        "claims": claims,
        "sentences": sentences,
        "notes": list(notes_of(reported)),
        "older_numerics": older_numerics(reported.runs),
        "report": report,
        **({"arena": arena_rows(reported)} if is_arena(item) else {}),
        **({"leads": lead_rows(reported)} if item.reference else {}),
    }


def _numbers(reported: ItemResults, cell: Cell, metric: str) -> dict[str, Any]:
    published = cell.published_value(metric)
    values = entry_values(reported, cell, metric)
    ours = {name: values[name] for name in ("mean", "std", "n", "n_wanted", "n_diverged", "status")}
    setting = {} if published is None else {"published_setting": dict(cell.published_setting)}
    return {"published": None if published is None else float(published), **setting, **ours}


def shown_of(reported: ItemResults) -> dict[str, Any]:
    """Return the tables, claims and picture of the item's page, which `item_files` writes as files."""
    tables = arena_tables(reported) if is_arena(reported.item) else item_tables(reported)
    if reported.item.reference:
        tables = [lead_table(reported), *tables]
    published = published_table(reported.item)
    gains = gains_table(reported.item, reported.of)
    return {
        "published": published,
        "tables": [*tables, gains] if gains else tables,
        "claims": claims_table(rows_of(reported)),
        "picture": item_picture(reported),
    }


def item_files(
    reported: ItemResults, published: Table | None, tables: Sequence[Table], claims: Table, picture: Picture | None
) -> dict[str, bytes]:
    """Return the files of an item by name.

    They are tables, with the published one first, and claims as Markdown, LaTeX and CSV, the figure as SVG and PDF, and
    the numbers behind it as CSV.
    """
    every = [published, *tables] if published else list(tables)
    files = files_of("table", every) | (files_of("claims", [claims]) if claims.rows else {})
    if picture:
        files |= {"figure.svg": picture.svg().encode(), "figure.pdf": picture.saved("pdf")}
    if reported.runs:
        metrics = drawn_metrics(reported)
        rows: list[dict[str, Any]] = []
        for result in reported.results.values():
            rows += curve_rows(result, metrics)
        files["figure.csv"] = csv_of(rows, (*CURVE_COLUMNS, *metrics))
    return files


def write_item(item: Item, records: Records, folder: Path) -> list[Path]:
    """Write the files of one item into `folder`, named after it: ssfl-fig3-laptop-figure.pdf. Raise CannotWrite."""
    reported = ItemResults(item, records)
    start = "-".join(slug(part) for part in (*item.name.split("/"), item.profile))
    paths = []
    for name, content in item_files(reported, **shown_of(reported)).items():
        paths.append(folder / f"{start}-{name}")
        write_atomically(paths[-1], content)
    return paths
