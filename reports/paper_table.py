"""An item as a table: published and reproduced numbers side by side, a block of columns a metric.

Columns are what `item.columns` names (as a rule the method), rows what `item.rows` names, else all other keys. Where
two entries fall on one place, or there are too many columns to read, the table is a list with one row an entry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmark.papers.item import Cell, Choice, Item, Shown
from benchmark.verdicts.results import ACCURACY
from benchmark.verdicts.statistics import Summary
from reports.formatting import (
    axis_title,
    cell_address,
    is_fraction,
    number,
    percent,
    points,
    shown,
    spread_text,
    unit_of,
)
from reports.reported import KEPT, KEPT_ACCURACY, Reported
from reports.tables import Column, Entry, Row, Table, pivoted, table_of

QUALITY = (KEPT, KEPT_ACCURACY)  # of pseudo-labels
SELECTED_ON_TEST = "selection: best round on the test set, as the paper did"
WIDEST = 8  # columns of one metric side by side; a list reads better than a wider table
LABELS = {
    "server": "the server has the labels",
    "every_client": "each client has a few labels",
    "some_clients": "some clients have all their labels",
    "share": "a share of each client's images is labelled",
    "drawn_apart": "labelled images are dealt out apart from the others",
    "one_more_client": "the labelled images are one more client's",
    "everywhere": "all clients have all labels",
}


def method_of(entry: Shown | Choice) -> str:
    return str(entry.setting.get("method", entry.label))


def metrics_of(item: Item) -> tuple[str, ...]:
    """What the table has a block of columns for: the item's metrics, and those that its figure draws."""
    return tuple(dict.fromkeys((*item.metrics, *(item.drawing.metrics if item.drawing else ()))))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Entries by place. Of a list: one column, of no name."""

    columns: Mapping[str, Mapping[str, Shown]]  # column -> row -> entry
    corner: str  # the keys that rows vary: "cohort, C"
    constant: str = ""  # what all rows share: "K = 47"

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for column in self.columns.values() for row in column))


def entries_of(item: Item) -> list[Shown]:
    """What the table shows: cells but the ladder, and what is shown without runs."""
    return [*(cell for cell in item.cells if cell.role != "ladder"), *item.shown]


def is_trained(entry: Shown) -> bool:
    return isinstance(entry, Cell) and entry.role != "partition"


def grid(item: Item) -> Grid | None:
    """Of the entries that have a column. None where there is none, or two fall on one place."""
    entries = [entry for entry in entries_of(item) if _has_column(item, entry)]
    if not entries:
        return None
    keys = item.rows or tuple(
        dict.fromkeys(key for entry in entries for key in entry.setting if key not in item.columns)
    )
    settings = [{key: entry.setting[key] for key in keys if key in entry.setting} for entry in entries]
    constant = {key: value for key, value in settings[0].items() if all(one.get(key) == value for one in settings)}
    columns: dict[str, dict[str, Shown]] = {}
    for entry, setting in zip(entries, settings, strict=True):
        column = columns.setdefault(setting_text({key: entry.setting[key] for key in item.columns}), {})
        row = setting_text({key: value for key, value in setting.items() if key not in constant}) or "all"
        if row in column:
            return None
        column[row] = entry
    corner = ", ".join(key for key in keys if key not in constant)
    return Grid(columns=columns, corner=corner, constant=setting_text(constant))


def _has_column(item: Item, entry: Shown) -> bool:
    return all(key in entry.setting for key in item.columns)


def setting_text(setting: Mapping[str, object]) -> str:
    """ "full, C = 47, mixup = yes": words speak for themselves, numbers need their symbol, and so do yes and no."""
    alone = {key for key, value in setting.items() if isinstance(value, str) and value not in ("yes", "no")}
    return ", ".join(str(value) if key in alone else f"{key} = {value}" for key, value in setting.items())


def item_tables(reported: Reported, widest: int = WIDEST) -> list[Table]:
    """The item's table and, of entries that have no column in it, a list."""
    item, layout = reported.item, grid(reported.item)
    if layout is None or len(layout.columns) > widest:
        return [_table(reported, _listed(entries_of(item)))]
    others = [entry for entry in entries_of(item) if not _has_column(item, entry)]
    return [
        _table(reported, layout),
        *([replace(_table(reported, _listed(others)), title="Other entries")] if others else []),
    ]


def _listed(entries: Sequence[Shown]) -> Grid:
    """One row an entry."""
    return Grid(columns={"": {entry.label: entry for entry in entries}}, corner="Cell")


def _table(reported: Reported, layout: Grid) -> Table:
    """A block of columns for each metric, and what is computed without runs."""
    item, listed = reported.item, layout.columns.get("", {})
    filters = {row: {key: str(value) for key, value in entry.setting.items()} for row, entry in listed.items()}
    names = {Column(name=layout.corner or "setting", left=True): {row: Entry(text=row) for row in layout.rows}}
    what = ", ".join(map(axis_title, metrics_of(item)))
    trained = any(is_trained(entry) for column in layout.columns.values() for entry in column.values())
    what = f"; {what}, mean ± standard deviation over seeds" if trained else ""
    grey = "; published numbers are for orientation only" if item.profile != "paper" and is_printed(item) else ""
    shared = f"; all rows: {layout.constant}" if layout.constant else ""
    return Table(
        name="table",
        caption=f"{item.title} ({item.name}, profile {item.profile}{what}{grey}{shared})",
        notes=notes_of(reported),
        data=item_rows(reported),
        **pivoted(
            {row: Row(values=filters.get(row, {})) for row in layout.rows},
            names | _measured(reported, layout) | _computed(layout),
        ),
    )


def is_printed(item: Item) -> bool:
    """Whether any of its numbers stands in a paper."""
    return any(entry.published for entry in (*item.cells, *item.shown))


def _measured(reported: Reported, layout: Grid) -> dict[Column, dict[str, Entry]]:
    """Ours, then published, of each metric: a narrow window shows what stands first."""
    metrics, columns = metrics_of(reported.item), {}
    for metric in metrics:
        title = axis_title(metric) if metrics[1:] else ""
        for kind in ("Ours", "Published"):
            for name, entries in layout.columns.items():
                if kind == "Ours" and any(map(is_trained, entries.values())):
                    column = {row: ours_entry(reported, entry.label, metric) for row, entry in entries.items()}
                elif kind == "Published" and any(metric in entry.published for entry in entries.values()):
                    column = {row: published_entry(reported.item, entries.get(row), metric) for row in layout.rows}
                else:
                    continue
                group = f"{title}: {kind.lower()}" if title else kind
                columns[Column(name=name, group=group) if name else Column(name=kind, group=title)] = column
    return columns


def published_entry(item: Item, entry: Shown | None, metric: str) -> Entry:
    """The paper's number with its spread, in grey where it cannot be compared."""
    printed = entry.published.get(metric) if entry else None
    look = "" if item.profile == "paper" else "published"
    if printed is None:
        return Entry(look=look)
    digits = f"{printed.value:.2f}" if is_fraction(metric) else shown(metric, printed.value)
    return Entry(
        text=digits,
        spread="" if printed.spread is None else f"±{printed.spread:g}",
        below=(f"n={printed.runs}",) if printed.runs > 1 else (),
        look=look,
        sort=printed.value,
    )


def ours_entry(reported: Reported, label: str, metric: str) -> Entry:
    """Mean and spread with the number of runs; on profile paper the difference to the published number as well."""
    result = reported.by_metric[metric].get(label)
    if result is None:
        return Entry()
    seen, href = result.summary, cell_address(result)
    done = sum(run.status == "done" for run in result.runs)
    if metric.startswith("rounds_to/") and result.n < done:
        never = result.cell.experiment.federation.rounds + 1
        return Entry(below=(f"{result.n} of {done} runs come there",), href=href, sort=never)
    if seen is None:
        status = "quoted" if not result.awaited else result.status
        return Entry(below=(result.counts,), look=status, href=href, sort=-1.0)
    below = [result.counts]
    if metric == ACCURACY and result.collapsed:
        below.append("below labels alone at equal seeds")
    if metric == ACCURACY and (agreed := reported.agreements.get(label)):
        below += [f"{points(agreed.difference)} to the paper", agreed.text]
    return mean_entry(seen, metric, below=tuple(below), look=result.status, href=href)


def mean_entry(seen: Summary, metric: str = ACCURACY, **more: Any) -> Entry:
    """Mean and spread. `more`: the entry's other fields."""
    return Entry(text=shown(metric, seen.mean), spread=spread_text(metric, seen), sort=seen.mean, **more)


def _computed(layout: Grid) -> dict[Column, dict[str, Entry]]:
    """Columns that need no run: parameters, bytes. One for all where no row has two values of it."""
    columns: dict[Column, dict[str, Entry]] = {}
    group = "Computed" if len(layout.columns) > 1 else ""
    for key in dict.fromkeys(
        key for column in layout.columns.values() for one in column.values() for key in one.computed
    ):
        known = {
            name: {row: entry.computed[key] for row, entry in entries.items() if key in entry.computed}
            for name, entries in layout.columns.items()
        }
        if all(len({of[row] for of in known.values() if row in of}) <= 1 for row in layout.rows):
            values = {Column(name=key, group=group): {row: one for of in known.values() for row, one in of.items()}}
        else:
            values = {Column(name=f"{name}: {key}", group="Computed"): of for name, of in known.items() if of}
        for head, by_row in values.items():
            columns[head] = {
                row: Entry(text=_plain(one), sort=one if isinstance(one, float) else None)
                for row, one in by_row.items()
            }
    return columns


def _plain(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else number(float(value))


def item_rows(reported: Reported) -> list[dict[str, Any]]:
    """The numbers behind the table, a row for each entry and metric.

    All are in the unit that the row names: fractions, not percent, also what the paper prints."""
    item, rows = reported.item, []
    for metric in metrics_of(item):
        rows += [entry_values(reported, entry, metric) for entry in (*item.cells, *item.shown)]
    for choice in item.choices:
        known = {"item": item.name, "profile": item.profile, **choice.setting, "label": choice.label}
        rows.append({**known, "role": choice.role, "status": "waits for trials", "note": choice.note})
    return rows


def entry_values(reported: Reported, entry: Shown, metric: str) -> dict[str, Any]:
    """One row of `item_rows`."""
    item, result = reported.item, reported.by_metric[metric].get(entry.label)
    unit = "fraction" if is_fraction(metric) else unit_of(metric)
    scale = 0.01 if is_fraction(metric) else 1.0
    printed = entry.published.get(metric)
    seen = result.summary if result else None
    agreed = reported.agreements.get(entry.label) if metric == ACCURACY else None
    low, high = (seen.interval if seen else None) or (None, None)
    return {
        "item": item.name,
        "profile": item.profile,
        **entry.setting,
        "label": entry.label,
        "role": entry.role if isinstance(entry, Cell) else "shown",
        "cell_key": entry.cell_key if isinstance(entry, Cell) else None,
        "metric": metric,
        "unit": unit or "none",
        "published": round(printed.value * scale, 10) if printed else None,
        "published_spread": round(printed.spread * scale, 10) if printed and printed.spread is not None else None,
        "published_runs": printed.runs if printed else None,
        "mean": seen.mean if seen else None,
        "std": seen.std if seen else None,
        "interval_low": low,
        "interval_high": high,
        "n": result.n if result else None,
        "n_wanted": result.n_wanted if result else None,
        "n_diverged": len(result.diverged) if result else None,
        "status": result.status if result else "shown",
        "difference": agreed.difference if agreed else None,
        "agreement": agreed.text if agreed else None,
        **entry.computed,
        "note": entry.note,
        "selection": SELECTED_ON_TEST if result and result.selected_on_test else "",
    }


def notes_of(reported: Reported) -> tuple[str, ...]:
    """The item's notes, and what has to be said of its values: the cells' own notes, who has labels where cells
    differ in it, which values test data chose, and what waits for trials."""
    item, results = reported.item, reported.by_metric[reported.item.metrics[0]].values()
    chosen = [result.cell.label for result in results if result.selected_on_test]
    where = "" if len(chosen) == sum(result.n > 0 for result in results) else f" ({', '.join(chosen)})"
    waiting = ", ".join(choice.label for choice in item.choices)
    return (
        *item.notes,
        *_own_notes(item),
        *_who_has_labels(item),
        *([f"{SELECTED_ON_TEST}{where}"] if chosen else []),
        *([f"waits for trials: {waiting}"] if waiting else []),
    )


def _own_notes(item: Item) -> list[str]:
    """Each remark of the entries' notes once, with the entries that have it."""
    labels_of: dict[str, list[str]] = {}
    entries: list[Shown | Choice] = [*item.cells, *item.shown, *item.choices]
    for entry in entries:
        for remark in filter(None, entry.note.split("; ")):
            labels_of.setdefault(remark, []).append(entry.label)
    return [
        f"{', '.join(labels[:4])}{' and others' if labels[4:] else ''}: {note}" for note, labels in labels_of.items()
    ]


def _who_has_labels(item: Item) -> list[str]:
    """Where methods of the table differ in it: without it numbers compare unfairly. Nothing where a method has it in
    several ways, which then are the table's own rows or columns."""
    holders: dict[str, dict[str, None]] = {}
    for cell in item.cells:
        if cell.role in ("published", "control", "quoted"):
            holders.setdefault(cell.experiment.data.label_setting, {})[method_of(cell)] = None
    methods = [name for names in holders.values() for name in names]
    if len(holders) < 2 or len(set(methods)) < len(methods):
        return []
    least, *_ = sorted(holders, key=lambda setting: len(holders[setting]))
    names = ", ".join(list(holders[least])[:6])
    rest = " or ".join(LABELS.get(setting, setting) for setting in holders if setting != least)
    return [f"{names}: {LABELS.get(least, least)}; otherwise {rest}"]


def ladder_table(reported: Reported) -> Table | None:
    """Rungs of ours that show where a difference comes from; None without any."""
    quality = [reported.by_metric[metric] for metric in QUALITY]
    rows = [
        (
            label,
            ours_entry(reported, label, ACCURACY),
            *(percent(seen.mean if (seen := results[label].summary) else None) for results in quality),
        )
        for label, result in reported.results.items()
        if result.cell.role == "ladder"
    ]
    heads = ("Rung", "Accuracy (%)", "Share kept (%)", "Accuracy of kept (%)")
    return table_of("ladder", "Ladder: what each step adds", heads, rows) if rows else None
