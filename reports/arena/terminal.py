"""The arena on the terminal: a table a column, methods as rows, at 100 columns."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records
from reports.arena.properties import arena_properties
from reports.arena.table import Column, columns, footnotes
from reports.arena.text import (
    Line,
    accuracy,
    budget_text,
    caption,
    costs,
    every_seed,
    lines,
    standing,
    title,
    to_best,
)
from reports.console import SECTIONS, new_table, plain, plus_minus, say
from reports.words import mean_spread


def print_columns(item: Item, records: Records, console: Console) -> None:
    """Every column's table with its budget and how sure its order is, then footnotes and properties."""
    say(console, f"profile {item.profile}; {caption()}")
    for column in columns(item, records):
        console.print()
        say(console, f"{title(column)}: {budget_text(column)}" if column.entries else title(column), "bold")
        say(console, standing(column, item.seeds))
        console.print(_table(item, column, console))
    for note, number in footnotes(item).items():
        say(console, f"[{number}] {note}", hang="    ")
    print_properties(item, records, console)


def _table(item: Item, column: Column, console: Console) -> Table:
    table = new_table(SECTIONS)
    table.add_column("\nmethod", overflow="fold")
    second = "to the best,\ninterval" if column.ranked else "\nevery seed"
    for name in ("equal\nrounds", second, "equal\nsteps", "equal\nbytes", "steps\nof a run", "MB\nof a run"):
        table.add_column(name, justify="right", no_wrap=name != second)
    kind = "compared"
    for line in lines(item, column):
        if line.kind == "bound" and kind != "bound":
            table.add_section()
        kind = line.kind
        style = "" if kind == "compared" else "dim"
        table.add_row(*(Text(plain(field, console)) for field in _fields(line, column, console)), style=style)
    return table


def _fields(line: Line, column: Column, console: Console) -> list[str]:
    sign = plus_minus(console)
    if line.kind == "compared":
        rounds = line.place("rounds")
        second = to_best(rounds) if column.ranked else every_seed(rounds.values) if rounds else ""
        short = [accuracy(line.place(basis), None) for basis in ("steps", "bytes")]
        return [line.named, accuracy(rounds, sign), second, *short, *costs(line)]
    if line.bound is None:
        return [line.named, "", line.status, "", "", "", ""]
    second = line.status if column.ranked else every_seed(line.bound.values)
    return [line.named, mean_spread(line.bound.summary, sign), second, "", "", "", ""]


def print_properties(item: Item, records: Records, console: Console) -> None:
    """What the methods do, as far as records say it, and what was seen of each."""
    for number, properties in enumerate(arena_properties(item, records)):
        if number == 0:
            say(console, "Properties: from what the runs handed over", "bold")
        table = new_table()
        for name in (properties.corner, *properties.columns):
            table.add_column(Text(plain(name, console)), overflow="fold")
        for method, marks in properties.rows.items():
            table.add_row(*(Text(plain(text, console)) for text in (method, *map(str, marks))))
        console.print(table)
