"""The differences that a paper publishes, in a column or in its text, next to the same differences of the runs.

Under a reduced profile the two are of different data sets or sizes, which the heads of the columns name.
"""

from collections.abc import Callable, Mapping

from benchmark.fractions import is_fraction
from benchmark.papers.item import Gain, Item
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import paired
from reports.formatting import NONE, difference, metric_name, unit_of
from reports.tables import Column, Row, Table, TableEntry

ResultsOf = Callable[[str], Mapping[str, CellResult]]  # metric -> the results of every cell, by its label


def gains_table(item: Item, results_of: ResultsOf) -> Table | None:
    """Return a row for each published difference: its values, and the mean over the common seeds of the runs.

    Return None if the paper publishes no difference.
    """
    if not item.gains:
        return None
    metrics = list(dict.fromkeys(metric for gain in item.gains for metric in gain.published))
    rows = [_row(gain, metrics, results_of) for gain in item.gains]
    published = [Column(name=_head(metric), group="as published") for metric in metrics]
    of_runs = [Column(name=_head(metric), group=f"runs (profile {item.profile})") for metric in metrics]
    brief = "mean difference ± standard deviation over the seeds that both cells have"
    return Table(
        name="gains",
        title="Differences, as published and of the runs",
        caption=f"{item.title} ({item.name}, profile {item.profile}): differences that the paper publishes; {brief}",
        brief=brief,
        columns=(Column(name="difference", left=True), *published, *of_runs),
        rows=tuple(rows),
    )


def _head(metric: str) -> str:
    unit = "points" if is_fraction(metric) else unit_of(metric)
    return f"{metric_name(metric)} ({unit})" if unit else metric_name(metric)


def _row(gain: Gain, metrics: list[str], results_of: ResultsOf) -> Row:
    published = []
    for metric in metrics:
        value = gain.published.get(metric)
        text = NONE if value is None else f"{value:+.2f}".removesuffix("0")
        published.append(TableEntry(text=text, sort=value))
    name = TableEntry(text=gain.name, below=(f"{gain.of} less {gain.over}", f"{gain.source}, on {gain.data}"))
    return Row(entries=(name, *published, *(_of_runs(gain, metric, results_of(metric)) for metric in metrics)))


def _of_runs(gain: Gain, metric: str, results: Mapping[str, CellResult]) -> TableEntry:
    """Return the mean difference, paired by seed; a dash without a seed that both cells have."""
    seen = paired(results[gain.of].values, results[gain.over].values)
    if seen is None:
        return TableEntry(text=NONE)
    spread = "" if seen.std is None else f"±{difference(metric, seen.std).removeprefix('+')}"
    return TableEntry(text=difference(metric, seen.mean), spread=spread, below=(f"n = {seen.n}",), sort=seen.mean)
