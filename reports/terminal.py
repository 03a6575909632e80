"""Print an item on the terminal, 100 columns wide. The output is also readable without colours."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from benchmark.papers.item import Item
from benchmark.verdicts.cell_results import Records
from benchmark.verdicts.open_claims import looks_in_words, looks_of
from reports.arena_tables import arena_tables
from reports.claims import ClaimRow, rows_of
from reports.entries import is_arena, mean_entry, metrics_of, notes_of
from reports.findings import statuses_in_words
from reports.formatting import NONE, count
from reports.item_results import ItemResults
from reports.leads import lead_table
from reports.paper_table import item_tables
from reports.published_table import published_table, unread_text
from reports.tables import Table

WIDTH = 100  # columns of the terminal
HEAD, ROW_NAME = 12, 24  # characters: the longest line of a head, and the least width of the rows' names
STYLES = {
    "published": "dim",
    "stale": "dim",
    "holds": "bold green",
    "contradicted": "bold red",
    "undecided": "bold yellow",
    "diverged": "red",
}
MOST_DECIDED = 6  # decided claims that are not primary, at the end of the output
VERDICT, ESTIMATE = 12, 13  # characters of the verdict and of the estimate in the line of a primary claim
NOT_COMPARED = "Published numbers are of a larger setting."
PROCESSORS = "Your numbers differ by processor, verdicts seldom do."
LAYOUTS = (8, 0)  # largest numbers of columns, tried in this order until the table fits; 0 makes a list


def print_item(item: Item, records: Records, console: Console, report: str | None = None) -> None:
    """Print the published table, the tables of the item's runs, claims, notes and the path of the report."""
    reported = ItemResults(item, records)
    say(console, f"{item.name}  {item.title}", "bold")
    print_published(item, console)
    for table in arena_tables(reported) if is_arena(item) else _tables(reported, console, metrics_of(item)):
        say(console, re.sub(r"^\((.*?)\)", r"ours: \1", table.caption.removeprefix(item.title).lstrip(", ")))
        console.print(_rich(table, console))
    if item.reference:
        leads = lead_table(reported)
        say(console, leads.brief)
        for part in _parts(leads, console):
            console.print(_rich(part, console))
    rows = rows_of(reported)
    for number, row in enumerate(rows, start=1):
        _print_claim(row, number, console)
    for line in (*(f"note: {note}" for note in notes_of(reported)), *verdict_lines(rows)):
        say(console, line)
    if counts := statuses_in_words(reported):
        say(console, counts)
    _say_where(report, console)


def print_primary(item: Item, records: Records, console: Console, report: str | None = None) -> None:
    """Print one line per cell and per primary claim, the same counts as on the page, and the path of the page."""
    reported = ItemResults(item, records)
    say(console, f"{item.name}  {item.title}", "bold")
    console.print(_cells(reported, console))
    rows = rows_of(reported)
    for row in rows:
        if row.claim.main and not row.claim.withdrawn:
            console.print(_primary_line(row, console), soft_wrap=True)
    if counts := statuses_in_words(reported):
        say(console, counts)
    say(console, PROCESSORS if item.profile == "paper" else f"{NOT_COMPARED} {PROCESSORS}")
    _say_where(report, console)


def _cells(reported: ItemResults, console: Console) -> RichTable:
    """Build a table with one line per cell: its accuracy, its seeds, and the published value with its setting."""
    table = RichTable(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True, show_edge=False)
    for head in ("Cell", "Test accuracy (%)", "Seeds", "Published"):
        table.add_column(head, justify="left" if head in ("Cell", "Published") else "right", no_wrap=True)
    for label, result in reported.results.items():
        entry = mean_entry(result.summary)
        published = result.cell.published_value()
        accuracy = f"{entry.text} {entry.spread}".strip()
        differing = result.cell.published_setting
        at = ", ".join(f"{key} = {value}" for key, value in differing.items() if key in ("K", "C", "N_s"))
        data = differing.get("data", "")
        setting = ", ".join(filter(None, (str(data), at)))
        in_brackets = f" ({setting})" if setting else ""
        shown = "" if published is None else f"{published:.2f}{in_brackets}"
        table.add_row(*(Text(plain(text, console)) for text in (label, accuracy, str(result.n), shown)))
    return table


def _primary_line(row: ClaimRow, console: Console) -> Text:
    """Build "holds         +3.50 points  Federated CRL beats the server's labels alone"."""
    judged = row.judged
    line = Text()
    style = STYLES.get(judged.verdict if row.larger is None else "", "bold")
    line.append(f"{plain(row.verdict_text, console):<{VERDICT}}", style=style)
    seen = row.estimate if judged.estimate is not None else ""
    more = f" (--seeds {judged.could_decide} can decide it)" if judged.could_decide else ""
    line.append(plain(f" {seen:>{ESTIMATE}}  {row.claim.name}{more}", console))
    return line


def _say_where(report: str | None, console: Console) -> None:
    where = f"report: {report}" if report else "report: not built; `fssl report` builds it"
    console.print(Text(plain(where, console)), soft_wrap=True)  # a path is not broken over lines


def print_published(item: Item, console: Console) -> None:
    """Print the published table; a wide one in parts that fit. Print one line for a figure without readable values."""
    table = published_table(item)
    if table is None:
        if unread_text(item):
            say(console, f"published: {unread_text(item)}")
        return
    say(console, f"published: {table.brief}")
    for part in _parts(table, console):
        console.print(_rich(part, console))


def _parts(table: Table, console: Console) -> list[Table]:
    """Split the columns of a table into parts that fit, each with the names of the rows."""
    parts = []
    first = 1
    while first < len(table.columns):
        end = len(table.columns)
        while end > first + 1 and not _fits(_columns(table, first, end), console):
            end -= 1
        parts.append(_columns(table, first, end))
        first = end
    return parts or [table]


def _columns(table: Table, first: int, end: int) -> Table:
    """Return the table with its first column and the columns from `first` to `end` (exclusive)."""
    rows = []
    for row in table.rows:
        rows.append(replace(row, entries=(row.entries[0], *row.entries[first:end])))
    return replace(table, columns=(table.columns[0], *table.columns[first:end]), rows=tuple(rows))


def _fits(table: Table, console: Console) -> bool:
    options = console.options.update(max_width=10 * WIDTH)
    return Measurement.get(console, options, _rich(table, console)).maximum <= min(WIDTH, console.width)


def _tables(reported: ItemResults, console: Console, metrics: Sequence[str]) -> list[Table]:
    """Return the tables in the widest layout that fits; if none does, as lists, one per metric if there are several."""
    for widest in LAYOUTS:
        tables = item_tables(reported, widest, metrics)
        if all(_fits(table, console) for table in tables):
            return tables
    if len(metrics) == 1:
        return tables
    return [table for metric in metrics for table in _tables(reported, console, (metric,))]


def verdict_lines(rows: Sequence[ClaimRow]) -> list[str]:
    """Return lines on primary, decided and open claims.

    There is a line for each primary claim and for the first others that are decided, and then the number of seeds that
    the open ones need. Return nothing without claims that have seeds.
    """
    if all(row.judged.estimate is None for row in rows):
        return []
    counted = [row for row in rows if not row.claim.withdrawn]
    main = [row for row in counted if row.claim.main]
    others = [row for row in counted if row.judged.is_decided and not row.claim.main]
    open_claims = sum(not row.judged.is_decided for row in rows)
    left = f"{open_claims} of {count(len(rows), 'claim')} not decided"
    kind = "other" if main else "decided"
    return [
        *(["primary claims:"] if main else []),
        *map(_verdict_line, main),
        *([f"{kind} claims:"] if others else []),
        *map(_verdict_line, others[:MOST_DECIDED]),
        *([f"  {len(others) - MOST_DECIDED} more are decided"] if others[MOST_DECIDED:] else []),
        "; ".join(filter(None, [left, looks_in_words(looks_of(row.judged for row in rows))])),
    ]


def _verdict_line(row: ClaimRow) -> str:
    """Write "undecided: Grouping beats FedAvg (+1.2 points, 9 seeds; --seeds 16 can decide it)"."""
    judged = row.judged
    seen = [f"{row.estimate}, {count(judged.n, 'seed')}"] if judged.estimate is not None else []
    look = [f"--seeds {judged.could_decide} can decide it"] if judged.could_decide else []
    return f"  {row.verdict_text}: {row.claim.name} ({'; '.join([*seen, *look])})"


def _print_claim(row: ClaimRow, number: int, console: Console) -> None:
    verdict, claim = row.judged.verdict, row.claim
    heading = Text(f"claim {number}: ")
    heading.append(plain(row.verdict_text, console), style=STYLES.get(verdict if row.larger is None else "", "bold"))
    heading.append(plain(f"  {claim.name}, {row.scope}", console))
    console.print(heading, soft_wrap=True)
    withdrawn = [f"withdrawn from the summary tables: {row.item.withdrawal_of(claim)}"] if claim.withdrawn else []
    measured = f"{row.estimate}, {row.interval}, n = {row.judged.n}: {row.reason}"
    for line in (row.quote, measured, *row.more, *row.statistics, *withdrawn):
        say(console, line, indent="  ")


def _rich(table: Table, console: Console) -> RichTable:
    """Convert a table for rich; each line of an entry gets a separate line."""
    shown = RichTable(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True)
    longest = max((len(row.entries[0].text) for row in table.rows), default=0)
    for place, column in enumerate(table.columns):
        parts = [part for part in (column.group, column.name, column.below) if part]
        head = "\n".join(line for part in parts for line in textwrap.wrap(part, HEAD, break_long_words=False))
        words = place == 0 or column.left
        least = min(longest, ROW_NAME) if place == 0 else None
        shown.add_column(
            Text(plain(head, console)), justify="left" if words else "right", no_wrap=not words, min_width=least
        )
    section = table.rows[0].section if table.rows else ""
    for row in table.rows:
        if row.section != section:
            shown.add_section()
            section = row.section
        lines = ["\n".join([f"{e.text} {e.spread}".strip(), *e.below]) for e in row.entries]
        looks = ["bold" if entry.best else STYLES.get(entry.look, "") for entry in row.entries]
        shown.add_row(*(Text(plain(text, console), style=look) for text, look in zip(lines, looks, strict=True)))
    return shown


def say(console: Console, text: str, style: str = "", indent: str = "") -> None:
    """Print text that is wrapped at WIDTH."""
    for line in textwrap.wrap(plain(text, console), WIDTH - len(indent), break_long_words=False):
        console.print(Text(indent + line, style=style), soft_wrap=True)


def plain(text: str, console: Console) -> str:
    """Return the text as this console can write it: other characters become "?", and control characters vanish."""
    shown = "".join(character for character in text if character.isprintable() or character == "\n")
    if not console.encoding.lower().startswith("utf"):
        shown = shown.replace("±", "+-").replace(NONE, "-")
    return shown.encode(console.encoding, "replace").decode(console.encoding)
