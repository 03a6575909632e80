"""The numbers behind a figure as CSV: every line's mean with its interval, and every run, round by round."""

import csv
import io
from collections.abc import Iterable, Sequence

from benchmark.papers.item import Item
from reports.cells import CellResult, Records, collect
from reports.series import seeds_series
from reports.words import csv_safe

COLUMNS = ("label", "metric", "what", "round", "value", "low", "high")


def curves_csv(item: Item, records: Records, metrics: Sequence[str]) -> str:
    """One line a point: `what` is "mean" (low and high: the 95 % t interval) or "seed 0". Values are in the record's
    unit, accuracies fractions; long runs are means of consecutive rounds, as drawn."""
    return cells_csv(collect(item, records).values(), records, metrics)


def cells_csv(results: Iterable[CellResult], records: Records, metrics: Sequence[str]) -> str:
    """As `curves_csv`, of these cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        label = result.cell.label
        for metric in metrics:
            series = seeds_series(result, records, metric)
            start = [csv_safe(label), csv_safe(metric)]
            rounds, low, high = series.band
            known = dict(zip(rounds, zip(low, high, strict=True), strict=True))
            for at, value in series.mean:
                edges = known.get(at)
                writer.writerow([*start, "mean", at, repr(value), *(map(repr, edges) if edges else ("", ""))])
            for seed, run in series.runs.items():
                writer.writerows([*start, f"seed {seed}", at, repr(value), "", ""] for at, value in run)
    return text.getvalue()
