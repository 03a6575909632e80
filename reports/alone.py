"""An item's table and figures as files, for the site and for a paper: Markdown, LaTeX, CSV; SVG, PDF and the numbers.

The figures' files are matplotlib's, as print wants them; the pages draw their own.
"""

from pathlib import Path

from matplotlib.figure import Figure

from benchmark.papers.item import Item
from reports.arena.exports import arena_csv, arena_latex, arena_markdown
from reports.cells import ACCURACY, Records, counted
from reports.drawing import pdf, svg
from reports.exports import table_csv, table_latex, table_markdown
from reports.figures import DIVERSITY, diversity_panels, figure_of, measured
from reports.files import put, slug
from reports.numbers import curves_csv

KEPT = "pseudo/kept"
ENDS = ("svg", "pdf", "csv")
# File name, title, endings. The variants of gradient diversity are SSFL's figures D.1 to D.4.
FIGURES = (
    ("curves", "Curves", ENDS),
    ("diversity-gradient-l2", "Diversity of exact gradients, l2 norm", ENDS),
    ("diversity-gradient-l1", "Diversity of exact gradients, l1 norm", ENDS),
    ("diversity-delta-l2", "Diversity of local updates, l2 norm", ENDS),
    ("diversity-delta-l1", "Diversity of local updates, l1 norm", ENDS),
)


def table_files(item: Item, records: Records) -> dict[str, bytes]:
    """The item's table by file name. `records`: of the item's own seeds."""
    if item.rows == "methods":
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
    return {name: text.encode() for name, text in found.items()}


def figure_files(item: Item, records: Records) -> dict[str, bytes]:
    """The item's figures by file name; empty without a run. Appendix D's variants where any of them was measured."""
    if not any(records.values()):
        return {}
    metrics = [ACCURACY] if item.rows == "methods" else [ACCURACY, DIVERSITY, KEPT]
    shown = [name for name in metrics if name == ACCURACY or measured(records, name)]
    files = _files("curves", figure_of(item, records, shown), curves_csv(item, records, shown))
    variants = [f"diversity/{gradient}/l1/plain/clients" for gradient in ("gradient", "delta")]
    if item.rows == "settings" and any(measured(records, variant) for variant in variants):
        for name, (figure, shown) in diversity_panels(item, records).items():
            if figure is not None:
                files |= _files(f"diversity-{name}", figure, curves_csv(item, records, shown))
    return files


def _files(name: str, figure: Figure, numbers: str) -> dict[str, bytes]:
    return {f"{name}.svg": svg(figure).encode(), f"{name}.pdf": pdf(figure), f"{name}.csv": numbers.encode()}


def write_alone(item: Item, records: Records, folder: Path) -> list[Path]:
    """Everything of one item into `folder`, named after it: ssfl-fig3-laptop-curves.pdf. Raises CannotWrite."""
    records = counted(item, records)
    start = "-".join(slug(part) for part in (*item.name.split("/"), item.profile))
    paths = []
    for name, content in {**table_files(item, records), **figure_files(item, records)}.items():
        put(folder / f"{start}-{name}", content)
        paths.append(folder / f"{start}-{name}")
    return paths
