"""The arena's table for other programs: JSON and CSV (full precision), LaTeX and Markdown (as printed)."""

import csv
import io
from collections.abc import Iterable
from typing import Any

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult, Records, collect
from reports.arena.properties import arena_properties
from reports.arena.table import BASES, COSTS, Column, Entry, Placing, all_of, columns, footnotes, method_of
from reports.arena.text import (
    BASIS_NAMES,
    Line,
    accuracy,
    budget_text,
    caption,
    costs,
    lines,
    standing,
    title,
    to_best,
)
from reports.cells import SELECTED_ON_TEST
from reports.exports import cell_fields, cell_names, tabular
from reports.words import csv_safe, markdown, mean_spread

PLACE = ("mean", "std", "n", "rank", "group", "to_best", "to_best_low", "to_best_high")
HEAD = ("method", *BASIS_NAMES.values(), "local steps", "MB up + down")


def arena_object(item: Item, records: Records) -> dict[str, Any]:
    """What `fssl reproduce --json` says under "arena": accuracies are fractions, costs local steps and bytes of a run.
    A method that had no evaluation within a budget has null there."""
    found = columns(item, records)
    properties: dict[str, dict[str, str]] = {}
    for table in arena_properties(item, records):
        for method, marks in table.rows.items():
            properties.setdefault(method, {}).update(zip(table.columns, map(str, marks), strict=True))
    return {
        "varies": found[0].key if found else "",
        "columns": [_column_object(column) for column in found],
        "properties": properties,
    }


def _column_object(column: Column) -> dict[str, Any]:
    return {
        "value": column.value,
        "seeds": list(column.seeds),
        "ranked": column.ranked,
        "budget": {"rounds": column.rounds, **{name: column.budget.get(name) for name in COSTS}},
        "methods": [_entry_object(entry) for entry in column.entries],
        "not_compared": [_apart_object(result) for result in column.apart],
        "waiting": [choice.label for choice in column.waiting],
        "bounds": [_bound_object(result) for result in column.bounds],
    }


def _entry_object(entry: Entry) -> dict[str, Any]:
    return {
        "method": method_of(entry.cell),
        "label": entry.cell.label,
        "cell_key": entry.cell.cell_key,
        "note": entry.cell.note,
        "cost": dict(entry.costs),
        **{basis: _place_object(entry.places.get(basis)) for basis in BASES},
    }


def _place_object(placing: Placing | None) -> dict[str, Any] | None:
    if placing is None:
        return None
    seen = placing.difference
    return {
        "mean": placing.summary.mean,
        "std": placing.summary.std,
        "values": {str(seed): value for seed, value in placing.values.items()},
        "rank": placing.rank,
        "group": placing.group,
        "to_best": seen and {"mean": seen.mean, "interval": seen.interval and list(seen.interval), "level": seen.level},
    }


def _apart_object(result: CellResult) -> dict[str, Any]:
    return {"method": method_of(result.cell), "label": result.cell.label, "status": result.status}


def _bound_object(result: CellResult) -> dict[str, Any]:
    seen = result.summary
    return {**_apart_object(result), "mean": seen and seen.mean, "std": seen and seen.std, "n": result.n}


def arena_csv(item: Item, records: Records) -> str:
    """The fields of every item's CSV, one line a cell, and what the arena adds; empty where a cell has no such value.
    Choices that wait have a line without numbers."""
    keys = list(dict.fromkeys(key for entry in all_of(item) for key in entry.setting))
    entries = {e.cell.label: (column, e) for column in columns(item, records) for e in column.entries}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = cell_names(keys)
    places = [f"{basis}_{name}" for basis in BASES for name in PLACE]
    head = [*names, *places, "local_steps", "bytes", "budget_local_steps", "budget_bytes", "note", "selection"]
    writer.writerow([csv_safe(name) for name in head])
    for label, result in collect(item, records).items():
        fields = cell_fields(item, keys, result)
        column, entry = entries.get(label, (None, None))
        fields += [value for basis in BASES for value in _place_fields(entry.places.get(basis) if entry else None)]
        fields += [entry and entry.costs[name] for name in COSTS]
        fields += [column and column.budget.get(name) for name in COSTS]
        fields += [result.cell.note, SELECTED_ON_TEST if result.selected_on_test else ""]
        writer.writerow(_safe(fields))
    for choice in item.choices:
        known: dict[str, object] = {"item": item.name, "profile": item.profile, **choice.setting}
        known |= {"label": choice.label, "role": choice.role, "status": "waits for trials", "note": choice.note}
        writer.writerow(_safe(known.get(name) for name in head))
    return text.getvalue()


def _safe(fields: Iterable[object]) -> list[str]:
    return ["" if field is None else csv_safe(field) for field in fields]


def _place_fields(placing: Placing | None) -> list[object]:
    if placing is None:
        return [None] * len(PLACE)
    seen = placing.difference
    low, high = (seen.interval if seen and seen.interval else None) or (None, None)
    summary = placing.summary
    return [summary.mean, summary.std, summary.n, placing.rank, placing.group, seen and seen.mean, low, high]


def arena_latex(item: Item, records: Records) -> str:
    """A booktabs tabular a column of the arena; below each, as comments, how sure its order is, and the remarks."""
    blocks = [f"% {item.name}, profile {item.profile}: {caption()}"]
    for column in columns(item, records):
        blocks.append(f"% {title(column)}: {budget_text(column)}")
        blocks.append(f"% {standing(column, item.seeds)}")
        body = [[*_printed(line, column)] for line in lines(item, column)]
        blocks += tabular(list(_head(column)), body)
    blocks += [f"% [{number}] {note}" for note, number in footnotes(item).items()]
    return "\n".join(block.replace("\n", " ") for block in blocks) + "\n"


def arena_markdown(item: Item, records: Records) -> str:
    """A table a column of the arena, its remarks, and the properties."""
    blocks = [f"{item.title} ({item.name}, profile {item.profile}; {caption()})"]
    for column in columns(item, records):
        rows = [_head(column), ("---", *["---:"] * (len(_head(column)) - 1))]
        rows += [_printed(line, column) for line in lines(item, column)]
        table = "\n".join(f"| {' | '.join(markdown(field) for field in row)} |" for row in rows)
        order = f"{budget_text(column)}. {standing(column, item.seeds)}"
        blocks.append(f"**{markdown(title(column))}**: {order}.\n\n{table}")
    notes = [f"{number}. {markdown(note)}" for note, number in footnotes(item).items()]
    blocks += ["\n".join(notes)] if notes else []
    blocks += [properties.markdown().rstrip("\n") for properties in arena_properties(item, records)]
    return "\n\n".join(blocks) + "\n"


def _head(column: Column) -> tuple[str, ...]:
    method, rounds, *others = HEAD
    return (method, rounds, "to the best", *others) if column.ranked else HEAD


def _printed(line: Line, column: Column) -> tuple[str, ...]:
    """A row of `_head`'s columns: what has no number says why in the first of them."""
    if line.entry is not None:
        first, *others = (accuracy(line.place(basis)) for basis in BASES)
        differences = [to_best(line.place("rounds"))] if column.ranked else []
        return (line.named, first, *differences, *others, *costs(line))
    text = f"{mean_spread(line.bound.summary)} (bound)" if line.bound else line.status
    return (line.named, text, *[""] * (len(_head(column)) - 2))
