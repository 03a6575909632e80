"""Render pages as text: a small example of each kind, kept in the folder `snapshots` and compared as text.

`python -m tests.reports.snapshots` writes the files anew. Review their diff as you would review the pages. Numbers in
them are of made-up runs; what depends on the code's version (hashes, versions, settings) is left out.
"""

import io
import re
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from benchmark.methods.semifl import SemiFL
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import Records
from reports import findings, site
from reports.formatting import cell_page, item_page
from reports.item_results import PAPERS, ItemResults
from reports.paper_table import item_tables
from reports.tables import latex_of, markdown_of
from reports.terminal import print_item
from tests.reports.fakes import accuracies, gained, lean, make_cell, make_record, pair, small

SNAPSHOTS = Path(__file__).with_name("snapshots")
INLINE = {"a", "abbr", "b", "code", "em", "i", "strong", "sub", "sup"}
HIDDEN = {"script", "style", "svg"}
CELLS = {"td", "th"}


class Text(HTMLParser):
    """The text of a page's main part: one line per block, and one line per row of a table, with bars."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.hidden = 0
        self.in_cell = False
        self.raw = ""
        self.feed(html.partition("<main")[2].partition(">")[2].partition("</main>")[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in HIDDEN
        self.in_cell |= tag in CELLS
        if tag in CELLS:
            self.raw += " | "
        elif tag not in INLINE:
            self.raw += " " if self.in_cell or tag == "span" else "\n"

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in HIDDEN
        self.in_cell &= tag not in CELLS
        if not self.in_cell and tag not in INLINE | CELLS | {"span"}:
            self.raw += "\n"

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.raw += re.sub(r"\s+", " ", data)


def text_of(html: str) -> str:
    """Render a page as text, without what changes with every version of the code."""
    lines = (" ".join(line.split()) for line in Text(html).raw.split("\n"))
    text = "\n".join(line for line in lines if line) + "\n"
    text = re.sub(r"\b[0-9a-f]{10,40}\b", "HASH", text)
    text = re.sub(r"\bversion \d[\d.]*", "version N", text)
    return re.sub(r"\nAll \d+ settings\n.*", "\nAll settings\n", text, flags=re.DOTALL)


PAPER = {"toy": {"short": "Toy", "title": "A paper with two tables", "where": "arXiv:0000.00000"}}
MAIN = '[[toy]]\nclaim = "toy/tab1: a beats b"\nbrief = "made up."\nagainst = "These runs are made up."\n'
DEPARTURES = """# Departures

 1. Momentum is kept. <b>x</b>
    (toy/departures: momentum)
 2. Other (toy/departures: other)

| a | b |
| --- | --- |
| 1 | [l](javascript:x) |
"""


def decided() -> tuple[Item, Records]:
    """Build toy/tab1: a - b is .100 to .108 over nine confirmatory seeds; the claim holds."""
    return pair(), gained(pair(), 0.1, 9)


def published() -> tuple[Item, Records]:
    """Build toy/tab2: published numbers, a diverged run, a cell without runs, one claim with pilot runs only.

    A/2 has a fourth run that was interrupted and has more to tell than the others.
    """
    item, records = lean(name="toy/tab2", seeds=4)
    cell = item.cells[0]
    return item, {**records, cell.cell_key: {**records[cell.cell_key], 3: resumed(item)}}


def resumed(item: Item) -> RunRecord:
    """Make a run of the item's first cell with two attempts on two processors, and a best round."""
    run = make_record(
        item.cells[0], 3, {"test/accuracy": 0.75, "comm/bytes_up": 12.0}, rounds=[{"round": 1}, {"round": 2}]
    )
    machine = {"code": {"commit": "aa", "changes": None}, "hardware": {"processor": "one"}}
    attempts = [
        {"started": "2026-11-20T10:00:00Z", "from_round": 0, **machine},
        {"started": "2026-11-21T11:30:00Z", "from_round": 1, **machine, "hardware": {"processor": "two"}},
    ]
    noted = {"data": {"name": "digits", "hash": "0001", "partition": "p3"}, "attempts": attempts}
    result = {**run.result, "best": {"round": 1, "test/accuracy": 0.8}}
    return replace(run, result=result, manifest={**run.manifest, **noted})


def departures() -> tuple[Item, Records]:
    """Build toy/departures: .93 .94 .95 against .90 .90 .90, and a seed that only one of the two cells has run."""
    cells = tuple(
        make_cell(f"momentum/{way}", {"method": way, "switch": "reset | kept"}, number)
        for number, way in enumerate(("default", "other"), 1)
    )
    item = Item(name="toy/departures", title="D", profile="laptop", cells=cells, seeds=3)
    records = accuracies([(cells[0], [0.9, 0.9, 0.9]), (cells[1], [0.93, 0.94, 0.95])])
    alone = {100: make_record(cells[0], 100, {"test/accuracy": 0.5})}
    return item, {**records, cells[0].cell_key: {**records[cells[0].cell_key], **alone}}


def of_method() -> tuple[Item, Records]:
    """Build a table with one cell of SemiFL."""
    cell = make_cell("SemiFL/2", {"method": "SemiFL", "C": 2}, 50)
    cell = replace(cell, experiment=replace(cell.experiment, method=SemiFL()))
    item = replace(pair(), name="toy/tab3", cells=(cell,), claims=())
    return item, accuracies([(cell, [0.5, 0.6, 0.7])])


def pages(folder: Path) -> dict[str, str]:
    """Build the example site in the folder, as if there were one paper, and render one page of each kind."""
    written = folder / "written"
    (written / "toy").mkdir(parents=True)
    (written / "toy" / "departures.md").write_text(DEPARTURES)
    (written / "findings.toml").write_text(MAIN)
    examples = [decided(), published(), of_method(), departures(), small()]
    claims = tuple((item, claim) for item, _ in examples for claim in item.claims)
    with (
        patch.dict(PAPERS, PAPER, clear=True),
        patch.object(findings, "declared_claims", lambda: claims),
        patch.object(findings, "MAIN", written / "findings.toml"),
        patch.object(site, "HERE", written),
    ):
        site.build(examples, folder / "site", troubles=["abc/seed=1: damaged"])
    paths = {
        "front": "index.html",
        "claims": "claims.html",
        "tables": "tables.html",
        "tuning": "tuning.html",
        "findings": "findings.html",
        "findings-in-full": "findings_in_full.html",
        "paper": "toy/index.html",
        "departures": "toy/departures.html",
        "table-decided": item_page(examples[0][0]),
        "table-published": item_page(examples[1][0]),
        "arena": item_page(examples[4][0]),
        "cell": cell_page(examples[1][0].cells[0]),
        "compare": "compare.html",
        "records": "records.html",
        "method": "methods/semifl.html",
    }
    return {name: text_of((folder / "site" / path).read_text()) for name, path in paths.items()}


def terminal(item: Item, records: Records, width: int = 100, encoding: str = "utf-8") -> str:
    """Print an item as on a terminal of that width and encoding."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_item(item, records, Console(file=file, width=width), report="reports/site/x.html")
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def open_main() -> tuple[Item, Records]:
    """Build toy/tab1 with five confirmatory seeds of a primary claim, which leave it open."""
    item = pair(main=True)
    return item, gained(item, 0.1, 5, main=[item.hash_of(item.claims[0])])


def tables() -> dict[str, str]:
    """Render one table in the formats that are text, and the three ends of what a terminal shows."""
    (table,) = item_tables(ItemResults(*published()))
    shown = {"terminal": published(), "terminal-decided": decided(), "terminal-open": open_main()}
    rendered = {"table-markdown": markdown_of(table), "table-latex": latex_of(table)}
    for name, example in shown.items():
        rendered[name] = "".join(f"{line.rstrip()}\n" for line in terminal(*example).splitlines())
    return rendered


def snapshots() -> dict[str, str]:
    """Render the text of every example, by the name of its file."""
    with tempfile.TemporaryDirectory() as folder:
        return {**pages(Path(folder)), **tables()}


def main() -> None:
    SNAPSHOTS.mkdir(exist_ok=True)
    now = snapshots()
    for path in SNAPSHOTS.glob("*.txt"):
        if path.stem not in now:
            path.unlink()
    for name, text in now.items():
        (SNAPSHOTS / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
