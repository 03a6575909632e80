"""An item's table and figures as files, for the site and for a paper: Markdown, LaTeX, CSV; SVG, PDF and the numbers.

Curves are plates of our own writing (reports/plate.py), as the pages' are; a figure of the paper is matplotlib's, in
the paper's arrangement (reports/paper_figures.py).
"""

from collections.abc import Sequence
from pathlib import Path

from benchmark.papers.item import Item
from benchmark.verdicts.results import ACCURACY, Records, counted
from reports.arena.exports import arena_csv, arena_latex, arena_markdown
from reports.claims import claims_csv, claims_latex, claims_markdown
from reports.exports import table_csv, table_latex, table_markdown
from reports.figures import DIVERSITY, measured, variant_metrics
from reports.files import put, slug
from reports.ink import pdf, svg
from reports.numbers import curves_csv
from reports.pages.item import MOST_LINES, item_panels, line_looks
from reports.paper_figures import paper_figure_files
from reports.plate import plate

KEPT = "pseudo/kept"
ENDS = ("svg", "pdf", "csv")
# File name, title, endings. The variants of gradient diversity are SSFL's figures D.1 to D.4.
FIGURES = (
    ("figure", "As in the paper", ("svg", "pdf")),
    ("curves", "Curves", ENDS),
    ("diversity-gradient-l2", "Diversity of exact gradients, l2 norm", ENDS),
    ("diversity-gradient-l1", "Diversity of exact gradients, l1 norm", ENDS),
    ("diversity-delta-l2", "Diversity of local updates, l2 norm", ENDS),
    ("diversity-delta-l1", "Diversity of local updates, l1 norm", ENDS),
)


def table_files(item: Item, records: Records) -> dict[str, bytes]:
    """The item's table and its claims by file name. `records`: of the item's own seeds."""
    if item.methods_are_rows:
        found = {
            "table.csv": arena_csv(item, records),
            "table.tex": arena_latex(item, records),
            "table.md": arena_markdown(item, records),
        }
    else:
        found = {
            "table.csv": table_csv(item, records),
            "table.tex": table_latex(item, records),
            "table.md": table_markdown(item, records),
        }
    if item.claims:
        found |= {
            "claims.csv": claims_csv(item, records),
            "claims.tex": claims_latex(item, records),
            "claims.md": claims_markdown(item, records),
        }
    return {name: text.encode() for name, text in found.items()}


def figure_files(item: Item, records: Records) -> dict[str, bytes]:
    """The item's figures by file name; empty without a run. Appendix D's variants where any of them was measured."""
    if not any(records.values()):
        return {}
    metrics = [ACCURACY] if item.methods_are_rows else [ACCURACY, DIVERSITY, KEPT]
    shown = [name for name in metrics if name == ACCURACY or measured(records, name)]
    files = {**paper_figure_files(item, records), **_files("curves", item, records, shown)}
    variants = [f"diversity/{gradient}/l1/plain/clients" for gradient in ("gradient", "delta")]
    if not item.methods_are_rows and any(measured(records, variant) for variant in variants):
        for name, shown in variant_metrics(records).items():
            files |= _files(f"diversity-{name}", item, records, shown)
    return files


def _files(name: str, item: Item, records: Records, metrics: Sequence[str]) -> dict[str, bytes]:
    """The numbers always; the drawing where it has few enough lines to be one."""
    columns = item_panels(item, records)
    numbers = {f"{name}.csv": curves_csv(item, records, metrics).encode()}
    if not columns or any(len(lines) > MOST_LINES for _, lines in columns):
        return numbers
    styles = line_looks(item, list(dict.fromkeys(line for _, lines in columns for line in lines)))
    drawn = plate(columns, styles, metrics, records)
    return {f"{name}.svg": svg(drawn), f"{name}.pdf": pdf(drawn), **numbers}


def write_alone(item: Item, records: Records, folder: Path) -> list[Path]:
    """Everything of one item into `folder`, named after it: ssfl-fig3-laptop-curves.pdf. Raises CannotWrite."""
    records = counted(item, records)
    start = "-".join(slug(part) for part in (*item.name.split("/"), item.profile))
    paths = []
    for name, content in {**table_files(item, records), **figure_files(item, records)}.items():
        put(folder / f"{start}-{name}", content)
        paths.append(folder / f"{start}-{name}")
    return paths
