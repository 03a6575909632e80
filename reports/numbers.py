"""The numbers behind a figure as CSV: every line's mean with its interval, and every run, round by round."""

import csv
import io
from collections.abc import Iterable, Sequence

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records, collect
from reports.series import Series, seeds_series
from reports.words import csv_safe

COLUMNS = ("label", "metric", "what", "round", "value", "low", "high")


def curves_csv(item: Item, records: Records, metrics: Sequence[str]) -> str:
    """One line a point: `what` is "mean" (low and high: the 95 % t interval) or "seed 0". Values are in the record's
    unit, accuracies fractions; long runs are means of consecutive rounds, as drawn."""
    return series_csv(
        (label, metric, seeds_series(result, records, metric))
        for label, result in collect(item, records).items()
        for metric in metrics
    )


def series_csv(lines: Iterable[tuple[str, str, Series]]) -> str:
    """As `curves_csv`; `lines`: a cell's label, a metric, and what is drawn of it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for label, metric, series in lines:
        start = [csv_safe(label), csv_safe(metric)]
        rounds, low, high = series.band
        known = dict(zip(rounds, zip(low, high, strict=True), strict=True))
        for at, value in series.mean:
            edges = known.get(at)
            writer.writerow([*start, "mean", at, repr(value), *(map(repr, edges) if edges else ("", ""))])
        for seed, run in series.runs.items():
            writer.writerows([*start, f"seed {seed}", at, repr(value), "", ""] for at, value in run)
    return text.getvalue()
