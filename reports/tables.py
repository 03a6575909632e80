"""Write a table in five formats: terminal (terminal.py), HTML (templates/parts.html), Markdown, LaTeX and CSV.

Entries contain text for people. The numbers behind a table, at full precision and with one unit per row, are its
`data`, which CSV writes.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from reports.formatting import NONE

MARKDOWN = str.maketrans({c: "\\" + c for c in "\\|*_`[]"} | {"\n": " ", "\r": " ", "<": "&lt;", "&": "&amp;"})


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One entry of a table."""

    text: str = NONE
    spread: str = ""  # after the text: "±0.41"
    below: tuple[str, ...] = ()  # further lines: "n=5"
    detail: tuple[str, ...] = ()  # further lines that only pages show, such as an item's title
    lines: tuple["TableEntry", ...] = ()  # lines below the text with links of their own, which only pages show
    best: bool = False  # whether the text is bold: the best value of its setting beyond chance
    look: str = ""  # published, missing, partial, diverged or a verdict; it selects the colour
    href: str = ""  # from the site's root
    sort: float | None = None  # None if sorted by its text

    @property
    def line(self) -> str:
        """Return all of it on one line: "95.26 ±0.60 n=5"."""
        return " ".join(part for part in (self.text, self.spread, *self.below) if part)

    @property
    def remarks(self) -> str:
        """Return the further lines, in brackets after a value: "(n=5)"."""
        lines = ", ".join(self.below)
        return f"({lines})" if lines and self.text != NONE else lines


@dataclass(frozen=True, kw_only=True)
class Column:
    """The head of a column."""

    name: str
    group: str = ""  # the common head of the columns of a group
    below: str = ""  # a line under the name
    left: bool = False  # True for words; numbers are aligned right


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table. A page's list can be filtered by `values`."""

    entries: tuple[TableEntry, ...] = ()
    section: str = ""  # rows of one section are adjacent, with a rule above them
    values: Mapping[str, str | Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that can be written in every format. Its first column names the row."""

    name: str  # of its files: "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""  # the heading on a page with several tables
    brief: str = ""  # a shorter caption for a page with headings that contain the rest
    notes: tuple[str, ...] = ()
    data: Sequence[Mapping[str, Any]] = ()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Return each group of consecutive columns: its name and the number of columns."""
        return [(name, len(list(columns))) for name, columns in groupby(self.columns, key=lambda column: column.group)]

    @property
    def filters(self) -> dict[str, list[str]]:
        """Return the keys and values for filtering rows: keys with at least two values, if some rows share a value."""
        values: dict[str, dict[str, None]] = {}
        for row in self.rows:
            for key, value in row.values.items():
                values.setdefault(key, {}).update(dict.fromkeys([value] if isinstance(value, str) else value))
        most = min(60, len(self.rows) - 1)
        return {key: list(choices) for key, choices in values.items() if 2 <= len(choices) <= most}

    def heads(self) -> list[str]:
        """Return the columns' names, each with its group: "CIFAR-10, alpha = 0.1"."""
        return [f"{column.group}, {column.name}" if column.group else column.name for column in self.columns]


def row_of(entries: Iterable[Any], section: str = "", **values: str | Sequence[str]) -> Row:
    """Make a row; an entry that is not a TableEntry is converted to its text."""
    made = tuple(entry if isinstance(entry, TableEntry) else TableEntry(text=str(entry)) for entry in entries)
    return Row(entries=made, section=section, values=values)


def table_of(
    name: str,
    caption: str,
    heads: Iterable[str | Column],
    rows: Iterable[Row | Iterable[Any]],
    *,
    words: int = 1,
    **more: Any,
) -> Table:
    """Make a table of heads and rows. The columns of the first `words` plain heads contain words, the others numbers.

    `more`: the table's other fields.
    """
    columns = (
        head if isinstance(head, Column) else Column(name=head, left=place < words) for place, head in enumerate(heads)
    )
    made = (row if isinstance(row, Row) else row_of(row) for row in rows)
    return Table(name=name, caption=caption, columns=tuple(columns), rows=tuple(made), **more)


def markdown(text: str) -> str:
    """Return text for a cell of a Markdown table. It ends no cell or line and is neither tag nor link."""
    return text.translate(MARKDOWN)


def csv_safe(value: object) -> object:
    """Return a CSV field that no spreadsheet reads as a formula.

    Text that begins with = + - @, or with a control character that spreadsheets skip, gets a leading apostrophe.
    Numbers stay as they are, and NaN becomes empty.
    """
    if not isinstance(value, str):
        return None if value != value else value
    if re.match(r"[=+\-@\t\r\n]", value) and not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value):
        return "'" + value
    return value


def csv_of(rows: Iterable[Mapping[str, Any]], names: Iterable[str] = ()) -> bytes:
    """Write rows as CSV at full precision; missing values and NaN are empty. `names`: the first columns."""
    rows = list(rows)
    names = list(dict.fromkeys((*names, *(name for row in rows for name in row))))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_field, names))
    for row in rows:
        writer.writerow([_field(row.get(name)) for name in names])
    return text.getvalue().encode(errors="backslashreplace")  # names of files need not be UTF-8


def _field(value: object) -> object:
    """Return a CSV field without a bare carriage return, which older versions of Python write without quotes."""
    safe = csv_safe(value)
    return safe.replace("\r\n", "\n").replace("\r", "\n") if isinstance(safe, str) else safe


def markdown_of(table: Table, notes: bool = True) -> str:
    """Write a Markdown table with its caption above and its notes below; best values are in bold."""
    heads = [markdown(head) for head in table.heads()]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in table.rows:
        rows.append([_markdown_entry(entry) for entry in row.entries])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    listed = "".join(f"- {markdown(note)}\n" for note in table.notes) if notes else ""
    return f"{markdown(table.caption)}\n\n{lines}\n" + (f"\n{listed}" if listed else "")


def _markdown_entry(entry: TableEntry) -> str:
    line = markdown(entry.line)
    return line.replace(markdown(entry.text), f"**{markdown(entry.text)}**", 1) if entry.best else line


LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "\u2013": "--",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
)


def latex(text: str) -> str:
    """Write text for LaTeX on one line, with special characters escaped."""
    return " ".join(text.split()).translate(LATEX)


def latex_of(table: Table, notes: bool = True) -> str:
    """Write a floating table for the package booktabs, with its caption; notes are comments below it.

    Groups of columns have a common head. Best values are in bold; remarks such as the number of runs are in brackets.
    """
    alignment = "".join("l" if column.left or place == 0 else "r" for place, column in enumerate(table.columns))
    heads = [latex(column.name) for column in table.columns]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(table.caption)}.}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        *_latex_groups(table),
        f"{' & '.join(heads)} " + r"\\",
        r"\midrule",
    ]
    section = table.rows[0].section if table.rows else ""
    for row in table.rows:
        if row.section != section:
            lines.append(r"\midrule")
            section = row.section
        entries = [_latex_entry(entry) for entry in row.entries]
        lines.append(f"{' & '.join(entries)} " + r"\\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    if notes:
        lines += [f"% {' '.join(note.split())}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _latex_groups(table: Table) -> list[str]:
    """Write the line with the heads of groups and the rules below them; none without groups."""
    if not any(column.group for column in table.columns):
        return []
    heads, rules = [], []
    place = 1
    for name, size in table.groups:
        heads.append(rf"\multicolumn{{{size}}}{{c}}{{{latex(name)}}}" if name else " & ".join([""] * size))
        if name:
            rules.append(rf"\cmidrule(lr){{{place}-{place + size - 1}}}")
        place += size
    return [f"{' & '.join(heads)} " + r"\\", " ".join(rules)]


def _latex_entry(entry: TableEntry) -> str:
    """Write an entry: "\\textbf{83.07} $\\pm$ 0.41 (n=3)"."""
    text = rf"\textbf{{{latex(entry.text)}}}" if entry.best else latex(entry.text)
    spread = " " + latex(entry.spread).replace(r"$\pm$", r"$\pm$ ") if entry.spread else ""
    remarks = " " + latex(entry.remarks) if entry.remarks else ""
    return f"{text}{spread}{remarks}"


def files_of(name: str, tables: Sequence[Table]) -> dict[str, bytes]:
    """Write tables as three files: name.md and name.tex of all, name.csv of the data behind them."""
    texts = [markdown_of(table, notes=is_last(tables, place)) for place, table in enumerate(tables)]
    in_latex = [latex_of(table, notes=is_last(tables, place)) for place, table in enumerate(tables)]
    data = next((table.data for table in tables if len(table.data)), ())
    return {
        f"{name}.md": "\n".join(texts).encode(errors="backslashreplace"),
        f"{name}.tex": "\n".join(in_latex).encode(errors="backslashreplace"),
        f"{name}.csv": csv_of(data),
    }


def is_last(tables: Sequence[Table], place: int) -> bool:
    """Return whether no later table has the same notes, so that they are written once."""
    return all(later.notes != tables[place].notes for later in tables[place + 1 :])
