"""Add the columns of open-set comparisons: how well a method's models separate images of unknown classes.

The metrics are defined in benchmark/federated/unknown.py. A table of other comparisons does not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import summary
from reports.entries import mean_entry
from reports.formatting import cell_address
from reports.tables import Column, Row, Table, TableEntry

METRICS: Mapping[str, Column] = {
    "test/unknown_auroc": Column(name="AUROC", below="unknown images"),
    "test/unknown_fpr95": Column(name="FPR95", below="less is better"),
}
ACCURACY_COLUMN = 1  # the column of accuracies at equal rounds


def is_open(results: Sequence[CellResult]) -> bool:
    """Return whether clients of these cells have images of unknown classes."""
    return any(result.cell.experiment.data.label_setting == "open" for result in results)


def with_unknown(table: Table, runs: Mapping[str, Sequence[RunRecord]]) -> Table:
    """Return the table with a column for each metric of unknown images, after the accuracies.

    `runs` contains the runs of a row by the address of its cell's page, which is the link of the row's first entry.
    """
    heads = list(table.columns)
    rounds = heads[ACCURACY_COLUMN].below
    heads[ACCURACY_COLUMN] = Column(name="Known accuracy", below=rounds)
    heads[ACCURACY_COLUMN + 1 : ACCURACY_COLUMN + 1] = METRICS.values()
    rows = tuple(_with_entries(row, runs.get(row.entries[0].href, ())) for row in table.rows)
    caption = table.caption.replace("test accuracy in percent", "test images, in percent")
    return replace(table, columns=tuple(heads), rows=rows, caption=caption)


def _with_entries(row: Row, runs: Sequence[RunRecord]) -> Row:
    entries = [_entry(metric, values_of(metric, runs)) for metric in METRICS]
    split = ACCURACY_COLUMN + 1
    return replace(row, entries=(*row.entries[:split], *entries, *row.entries[split:]))


def _entry(metric: str, values: Sequence[float]) -> TableEntry:
    return mean_entry(summary(values), metric) if values else TableEntry(text="")


def values_of(metric: str, runs: Sequence[RunRecord]) -> list[float]:
    """Return the metric under each run's selection rule, without runs that did not measure it."""
    found = [run.selected(metric) for run in runs]
    return [value for value in found if value is not None]


def unknown_means(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return the mean of each metric over the runs, for the rows of CSV files, or None without a value."""
    means: dict[str, float | None] = {}
    for metric in METRICS:
        values = values_of(metric, runs)
        means[f"{metric.partition('/')[2]}_mean"] = summary(values).mean if values else None
    return means


def runs_by_address(
    results: Sequence[CellResult], common: Mapping[str, Sequence[RunRecord]]
) -> dict[str, Sequence[RunRecord]]:
    """Return the runs of each cell by the address of its page.

    `common` contains the runs of compared cells by label; other cells have all their finished runs.
    """
    runs = dict[str, Sequence[RunRecord]]()
    for result in results:
        finished = [run for run in result.runs if run.status == "done"]
        runs[cell_address(result)] = common.get(result.cell.label, finished)
    return runs
