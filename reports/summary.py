"""`results/summary.csv`: every final number of every run in one tidy table, one row for a run and a metric."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmark.papers.item import Cell, Item
from benchmark.tracking.files import write_atomically
from reports.cells import Records
from reports.words import csv_safe

COLUMNS = ("item", "profile", "label", "cell_key", "seed", "metric", "value", "n_rounds", "status")


def summary_csv(results: Iterable[tuple[Item, Records]]) -> str:
    """The table as text, sorted, so that the same records always give the same bytes.

    A run that has not ended (or a wanted seed that was never started: status "missing") has one row with metric and
    value empty: what is absent is counted as well. Values are in the record's unit, accuracies are fractions.
    """
    rows = sorted(
        (row for item, records in results for cell in item.cells for row in _rows(item, cell, records)),
        key=lambda row: tuple((isinstance(field, str), field) for field in row[:6]),
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([csv_safe(field) for field in row] for row in rows)
    return text.getvalue()


def write_summary(results: Iterable[tuple[Item, Records]], path: Path) -> None:
    """Writes `summary_csv` to `path`, whole or not at all. Raises CannotWrite."""
    write_atomically(path, summary_csv(results).encode())


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
