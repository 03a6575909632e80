"""An item's table for other programs: CSV (numbers at full precision) and LaTeX (as printed)."""

import csv
import io
from collections.abc import Sequence

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult, Records, collect
from benchmark.verdicts.statistics import Paired
from reports.agreement import agreement
from reports.cells import SELECTED_ON_TEST, Grid, grid, notes_of
from reports.words import csv_safe, latex, markdown, mean_spread, points, points_interval

COLUMNS = ("label", "role", "cell_key", "published_percent", "mean", "std", "n", "n_wanted", "n_diverged", "status")
ABSENT = "--"
# of ours (95 %), and ours - published where the two are compared, as fractions
JUDGED = ("interval_low", "interval_high", "difference", "difference_low", "difference_high", "verdict")


def table_csv(item: Item, records: Records) -> str:
    """One line a cell: its setting, the published number (percent), ours (fractions), runs and status. Where test data
    chose any of the numbers, a last column says which."""
    keys = list(dict.fromkeys(key for cell in item.cells for key in cell.setting))
    results = collect(item, records)
    chosen = any(result.selected_on_test for result in results.values())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_safe(name) for name in (*cell_names(keys), *(["selection"] if chosen else []))])
    for result in results.values():
        fields = cell_fields(item, keys, result)
        fields += [SELECTED_ON_TEST if result.selected_on_test else ""] if chosen else []
        writer.writerow(["" if field is None else csv_safe(field) for field in fields])
    return text.getvalue()


def cell_names(keys: Sequence[str]) -> list[str]:
    """The names of `cell_fields`."""
    return ["item", "profile", *keys, *COLUMNS, *JUDGED]


def cell_fields(item: Item, keys: Sequence[str], result: CellResult) -> list[object]:
    """What a CSV says of any cell; `keys` are those of the items' settings."""
    cell, seen = result.cell, result.summary
    fields: list[object] = [item.name, item.profile, *(cell.setting.get(key, "") for key in keys)]
    fields += [cell.label, cell.role, cell.cell_key, cell.printed(), seen and seen.mean, seen and seen.std]
    fields += [result.n, result.n_wanted, len(result.diverged), result.status]
    agreed = agreement(item, result)
    interval = (seen.interval if seen and seen.has_spread else None) or (None, None)
    apart = (agreed.interval if agreed else None) or (None, None)
    return [*fields, *interval, agreed and agreed.difference, *apart, agreed and agreed.verdict]


def table_latex(item: Item, records: Records) -> str:
    """A booktabs tabular: methods as columns where the item has a grid, else one line a cell. Cells that were not
    run say so; every number carries its n."""
    results = collect(item, records)
    cells = grid(results.values())
    header, *body = _grid_fields(item, cells) if cells else _list_fields(item, records)
    lines = tabular(header, body)
    head = [f"% {item.name}, profile {item.profile}: test accuracy in percent, mean and standard deviation over seeds"]
    if item.profile != "paper":
        head.append("% published numbers are for orientation only: other data, other length")
    if chosen := [label for label, result in results.items() if result.selected_on_test]:
        head.append(f"% {SELECTED_ON_TEST}: {', '.join(chosen)}")
    return "\n".join([*(line.replace("\n", " ") for line in head), *lines]) + "\n"


def table_markdown(item: Item, records: Records) -> str:
    """As `table_latex`, in Markdown, with the item's notes below."""
    results = collect(item, records)
    cells = grid(results.values())
    header, *body = _grid_fields(item, cells) if cells else _list_fields(item, records)
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    table = "\n".join(f"| {' | '.join(markdown(field) for field in row)} |" for row in rows)
    orientation = "" if item.profile == "paper" else "; published numbers are for orientation only"
    caption = f"{item.title} ({item.name}, profile {item.profile}; test accuracy in percent{orientation})"
    notes = "".join(f"- {markdown(note)}\n" for note in notes_of(item, results.values()))
    return f"{markdown(caption)}\n\n{table}\n" + (f"\n{notes}" if notes else "")


def _grid_fields(item: Item, cells: Grid) -> list[list[str]]:
    published = cells.published_methods
    compared = published if item.profile == "paper" and item.margin is not None else ()
    header = [cells.corner, *(f"{m} (published)" for m in published), *cells.methods]
    header += [text for m in compared for text in (f"{m}, to the paper", "verdict")]
    header += [f"{method} - {cells.baseline}" for method in cells.methods[1:]]
    body = []
    for row in cells.rows:
        fields = [row.name]
        for method in published:
            number = row.results[method].cell.printed() if method in row.results else None
            fields.append(ABSENT if number is None else f"{number:.2f}")
        for method in cells.methods:
            result = row.results.get(method)
            fields.append(ABSENT if result is None else _ours(result))
        fields += [text for method in compared for text in _to_paper(item, row.results.get(method))]
        fields += [_paired(row.difference(method, cells.baseline)) for method in cells.methods[1:]]
        body.append(fields)
    return [header, *body]


def _list_fields(item: Item, records: Records) -> list[list[str]]:
    compared = item.profile == "paper" and item.margin is not None
    body = []
    for label, result in collect(item, records).items():
        number = result.cell.printed()
        fields = [label, ABSENT if number is None else f"{number:.2f}", _ours(result)]
        body.append([*fields, *(_to_paper(item, result) if compared else [])])
    return [["cell", "published", "ours", *(["to the paper", "verdict"] if compared else [])], *body]


def _to_paper(item: Item, result: CellResult | None) -> tuple[str, str]:
    """Difference to the published number with its interval, and the verdict."""
    agreed = agreement(item, result) if result else None
    if agreed is None:
        return ABSENT, ABSENT
    return f"{points(agreed.difference)} {points_interval(agreed.interval)}".rstrip(), agreed.verdict


def _paired(seen: Paired | None) -> str:
    if seen is None:
        return ABSENT
    return f"{points(seen.mean)} {points_interval(seen.interval if seen.has_spread else None)}".rstrip()


def _ours(result: CellResult) -> str:
    return f"{mean_spread(result.summary)} ({result.counts})" if result.summary else result.counts


def tabular(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a booktabs tabular, every field escaped; the first column is aligned left."""
    rows = [" & ".join(latex(field) for field in fields) + r" \\" for fields in [header, *body]]
    columns = "l" + "r" * (len(header) - 1)
    start, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return [start, r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule", end]
