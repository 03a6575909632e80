"""Build the table of an item's own runs, with a block of columns for each metric.

The keys of `item.columns`, usually the method, vary over columns. The keys of `item.rows`, or without them all other
keys, vary over rows. If two entries would share a place, or if there are too many columns to read, the table is a list
with one row per entry. Published numbers are in a separate table: see published_table.py.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.fractions import is_fraction
from benchmark.papers.item import Cell, Item, ItemEntry
from benchmark.verdicts.cell_results import ACCURACY, CellResult
from benchmark.verdicts.statistics import number, paired
from reports.entries import (
    AT_CHANCE,
    at_chance,
    item_rows,
    mean_entry,
    method_of,
    metrics_of,
    notes_of,
    setting_text,
    stale_entry,
)
from reports.formatting import WORDS, axis_title, cell_address, data_name, points, shown
from reports.item_results import KEPT, KEPT_ACCURACY, ItemResults
from reports.published_table import published_rows
from reports.tables import Column, Row, Table, TableEntry, table_of

BELOW = "below baseline"
LADDER = "Cumulative ablation: the effect of each step"  # cells of this suite that show the cause of a difference
WIDEST = 8  # columns of one metric side by side; a list reads better than a wider table
NOT_COMPARED = ("bound", "ladder", "partition")  # roles of cells that are never the best of a setting
BEST = (
    "bold: the best mean of its setting, if the 95 % interval of its difference from the second is above zero (paired "
    "by seed, at least 5 common seeds)"
)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The entries of a table by their place. A list has one column without a name."""

    columns: Mapping[str, Mapping[str, ItemEntry]]  # column -> row -> entry
    corner: str  # the keys that vary over rows: "cohort, C"
    constant: str = ""  # the settings that all rows share: "K = 47"

    @property
    def rows(self) -> list[str]:
        """Return the names of all rows, each once."""
        return list(dict.fromkeys(row for column in self.columns.values() for row in column))

    @property
    def entries(self) -> list[tuple[str, str, ItemEntry]]:
        """Return each entry with its column and its row."""
        return [(name, row, entry) for name, column in self.columns.items() for row, entry in column.items()]


def is_trained(entry: ItemEntry) -> bool:
    """Return whether runs of the entry are shown."""
    return isinstance(entry, Cell) and entry.role != "partition"


def grid(item: Item, entries: Sequence[ItemEntry]) -> Grid | None:
    """Place the entries by row and column. Return None if there are none, or if two would share a place."""
    if not entries:
        return None
    keys = item.rows or tuple(dict.fromkeys(key for e in entries for key in e.setting if key not in item.columns))
    settings = []
    for entry in entries:
        settings.append({key: entry.setting[key] for key in keys if key in entry.setting})
    shared = set.intersection(*(set(setting.items()) for setting in settings))
    constant = {key: value for key, value in settings[0].items() if (key, value) in shared}
    columns: dict[str, dict[str, ItemEntry]] = {}
    for entry, setting in zip(entries, settings, strict=True):
        column = columns.setdefault(setting_text(entry.setting, item.columns), {})
        varying = {key: value for key, value in setting.items() if key not in constant}
        has_name = "method" in entry.setting and "method" not in (*keys, *item.columns)
        row = setting_text(varying) or (method_of(entry) if has_name else "all")
        if row in column:
            return None
        column[row] = entry
    corner = ", ".join(key for key in keys if key not in constant)
    return Grid(columns=columns, corner=corner, constant=setting_text(constant))


def item_tables(reported: ItemResults, widest: int = WIDEST, metrics: Sequence[str] = ()) -> list[Table]:
    """Return the table of the item's runs, a list of the entries without a column in it, and the cumulative ablation.

    `metrics`: all by default.
    """
    item = reported.item
    metrics = metrics or metrics_of(item)
    data = [*published_rows(item), *item_rows(reported)]
    table = functools.partial(_table, reported, notes=notes_of(reported), data=data)
    rungs = [cell for cell in item.cells if cell.role == "ladder"]
    ladder = [table(_listed(rungs), (ACCURACY, KEPT, KEPT_ACCURACY), LADDER)] if rungs else []
    entries: list[ItemEntry] = [cell for cell in item.cells if cell.role != "ladder"]
    placed = [entry for entry in entries if entry.setting.keys() >= set(item.columns)]
    layout = grid(item, placed)
    if layout is None or len(layout.columns) > widest:
        return [table(_listed(entries), metrics), *ladder] if entries else ladder
    others = [entry for entry in entries if entry not in placed]
    more = [table(_listed(others), metrics, "Other entries")] if others else []
    return [table(layout, metrics), *more, *ladder]


def _listed(entries: Sequence[ItemEntry]) -> Grid:
    """Place one entry in each row."""
    return Grid(columns={"": {entry.label: entry for entry in entries}}, corner="Cell")


def _table(reported: ItemResults, layout: Grid, metrics: Sequence[str], title: str = "", **more: Any) -> Table:
    """Build a block of columns for each metric, and the columns that need no run. `more`: notes and data."""
    item = reported.item
    listed = layout.columns.get("", {})
    results = [reported.of(metric)[cell.label] for metric in metrics for cell in _cells(layout)]
    every_n = common_counts(results)
    columns = _measured(reported, layout, metrics, every_n) | _computed(layout)
    rows = []
    for name in layout.rows:
        of_row = [column.get(name, TableEntry()) for column in columns.values()]
        setting = listed[name].setting if name in listed else {}
        values = {key: str(value) for key, value in setting.items()}
        rows.append(Row(entries=(TableEntry(text=name), *of_row), values=values))
    parts = []
    if any(is_trained(entry) for _, _, entry in layout.entries):
        n = f", {every_n}" if every_n else ""
        parts.append(f"{', '.join(map(axis_title, metrics))}, mean ± standard deviation over seeds{n}")
    if layout.constant:
        parts.append(f"all rows: {layout.constant}")
    if any(entry.best for row in rows for entry in row.entries):
        parts.append(BEST)
    if any(BELOW in entry.below for row in rows for entry in row.entries):
        parts.append(f"{BELOW}: the median run ends below the supervised baseline at equal seeds")
    brief = "; ".join(parts)
    where = [] if title else [", ".join(text for _, text in frame_of(item))]
    caption = "; ".join([f"{title or item.title} ({item.name}, profile {item.profile})", *where, *parts])
    heads: tuple[str | Column, ...] = (layout.corner or "setting", *columns)
    return table_of("table", caption, heads, rows, title=title, brief=brief or title, **more)


def _cells(layout: Grid) -> list[Cell]:
    return [entry for *_, entry in layout.entries if isinstance(entry, Cell)]


def common_counts(results: Iterable[CellResult]) -> str:
    """Return "n = 5" if all cells with runs have the same number of finished runs and await none; "" if not."""
    counts = {result.counts for result in results if result.n_finished}
    only = counts.pop() if len(counts) == 1 else ""
    return only.replace("n=", "n = ") if only.removeprefix("n=").isdigit() else ""


def frame_of(item: Item) -> list[tuple[str, str]]:
    """Return the data set and the network of the item's runs, and the published ones that they replace."""
    publication = item.publication
    cells = [cell for cell in item.cells if is_trained(cell)]
    own = dict.fromkeys(data_name(cell.experiment.data.name) for cell in cells)
    networks = dict.fromkeys(cell.experiment.model.network for cell in cells)
    published_data: list[str] = []
    published_networks: list[str] = []
    if publication is not None:
        named = dict.fromkeys(str(entry.published_setting.get("data", "")) for entry in publication.entries)
        published_data = [name for name in named if name and name not in own]
        published_networks = [name for name in publication.networks if name not in networks]
        own = dict.fromkeys(publication.surrogates) or own
    network_names = [WORDS["networks"].get(name, name) for name in networks]
    instead = [WORDS["networks"].get(name, name) for name in published_networks]
    return [
        ("Data set", _with_surrogate(list(own), published_data if item.profile != "paper" else [], "data set")),
        ("Network", _with_surrogate(network_names, instead if item.profile != "paper" else [], "network")),
    ]


def _with_surrogate(names: Sequence[str], instead_of: Sequence[str], what: str) -> str:
    """Write "MNIST (surrogate data set for SVHN)"."""
    text = ", ".join(names) or "none"
    return f"{text} (surrogate {what} for {', '.join(instead_of)})" if instead_of else text


def _measured(
    reported: ItemResults, layout: Grid, metrics: Sequence[str], every_n: str
) -> dict[Column, dict[str, TableEntry]]:
    """Build the columns of each metric. `every_n`: the number of runs if the caption has it for all cells."""
    columns: dict[Column, dict[str, TableEntry]] = {}
    for metric in metrics:
        title = axis_title(metric) if metrics[1:] else ""
        best = best_cells(reported, metric)
        for name, entries in layout.columns.items():
            if not any(map(is_trained, entries.values())):
                continue
            column = {}
            for row, entry in entries.items():
                column[row] = ours_entry(
                    reported, entry.label, metric, with_counts=not every_n, best=entry.label in best
                )
            head = Column(name=name, group=title) if name else Column(name=title or axis_title(metric))
            columns[head] = column
    return columns


def best_cells(reported: ItemResults, metric: str) -> frozenset[str]:
    """Return the labels of the cells with the best value of their setting beyond chance.

    Cells compete if they differ in nothing but the method: equal settings, data and labels. The best mean over the
    seeds that all of them have must exceed the second best: Student's 95 % interval of the paired differences is above
    zero. It needs five common seeds. A cell with a diverged run is never the best.
    """
    if not (metric.startswith("test/") and is_fraction(metric)):
        return frozenset()
    competing: dict[Any, list[CellResult]] = {}
    for result in reported.of(metric).values():
        cell = result.cell
        if cell.role in NOT_COMPARED or not result.n_finished:
            continue
        setting = tuple((key, value) for key, value in sorted(cell.setting.items()) if key != "method")
        competing.setdefault((setting, cell.experiment.data), []).append(result)
    best = set()
    for results in competing.values():
        label = _best_of(results)
        if label:
            best.add(label)
    return frozenset(best)


def _best_of(results: Sequence[CellResult]) -> str:
    """Return the label of the best of competing cells; "" if no cell is better than the others beyond chance."""
    values = {result.cell.label: result.values for result in results}
    return best_of(values, {result.cell.label for result in results if result.diverged})


def best_of(values: Mapping[str, Mapping[int, float]], diverged: Collection[str]) -> str:
    """Return the label with the best values by seed beyond chance, as defined in `best_cells`, or "" without one.

    A label in `diverged` is never the best.
    """
    common = set.intersection(*map(set, values.values())) if values else set()
    if len(values) < 2 or not common:
        return ""
    ranked = sorted(values, key=lambda label: -sum(values[label][seed] for seed in common))
    first, second = ranked[:2]
    difference = paired({seed: values[first][seed] for seed in common}, values[second])
    interval = difference.interval if difference else None
    is_better = interval is not None and interval[0] > 0
    return first if is_better and first not in diverged else ""


def ours_entry(
    reported: ItemResults, label: str, metric: str, *, with_counts: bool = True, best: bool = False
) -> TableEntry:
    """Return mean and spread of a cell, and below them the remarks on it.

    These are the number of runs (`with_counts`), a collapse, and under profile `paper` the published number and the
    difference from it. A cell whose only finished runs do not count has "old code: 87.04".
    """
    result = reported.of(metric).get(label)
    if result is None:
        return TableEntry()
    seen = result.summary
    href = cell_address(result)
    done = sum(run.status == "done" for run in result.runs)
    if metric.startswith("rounds_to/") and result.n < done:
        never = result.cell.experiment.federation.rounds + 1
        return TableEntry(below=(f"{result.n} of {done} runs reach it",), href=href, sort=never)
    if seen is None and done and not result.diverged:
        return TableEntry(href=href)  # the runs did not measure this metric
    stale = stale_entry(result, metric, href=href)
    if stale is not None:
        return stale
    if seen is None:
        status = "quoted" if not result.awaited else result.status
        return TableEntry(below=(result.counts,), look=status, href=href, sort=-1.0)
    below = [result.counts] if with_counts or result.diverged else []
    if metric == ACCURACY and result.is_below_baseline:
        below.append(BELOW)
    elif metric == ACCURACY and at_chance(result):  # it may have no baseline in this item
        below.append(AT_CHANCE)
    below += _published_beside(reported, result, metric)
    return mean_entry(seen, metric, below=tuple(below), look=result.status, href=href, best=best)


def _published_beside(reported: ItemResults, result: CellResult, metric: str) -> list[str]:
    """Return the published number and the difference from it; none unless data and sizes are the published ones."""
    published = result.cell.published.get(metric)
    agreed = reported.agreements.get(result.cell.label) if metric == ACCURACY else None
    lines = []
    if reported.item.profile == "paper" and published is not None and not (agreed and agreed.other_data):
        digits = f"{published.value:.2f}" if is_fraction(metric) else shown(metric, published.value)
        differing = {key: value for key, value in result.cell.published_setting.items() if key != "data"}
        at = f" at {setting_text(differing)}" if differing else ""
        lines.append(f"published {digits}{at}")
    if agreed:
        lines += [f"{points(agreed.difference)} to the paper", agreed.text]
    return lines


def _computed(layout: Grid) -> dict[Column, dict[str, TableEntry]]:
    """Build the columns that need no run: parameters, bytes; one for all if no row has two values of it."""
    columns: dict[Column, dict[str, TableEntry]] = {}
    entries = layout.entries
    group = "Computed" if len(layout.columns) > 1 else ""
    keys = dict.fromkeys(key for *_, entry in entries for key in entry.computed)
    for key in keys:
        known = [(name, row, entry.computed[key]) for name, row, entry in entries if key in entry.computed]
        values = {(row, value) for _, row, value in known}
        rows = {row for _, row, _ in known}
        has_one_value = len(values) == len(rows)
        for name, row, value in known:
            head = Column(name=key if has_one_value else f"{name}: {key}", group=group)
            sort = value if isinstance(value, float) else None
            columns.setdefault(head, {})[row] = TableEntry(text=_plain(value), sort=sort)
    return columns


def _plain(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else number(float(value))
