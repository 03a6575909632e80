"""An item as a table: published and reproduced numbers side by side, a block of columns a metric.

Columns are what `item.columns` names (as a rule the method), rows what `item.rows` names, else all other keys. Where
two entries fall on one place, or there are too many columns to read, the table is a list with one row an entry.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.papers.item import Cell, Item, ItemEntry
from benchmark.papers.table import WORDS as PRINTED_WORDS
from benchmark.verdicts.cell_results import ACCURACY
from reports.entries import item_rows, mean_entry, metrics_of, notes_of, setting_text
from reports.formatting import axis_title, cell_address, is_fraction, number, points, shown
from reports.reported import KEPT, KEPT_ACCURACY, Reported
from reports.tables import Column, Row, Table, TableEntry, table_of

LADDER = "Ladder: what each step adds"  # rungs of ours, which show where a difference comes from
WIDEST = 8  # columns of one metric side by side; a list reads better than a wider table


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Entries by place. Of a list: one column, of no name."""

    columns: Mapping[str, Mapping[str, ItemEntry]]  # column -> row -> entry
    corner: str  # the keys that rows vary: "cohort, C"
    constant: str = ""  # what all rows share: "K = 47"


def is_trained(entry: ItemEntry) -> bool:
    return isinstance(entry, Cell) and entry.role != "partition"


def grid(item: Item, entries: Sequence[ItemEntry]) -> Grid | None:
    """The entries by row and column. None where there are none, or where two would have the same row and column."""
    keys = item.rows or dict.fromkeys(key for e in entries for key in e.setting if key not in item.columns)
    settings = [{key: entry.setting[key] for key in keys if key in entry.setting} for entry in entries]
    shared = set.intersection(*(set(setting.items()) for setting in settings)) if settings else set()
    constant = {key: value for key, value in (settings or [{}])[0].items() if (key, value) in shared}
    columns: dict[str, dict[str, ItemEntry]] = {}
    for entry, setting in zip(entries, settings, strict=True):
        column = columns.setdefault(setting_text(entry.setting, item.columns), {})
        row = setting_text({key: value for key, value in setting.items() if key not in constant}) or "all"
        if row in column:
            return None
        column[row] = entry
    corner = ", ".join(key for key in keys if key not in constant)
    return Grid(columns=columns, corner=corner, constant=setting_text(constant)) if columns else None


def item_tables(reported: Reported, widest: int = WIDEST, metrics: Sequence[str] = ()) -> list[Table]:
    """The item's table, a list of the entries that have no column in it, and the ladder. `metrics`: default all."""
    item, metrics = reported.item, metrics or metrics_of(reported.item)
    table = functools.partial(_table, reported, notes=notes_of(reported), data=item_rows(reported))
    rungs = [cell for cell in item.cells if cell.role == "ladder"]
    ladder = [table(_listed(rungs), (ACCURACY, KEPT, KEPT_ACCURACY), LADDER)] if rungs else []
    entries = [*(cell for cell in item.cells if cell.role != "ladder"), *item.shown]
    placed = [entry for entry in entries if entry.setting.keys() >= set(item.columns)]
    layout = grid(item, placed)
    if layout is None or len(layout.columns) > widest:
        return [table(_listed(entries), metrics), *ladder]
    others = _listed([entry for entry in entries if entry not in placed])
    more = [table(others, metrics, "Other entries")] if len(placed) < len(entries) else []
    return [table(layout, metrics), *more, *ladder]


def _listed(entries: Sequence[ItemEntry]) -> Grid:
    """One row an entry."""
    return Grid(columns={"": {entry.label: entry for entry in entries}}, corner="Cell")


def _table(reported: Reported, layout: Grid, metrics: Sequence[str], title: str = "", **more: Any) -> Table:
    """A block of columns for each metric, and what is computed without runs. `more`: the table's notes and data."""
    item, listed = reported.item, layout.columns.get("", {})
    filters = {row: {key: str(value) for key, value in entry.setting.items()} for row, entry in listed.items()}
    columns = _measured(reported, layout, metrics) | _computed(layout)
    rows = [
        Row(
            entries=(TableEntry(text=name), *(column.get(name, TableEntry()) for column in columns.values())),
            values=filters.get(name, {}),
        )
        for name in dict.fromkeys(row for column in layout.columns.values() for row in column)
    ]
    entries = [entry for column in layout.columns.values() for entry in column.values()]
    what = f"; {', '.join(map(axis_title, metrics))}, mean ± standard deviation over seeds"
    what = what if any(map(is_trained, entries)) else ""
    printed = item.profile != "paper" and any(entry.published for entry in entries)
    grey = "; published numbers are for orientation only" if printed else ""
    shared = f"; all rows: {layout.constant}" if layout.constant else ""
    caption = f"{title or item.title} ({item.name}, profile {item.profile}{what}{grey}{shared})"
    return table_of("table", caption, (layout.corner or "setting", *columns), rows, title=title, **more)


def _measured(reported: Reported, layout: Grid, metrics: Sequence[str]) -> dict[Column, dict[str, TableEntry]]:
    """Ours, then published, of each metric: a narrow window shows what stands first."""
    columns: dict[Column, dict[str, TableEntry]] = {}
    settings, placed = published_settings(reported.item, layout), set[str]()
    for metric in metrics:
        title = axis_title(metric) if metrics[1:] else ""
        for kind in ("Ours", "Published"):
            if kind == "Published" and any(settings.rows.values()) and "setting" not in placed:
                group = f"{title}: published" if title else kind
                of_rows = {row: TableEntry(text=text) for row, text in settings.rows.items() if text}
                columns[Column(name="setting", group=group, left=True)] = of_rows
                placed.add("setting")
            for name, entries in layout.columns.items():
                if kind == "Ours" and any(map(is_trained, entries.values())):
                    column = {row: ours_entry(reported, entry.label, metric) for row, entry in entries.items()}
                elif kind == "Published" and any(metric in entry.published for entry in entries.values()):
                    column = {
                        row: published_entry(reported.item, entry, metric, settings.entries.get((name, row), ""))
                        for row, entry in entries.items()
                    }
                else:
                    continue
                name = settings.heads.get(name, name) if kind == "Published" else name
                group = f"{title}: {kind.lower()}" if title else kind
                head = Column(name=name, group=group) if name else Column(name=kind, group=title)
                columns[head] = {**column, **{row: e for row, e in columns.get(head, {}).items() if e != TableEntry()}}
    return columns


@dataclass(frozen=True, kw_only=True)
class PublishedSettings:
    """What published numbers are of, as the paper prints it, where it differs from the cells beside them.

    A column's head has it where all numbers of the column share it, a row's words where all of the row do, else the
    number's own entry.
    """

    heads: Mapping[str, str]  # column -> its head over published numbers
    rows: Mapping[str, str]  # row -> "SVHN, N_s = 250"
    entries: Mapping[tuple[str, str], str]  # column and row -> the same


def published_settings(item: Item, layout: Grid) -> PublishedSettings:
    """The settings of the published numbers of a table."""
    numbers = {
        (name, row): entry
        for name, entries in layout.columns.items()
        for row, entry in entries.items()
        if entry.published
    }
    heads = {}
    for name, entries in layout.columns.items():
        own = {
            setting_text({**entry.setting, **entry.printed_at}, item.columns)
            for row, entry in entries.items()
            if (name, row) in numbers
        }
        if name and len(own) == 1:
            heads[name] = own.pop()
    places = [(heads.get(name, name), row) for name, row in numbers]
    if len(set(places)) < len(places):  # two columns of ours are one of the paper's, and share a row
        heads = {}
    words: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, row), entry in numbers.items():
        keys = [key for key in entry.printed_at if name not in heads or key not in item.columns]
        words.setdefault(row, {})[name] = {key: entry.printed_at[key] for key in keys}
    if not any(_differs(entry, words[row][name]) for (name, row), entry in numbers.items()):
        return PublishedSettings(heads=heads, rows={}, entries={})
    texts = {row: {name: setting_text(said) for name, said in of_row.items()} for row, of_row in words.items()}
    shared = {row: next(iter(of_row.values())) for row, of_row in texts.items() if len(set(of_row.values())) == 1}
    apart = {row: of_row for row, of_row in texts.items() if row not in shared}
    own_texts: dict[tuple[str, str], str] = {}
    for row, of_row in apart.items():
        for name, text in of_row.items():
            own_texts[name, row] = text
    return PublishedSettings(heads=heads, rows=shared, entries=own_texts)


def _differs(entry: ItemEntry, said: Mapping[str, Any]) -> bool:
    """Whether that says anything which the entry's own row, or what runs there, does not."""
    name = entry.experiment.data.name if isinstance(entry, Cell) else ""
    own = {"data": PRINTED_WORDS.get(name, name) if name else entry.printed_at.get("data"), **entry.setting}
    return any(own.get(key) != value for key, value in said.items())


def published_entry(item: Item, entry: ItemEntry, metric: str, setting: str = "") -> TableEntry:
    """The paper's number with its spread, in grey where it cannot be compared. `setting`: what it is of."""
    printed = entry.published.get(metric)
    if printed is None:
        return TableEntry()
    digits = f"{printed.value:.2f}" if is_fraction(metric) else shown(metric, printed.value)
    return TableEntry(
        text=digits,
        spread="" if printed.spread is None else f"±{printed.spread:g}",
        below=(
            *([f"n={printed.runs}"] if printed.runs > 1 else []),
            *([axis_title(printed.metric).lower()] if printed.metric else []),
            *([setting] if setting else []),
        ),
        look="" if item.profile == "paper" else "published",
        sort=printed.value,
    )


def ours_entry(reported: Reported, label: str, metric: str) -> TableEntry:
    """Mean and spread with the number of runs; on profile paper the difference to the published number as well."""
    result = reported.of(metric).get(label)
    if result is None:
        return TableEntry()
    seen, href = result.summary, cell_address(result)
    done = sum(run.status == "done" for run in result.runs)
    if metric.startswith("rounds_to/") and result.n < done:
        never = result.cell.experiment.federation.rounds + 1
        return TableEntry(below=(f"{result.n} of {done} runs come there",), href=href, sort=never)
    if seen is None and done and not result.diverged:
        return TableEntry(href=href)  # a metric that its runs do not have
    if seen is None:
        status = "quoted" if not result.awaited else result.status
        return TableEntry(below=(result.counts,), look=status, href=href, sort=-1.0)
    below = [result.counts]
    if metric == ACCURACY and result.collapsed:
        below.append("below labels alone at equal seeds")
    if metric == ACCURACY and (agreed := reported.agreements.get(label)):
        below += [f"{points(agreed.difference)} to the paper", agreed.text]
    return mean_entry(seen, metric, below=tuple(below), look=result.status, href=href)


def _computed(layout: Grid) -> dict[Column, dict[str, TableEntry]]:
    """Columns that need no run: parameters, bytes. One for all where no row has two values of it."""
    columns: dict[Column, dict[str, TableEntry]] = {}
    entries = [(name, row, entry) for name, column in layout.columns.items() for row, entry in column.items()]
    group = "Computed" if len(layout.columns) > 1 else ""
    for key in dict.fromkeys(key for *_, entry in entries for key in entry.computed):
        known = [(name, row, entry.computed[key]) for name, row, entry in entries if key in entry.computed]
        one_value = len({(row, value) for _, row, value in known}) == len({row for _, row, _ in known})
        for name, row, value in known:
            head = Column(name=key if one_value else f"{name}: {key}", group=group)
            sort = value if isinstance(value, float) else None
            columns.setdefault(head, {})[row] = TableEntry(text=_plain(value), sort=sort)
    return columns


def _plain(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else number(float(value))
