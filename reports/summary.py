"""`results/summary.csv`: every final number of every run in one tidy table, one row for a run and a metric."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmark.errors import DataError
from benchmark.papers.item import Cell, Item
from benchmark.records.files import write_atomically
from benchmark.verdicts.results import Records
from reports.words import csv_safe

COLUMNS = ("item", "profile", "label", "cell_key", "seed", "metric", "value", "n_rounds", "status")


def summary_csv(results: Iterable[tuple[Item, Records]]) -> str:
    """The table as text, sorted, so that the same records always give the same bytes.

    A run that has not ended (or a wanted seed that was never started: status "missing") has one row with metric and
    value empty: what is absent is counted as well. Values are in the record's unit, accuracies are fractions.
    """
    return _written(_lines(results))


def write_summary(results: Iterable[tuple[Item, Records]], path: Path) -> None:
    """Writes the lines of `summary_csv` to `path`, whole or not at all, in place of those that it has of these items
    in these profiles; lines of others stay. Raises CannotWrite, DataError for a file of other columns."""
    results = list(results)
    again = {(item.name, item.profile) for item, _ in results}
    before: list[list[str]] = []
    if path.exists():
        with path.open(newline="") as file:
            lines = list(csv.reader(file))
        head, before = lines[0], lines[1:]
        if tuple(head) != COLUMNS:
            raise DataError(f"{path}: its columns are {', '.join(head)}; {', '.join(COLUMNS)} would be right")
    others = [line for line in before if (line[0], line[1]) not in again]
    write_atomically(path, _written([*others, *_lines(results)]).encode())


def _lines(results: Iterable[tuple[Item, Records]]) -> list[list[str]]:
    rows = (row for item, records in results for cell in item.cells for row in _rows(item, cell, records))
    return [[str(csv_safe(field)) for field in row] for row in rows]


def _written(lines: Iterable[list[str]]) -> str:
    """By item, profile, cell, seed (a number), metric."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    ordered = sorted(lines, key=lambda line: (*line[:4], int(line[4]), line[5]))
    writer.writerows(ordered)
    return text.getvalue()


def _rows(item: Item, cell: Cell, records: Records) -> Iterator[tuple[str | int | float, ...]]:
    runs = records.get(cell.cell_key, {})
    awaited = range(item.seeds if cell.role != "quoted" else 0)
    for seed in sorted(set(awaited) | set(runs)):
        start = (item.name, item.profile, cell.label, cell.cell_key, seed)
        record = runs.get(seed)
        if record is None:
            yield *start, "", "", 0, "missing"
            continue
        last = record.result.get("last", {})
        numbers = {name: value for name, value in last.items() if isinstance(value, (int, float))}
        for name, value in numbers.items():
            if name != "round":
                chosen = record.selected(name)
                yield *start, name, float(value if chosen is None else chosen), len(record.rounds), record.status
        if not numbers:
            yield *start, "", "", len(record.rounds), record.status
