"""An item's table for other programs: CSV (numbers at full precision) and LaTeX (as printed)."""

import csv
import io

from benchmark.papers.item import Item
from reports.cells import CellResult, Grid, Records, collect, grid
from reports.words import csv_safe, latex, mean_spread

COLUMNS = ("label", "role", "cell_key", "published_percent", "mean", "std", "n", "n_wanted", "n_diverged", "status")


def table_csv(item: Item, records: Records) -> str:
    """One line a cell: its setting, the published number (percent), ours (fractions), runs and status."""
    keys = list(dict.fromkeys(key for cell in item.cells for key in cell.setting))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_safe(name) for name in ("item", "profile", *keys, *COLUMNS)])
    for label, result in collect(item, records).items():
        cell, seen = result.cell, result.summary
        fields: list[object] = [item.name, item.profile, *(cell.setting.get(key, "") for key in keys)]
        fields += [label, cell.role, cell.cell_key, cell.published, seen and seen.mean, seen and seen.std]
        fields += [result.n, result.n_wanted, len(result.diverged), result.status]
        writer.writerow(["" if field is None else csv_safe(field) for field in fields])
    return text.getvalue()


def table_latex(item: Item, records: Records) -> str:
    """A booktabs tabular: methods as columns where the item has a grid, else one line a cell. Cells that were not
    run say so; every number carries its n."""
    results = collect(item, records)
    cells = grid(results.values())
    lines = _grid_lines(cells) if cells else _list_lines(item, records)
    head = [f"% {item.name}, profile {item.profile}: test accuracy in percent, mean and standard deviation over seeds"]
    if item.profile != "paper":
        head.append("% published numbers are for orientation only: other data, other length")
    return "\n".join([*(line.replace("\n", " ") for line in head), *lines]) + "\n"


def _grid_lines(cells: Grid) -> list[str]:
    published = cells.published_methods
    header = [cells.corner, *(f"{m} (published)" for m in published), *cells.methods]
    body = []
    for row in cells.rows:
        fields = [row.name]
        for method in published:
            number = row.results[method].cell.published if method in row.results else None
            fields.append("--" if number is None else f"{number:.2f}")
        for method in cells.methods:
            result = row.results.get(method)
            fields.append("--" if result is None else _ours(result))
        body.append(fields)
    return _tabular(header, body)


def _list_lines(item: Item, records: Records) -> list[str]:
    body = []
    for label, result in collect(item, records).items():
        number = result.cell.published
        body.append([label, "--" if number is None else f"{number:.2f}", _ours(result)])
    return _tabular(["cell", "published", "ours"], body)


def _ours(result: CellResult) -> str:
    return f"{mean_spread(result.summary)} ({result.counts})" if result.summary else result.counts


def _tabular(header: list[str], body: list[list[str]]) -> list[str]:
    rows = [" & ".join(latex(field) for field in fields) + r" \\" for fields in [header, *body]]
    columns = "l" + "r" * (len(header) - 1)
    start, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return [start, r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule", end]
