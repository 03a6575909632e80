"""An item as a table: published and reproduced numbers side by side, a block of columns a metric.

Columns are what `item.columns` names (as a rule the method), rows what `item.rows` names, else all other keys. Where
two entries fall on one place, or there are too many columns to read, the table is a list with one row an entry.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.papers.item import Cell, Item, ItemEntry
from benchmark.papers.table import WORDS as PRINTED_WORDS
from benchmark.records.versions import numerics_caveat
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.statistics import Summary
from reports.formatting import WORDS, axis_title, cell_address, is_fraction, number, points, shown, unit_of
from reports.reported import KEPT, KEPT_ACCURACY, Reported
from reports.tables import Column, Row, Table, TableEntry, table_of

LADDER = "Ladder: what each step adds"  # rungs of ours, which show where a difference comes from
SELECTED_ON_TEST = "selection: best round on the test set, as the paper did"
WIDEST = 8  # columns of one metric side by side; a list reads better than a wider table
LABELS = WORDS["labels"]


def method_of(entry: ItemEntry) -> str:
    return str(entry.setting.get("method", entry.label))


def metrics_of(item: Item) -> tuple[str, ...]:
    """What the table has a block of columns for: the item's metrics, and those that its figure draws."""
    return tuple(dict.fromkeys((*item.metrics, *(item.drawing.metrics if item.drawing else ()))))


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


def setting_text(setting: Mapping[str, object], keys: Iterable[str] | None = None) -> str:
    """ "full, C = 47, mixup = yes": words speak for themselves, numbers need their symbol, and so do yes and no.

    `keys`: what alone is told; default all.
    """
    setting = setting if keys is None else {key: setting[key] for key in keys if key in setting}
    alone = {key for key, value in setting.items() if isinstance(value, str) and value not in ("yes", "no")}
    return ", ".join(str(value) if key in alone else f"{key} = {value}" for key, value in setting.items())


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


def is_printed(item: Item) -> bool:
    """Whether any of its numbers stands in a paper."""
    return any(entry.published for entry in (*item.cells, *item.shown))


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


def mean_entry(seen: Summary | None, metric: str = ACCURACY, **more: Any) -> TableEntry:
    """Mean and standard deviation over seeds, a dash without a run. `more`: the entry's other fields."""
    if seen is None:
        return TableEntry(**more)
    spread = "" if seen.std is None else f"±{shown(metric, seen.std)}"
    return TableEntry(text=shown(metric, seen.mean), spread=spread, sort=seen.mean, **more)


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


def entry_values(reported: Reported, entry: ItemEntry, metric: str) -> dict[str, Any]:
    """One row of `item_rows`."""
    item, result = reported.item, reported.of(metric).get(entry.label)
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
        "published_setting": setting_text(entry.printed_at) if printed else None,
        "published_metric": (printed.metric or metric) if printed else None,
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
    item, results = reported.item, reported.of(reported.item.metrics[0]).values()
    chosen = [result.cell.label for result in results if result.selected_on_test]
    where = "" if len(chosen) == sum(result.n > 0 for result in results) else f" ({', '.join(chosen)})"
    waiting = ", ".join(choice.label for choice in item.choices)
    return (
        *item.notes,
        *_own_notes(item),
        *_who_has_labels(item),
        *([f"{SELECTED_ON_TEST}{where}"] if chosen else []),
        *([f"waits for trials: {waiting}"] if waiting else []),
        *filter(None, [numerics_caveat(reported.runs)]),
    )


def _own_notes(item: Item) -> list[str]:
    """Each remark of the entries' notes once, with the entries that have it."""
    labels_of: dict[str, list[str]] = {}
    entries: list[ItemEntry] = [*item.cells, *item.shown, *item.choices]
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
        if cell.role in ("published", "own", "control", "quoted"):
            holders.setdefault(cell.experiment.data.label_setting, {})[method_of(cell)] = None
    methods = [name for names in holders.values() for name in names]
    if len(holders) < 2 or len(set(methods)) < len(methods):
        return []
    least, *_ = sorted(holders, key=lambda setting: len(holders[setting]))
    names = ", ".join(list(holders[least])[:6])
    rest = " or ".join(LABELS.get(setting, setting) for setting in holders if setting != least)
    return [f"{names}: {LABELS.get(least, least)}; otherwise {rest}"]
