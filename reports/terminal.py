"""An item on the terminal, at 100 columns, as readable in a log file as with colours."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmark.papers.item import Item
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect, counted, seeds_of
from benchmark.verdicts.statistics import summary
from reports.arena.terminal import print_columns
from reports.cells import SELECTED_ON_TEST, Grid, Row, grid, ladder, notes_of, setting_text
from reports.console import new_table, plain, plus_minus, say
from reports.words import (
    difference,
    difference_interval,
    mean_spread,
    percent,
    points,
    points_interval,
    without_dollars,
)

LONGEST_SETTING = 40  # characters of a row's head on one line
MOST_METHODS = 3  # what fits beside each other in WIDTH columns
VERDICT_STYLE = {"holds": "bold green", "contradicted": "bold red", "undecided": "bold yellow"}


def print_item(item: Item, records: Records, console: Console, report: str | None = None) -> None:
    """Prints table, ladder, claims, notes and where the report lies (`report`, a path or None).

    Items whose cells differ in method and one more setting print with methods as columns and differences to the first
    method, paired by seed; items whose rows are methods as the arena's tables; any other item prints one line a cell.
    """
    records = counted(item, records)
    results = collect(item, records)
    say(console, f"{item.name}  {item.title}", "bold")
    if item.methods_are_rows:
        print_columns(item, records, console)
    else:
        _print_settings(item, results, console)
    if rungs := ladder(results.values()):
        say(console, "Ladder: what each step adds", "bold")
        console.print(_ladder_table(item, rungs, records, console))
    for number, judged in enumerate(judge(item, records), start=1):
        _print_claim(judged, number, console)
    for note in notes_of(item, results.values()):
        say(console, f"note: {note}")
    where = f"report: {report}" if report else "report: not built; `fssl report` builds it"
    console.print(Text(plain(where, console)), soft_wrap=True)  # a path is not broken over lines


def _print_settings(item: Item, results: dict[str, CellResult], console: Console) -> None:
    cells = grid(results.values())
    say(console, _caption(item, cells, results))
    fits = cells is not None and len(cells.rows) > 1 and 2 <= len(cells.methods) <= MOST_METHODS
    if cells is not None and fits:
        console.print(_grid_table(item, cells, console))
    else:
        console.print(_long_table(item, [r for r in results.values() if r.cell.role != "ladder"], console))


def _caption(item: Item, cells: Grid | None, results: dict[str, CellResult]) -> str:
    known = [result for result in results.values() if result.n]
    on_test = bool(known) and all(result.selected_on_test for result in known)
    when = f", {SELECTED_ON_TEST}," if on_test else " after the last round"
    constant = f"{cells.constant}; " if cells and cells.constant else ""
    published = "in brackets ours - published" if item.profile == "paper" else "published numbers for orientation only"
    return f"profile {item.profile}; {constant}test accuracy{when} in percent, mean +-std; {published}"


def _grid_table(item: Item, cells: Grid, console: Console) -> Table:
    """Rows of the setting that varies; per method the published number, ours, and the difference to the baseline."""
    table = new_table()
    longest = max(len(line) for row in cells.rows for line in setting_text(row.setting, "\n").splitlines())
    corner = Text(plain(cells.corner.replace(", ", "\n"), console))
    table.add_column(corner, no_wrap=longest <= LONGEST_SETTING, max_width=LONGEST_SETTING)  # numbers are never broken
    grey = "" if item.profile == "paper" else "dim"
    for method in cells.published_methods:
        table.add_column(Text(plain(f"{method}\npaper", console)), justify="right", style=grey, no_wrap=True)
    for method in cells.methods:
        table.add_column(Text(plain(f"{method}\nours", console)), justify="right", no_wrap=True)
    for method in cells.methods[1:]:
        header = Text(plain(f"{method}\n- {cells.baseline}", console))
        table.add_column(header, justify="right", no_wrap=True)
    for row in cells.rows:
        table.add_row(*(Text(plain(text, console)) for text in _grid_row(item, cells, row, console)))
    return table


def _grid_row(item: Item, cells: Grid, row: Row, console: Console) -> list[str]:
    published = [
        "-"
        if method not in row.results or row.results[method].cell.printed() is None
        else f"{row.results[method].cell.printed():.2f}"
        for method in cells.published_methods
    ]
    ours = [_ours(item, row.results.get(method), console) for method in cells.methods]
    differences = []
    for method in cells.methods[1:]:
        seen = row.difference(method, cells.baseline)
        interval = (
            points_interval(seen.interval) if seen and seen.has_spread else f"n={seen.n}, no spread" if seen else ""
        )
        differences.append(f"{points(seen.mean)}\n{interval}" if seen else "-")
    return [setting_text(row.setting, "\n"), *published, *ours, *differences]


def _ours(item: Item, result: CellResult | None, console: Console) -> str:
    if result is None:
        return ""
    if result.summary is None:
        return result.counts.replace(", ", "\n").replace(" (", "\n(")
    lines = [mean_spread(result.summary, plus_minus(console)), *result.counts.split(", ")]
    printed = result.cell.printed()
    if item.profile == "paper" and printed is not None:
        lines.append(f"({points(result.summary.mean - printed / 100)})")
    return "\n".join(lines)


def _long_table(item: Item, results: list[CellResult], console: Console) -> Table:
    table = new_table()
    table.add_column("cell", overflow="fold")
    table.add_column("published", justify="right", style="" if item.profile == "paper" else "dim")
    for name in ("ours", "runs", *(["ours - published"] if item.profile == "paper" else [])):
        table.add_column(name, justify="right")
    for result in results:
        published, seen = result.cell.printed(), result.summary
        fields = [
            result.cell.label,
            "-" if published is None else f"{published:.2f}",
            mean_spread(seen, plus_minus(console)),
            result.counts,
        ]
        if item.profile == "paper":
            fields.append(points(seen.mean - published / 100) if seen and published is not None else "-")
        table.add_row(*(Text(plain(field, console)) for field in fields))
    return table


def _ladder_table(item: Item, rungs: list[CellResult], records: Records, console: Console) -> Table:
    table = new_table()
    table.add_column("rung", overflow="fold")
    for name in ("accuracy", "share kept", "accuracy of kept", "runs"):
        table.add_column(name, justify="right")
    for rung in rungs:
        quality = [percent(rung_mean(rung, records, metric)) for metric in ("pseudo/kept", "pseudo/accuracy")]
        fields = [rung.cell.label, mean_spread(rung.summary, plus_minus(console)), *quality, rung.counts]
        table.add_row(*(Text(plain(field, console)) for field in fields))
    return table


def rung_mean(rung: CellResult, records: Records, metric: str) -> float | None:
    """Mean of another metric over the runs that are in the rung's accuracy; None where none measured it."""
    runs = [record for record in seeds_of(records, rung.cell) if record.seed in rung.values]
    values = [value for record in runs if (value := record.selected(metric)) is not None]
    return summary(values).mean if values else None


def _print_claim(judged: Judged, number: int, console: Console) -> None:
    claim = judged.claim
    heading = Text(f"claim {number}: ")
    heading.append(judged.verdict, style=VERDICT_STYLE[judged.verdict])
    heading.append(plain(f"  {claim.name}", console))
    console.print(heading, soft_wrap=True)
    quote = (
        f'"{without_dollars(claim.quote)}" ({claim.source})' if claim.quote else f"a question of ours ({claim.source})"
    )
    unit = " points" if claim.metric == ACCURACY else ""
    numbers = f"{difference(claim.metric, judged.estimate)}{unit}"
    seen = difference_interval(claim.metric, judged.interval)
    interval = f"{100 * judged.level:.1f} % interval {seen}" if judged.interval else seen
    more = f"; about {judged.seeds_needed} seeds would decide it" if judged.seeds_needed else ""
    for line in (quote, f"{numbers}, {interval}, n={judged.n}: {judged.reason}{more}"):
        say(console, line, indent="  ")
