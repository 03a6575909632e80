"""Build the published table of an item: every value, under the paper's own names and in the paper's own layout.

It needs no run. Its numbers never appear in a table of the suite's own runs, because that data set may be a surrogate.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmark.fractions import is_fraction
from benchmark.papers.item import Item, ItemEntry, Publication, PublishedValue
from reports.entries import setting_text
from reports.formatting import axis_title, metric_name, shown
from reports.tables import Column, Row, Table, TableEntry

METRIC = "metric"  # in a layout, the key for the metric's name


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """One published number with its place in the table."""

    entry: ItemEntry
    metric: str
    published: PublishedValue
    row: str
    section: str  # rows of one section are adjacent
    column: Column


def publication_of(item: Item) -> Publication | None:
    """Return the published values of the item; for a custom table, its entries with published numbers."""
    if item.publication is not None:
        return item.publication
    entries = tuple(entry for entry in (*item.cells, *item.shown) if entry.published)
    if not entries:
        return None
    others = dict.fromkeys(key for entry in entries for key in entry.setting if key not in item.columns)
    several = len({metric for entry in entries for metric in entry.published}) > 1
    columns = (*item.columns, METRIC) if several else item.columns
    return Publication(title=item.title, entries=entries, rows=item.rows or tuple(others), columns=columns)


def published_table(item: Item) -> Table | None:
    """Return the published table, or None if nothing is published, or no value can be read from a figure."""
    publication = publication_of(item)
    numbers = _placed(publication) if publication else []
    if publication is None or not numbers:
        return None
    places = {(number.section, number.row, number.column) for number in numbers}
    if len(places) < len(numbers):  # two numbers would share a place, so that each entry gets a row
        numbers = [_listed(number) for number in numbers]
    rows = dict.fromkeys((number.section, number.row) for number in numbers)
    sections = list(dict.fromkeys(section for section, _ in rows))
    rows_in_order = sorted(rows, key=lambda row: sections.index(row[0]))
    columns = _columns_in_order(numbers)
    by_place = {(number.section, number.row, number.column): number for number in numbers}
    digits = _digits(numbers)
    made = []
    for section, name in rows_in_order:
        found = [by_place.get((section, name, column)) for column in columns]
        entries = [TableEntry() if number is None else _entry(number, digits[number.metric]) for number in found]
        part = sections.index(section) if 2 * len(sections) <= len(rows) else 0
        made.append(Row(entries=(TableEntry(text=name), *entries), section=f"part-{part}"))
    corner = ", ".join(publication.rows)
    return Table(
        name="published",
        title="As published",
        caption=f"{publication.title}, as published; {_brief(publication, numbers)}",
        brief=_brief(publication, numbers),
        columns=(Column(name=corner or "data"), *columns),
        rows=tuple(made),
        notes=tuple(_notes(numbers)),
    )


def unread_text(item: Item) -> str:
    """Describe the paper's figure if no value can be read from it; empty if there are values."""
    publication = publication_of(item)
    if publication is None or not publication.unread:
        return ""
    return f"{publication.source}: {publication.unread}"


def published_rows(item: Item) -> Iterator[dict[str, Any]]:
    """Yield one row of the CSV per published number, in the unit that the row names and with the paper's names."""
    publication = publication_of(item)
    for number in _placed(publication) if publication else ():
        scale = 0.01 if is_fraction(number.metric) else 1.0
        spread = number.published.spread
        yield {
            "data": number.entry.published_setting.get("data"),
            **number.entry.setting,
            "label": number.entry.label,
            "role": "as published",
            METRIC: number.metric,
            "unit": "fraction" if is_fraction(number.metric) else "as published",
            "published": round(number.published.value * scale, 10),
            "published_spread": None if spread is None else round(spread * scale, 10),
            "published_runs": number.published.runs,
            "status": "published",
            "note": number.entry.note,
        }


def _placed(publication: Publication) -> list[PublishedNumber]:
    """Find the row and the column of each number."""
    placed = []
    for entry in publication.entries:
        for metric, published in entry.published.items():
            words = {"data": entry.published_setting.get("data", ""), **entry.setting, METRIC: axis_title(metric)}
            row = setting_text(words, publication.rows) or str(words["data"]) or entry.label
            first, *rest = publication.columns or (METRIC,)
            group = setting_text(words, [first]) if rest else ""
            column = Column(name=setting_text(words, rest or [first]), group=group)
            section = setting_text(words, publication.rows[:1]) if publication.rows[1:] else ""
            placed.append(
                PublishedNumber(
                    entry=entry, metric=metric, published=published, row=row, section=section, column=column
                )
            )
    return placed


def _listed(number: PublishedNumber) -> PublishedNumber:
    """Place the number in a list with a row for each entry."""
    column = Column(name=axis_title(number.metric))
    return replace(number, row=number.entry.label, section="", column=column)


def _columns_in_order(numbers: Iterable[PublishedNumber]) -> list[Column]:
    """Return the columns so that columns of one group are adjacent."""
    columns = list(dict.fromkeys(number.column for number in numbers))
    groups = list(dict.fromkeys(column.group for column in columns))
    return sorted(columns, key=lambda column: groups.index(column.group))


def _digits(numbers: Iterable[PublishedNumber]) -> dict[str, int]:
    """Return the number of decimals of each metric, because a file of numbers does not keep the zero of 69.60."""
    digits: dict[str, int] = {}
    for number in numbers:
        for value in (number.published.value, number.published.spread or 0.0):
            decimals = len(f"{value:.10g}".partition(".")[2])
            digits[number.metric] = max(digits.get(number.metric, 0), decimals)
    return digits


def _entry(number: PublishedNumber, digits: int) -> TableEntry:
    value, spread = number.published.value, number.published.spread
    text = shown(number.metric, value) if number.metric.startswith("exchange/") else f"{value:.{digits}f}"
    return TableEntry(text=text, spread="" if spread is None else f"±{spread:.{digits}f}", sort=value)


def _brief(publication: Publication, numbers: Iterable[PublishedNumber]) -> str:
    """Describe the numbers: their metric, their source, and the data set if no row or column names it."""
    numbers = list(numbers)
    metrics = dict.fromkeys(metric_name(number.metric) for number in numbers)
    in_percent = any(is_fraction(number.metric) for number in numbers)
    where = f"{publication.source}: " if publication.source else ""
    what = f"{', '.join(metrics)}{' in percent' if in_percent else ''}"
    runs = max(number.published.runs for number in numbers)
    has_spread = any(number.published.spread is not None for number in numbers)
    how_many = f" of {runs} runs" if runs > 1 else ""
    of_runs = f", mean{how_many} ± standard deviation" if has_spread else ""
    names_of_data = [number.entry.published_setting.get("data") for number in numbers]
    data = dict.fromkeys(str(name) for name in names_of_data if name)
    is_named = "data" in (*publication.rows, *publication.columns)
    on = f", on {', '.join(data)}" if data and not is_named else ""
    return f"{where}{what[:1].lower() if where else what[:1]}{what[1:]}{on}{of_runs}"


def _notes(numbers: Iterable[PublishedNumber]) -> Iterator[str]:
    """Yield each remark on published numbers once, with the methods or entries that it is about."""
    remarks: dict[str, dict[str, ItemEntry]] = {}
    entries = {id(number.entry): number.entry for number in numbers}.values()
    for entry in entries:
        for remark in filter(None, entry.note.split("; ")):
            remarks.setdefault(remark, {})[entry.label] = entry
    for remark, of_remark in remarks.items():
        yield f"{_named(of_remark, entries)}: {remark}"


def _named(some: Mapping[str, ItemEntry], every: Iterable[ItemEntry]) -> str:
    """Name entries by their methods if all entries of these methods are among them; if not, by their labels."""
    methods = dict.fromkeys(str(entry.setting.get("method", entry.label)) for entry in some.values())
    of_methods = [entry for entry in every if str(entry.setting.get("method", entry.label)) in methods]
    names = list(methods if len(of_methods) == len(some) else some)
    return ", ".join(names[:8]) + (" and others" if names[8:] else "")
