"""Build the static site: a front page, a page for each paper, item, method and cell, with tables and figures as files.

The site is a pure function of items and records. It depends on no clock, machine or random name, so that two builds
give the same bytes. Pages can be opened from disk. They load only the site's style sheet and script, and their content
security policy forbids all other files.
"""

import contextlib
import json
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benchmark.files import write_atomically
from benchmark.papers.item import Cell, Item
from benchmark.papers.own import OWN
from benchmark.sharing.bundle import SUBMITTED
from benchmark.verdicts.cell_results import Records
from reports.arena_tables import arena_rows, compared_table
from reports.board import board_values
from reports.cells import cell_values, config_json, places_of, rounds_csv, runs_of
from reports.claims import rows_of
from reports.claims_table import claims_csv
from reports.entries import is_arena
from reports.exports import item_files, shown_of
from reports.figures import DARK, PALETTE
from reports.findings import findings_values, in_full_values
from reports.formatting import cell_page, slug
from reports.front import front_values
from reports.in_processes import run_all
from reports.item_results import PAPERS, ItemResults, Places, connect
from reports.methods import by_kind, method_page, method_values, methods_table
from reports.pages import claims_values, item_values, paper_values, tables_values
from reports.performance_page import with_cards, with_memory_order
from reports.provenance import made_from
from reports.records_page import records_values
from reports.released_code import released_table
from reports.rendering import TEMPLATES, article, departures, page_file, render
from reports.scales import scales_values
from reports.ssfl_analysis import page as ssfl_analysis
from reports.submissions import Submission, submissions_in
from reports.tables import csv_of
from reports.tuning import studies_in

HERE = Path(__file__).parent
WRITTEN = ".fssl-files.json"  # in the site: the files that the last complete build wrote
BOARD = "board.html"
ARENA = "arena"  # the method comparison has a page like a paper
LINK = re.compile(r'(<a\b[^>]*?) href="([^":?#]+)[^"]*"')  # to a page of the site
Files: TypeAlias = dict[str, bytes]  # by their paths from the site's root


def build(
    shown: Sequence[tuple[Item, Records]],
    out: Path,
    *,
    only: Collection[tuple[str, str]] | None = None,
    troubles: Sequence[str] = (),
    results: Path | None = None,
) -> Path:
    """Write the site of these items under `out` and return its front page.

    `only`: names and profiles of the items with pages to write. Lists also contain the other items; their pages do not
    change. Without `only`, all pages are written, and files of an earlier build that this one does not write are
    removed. An item with the same experiments under several profiles is shown once. `troubles`: lines for the front
    page about files that could not be read. `results`: the folder of the studies and accepted submissions.
    `<paper>/departures.md` of each paper and `performance.md` are written by hand. Raise CannotWrite if a file cannot
    be written.
    """
    every = _distinct(shown)
    mine = [reported for reported in every if only is None or (reported.item.name, reported.item.profile) in only]
    studies, unread = studies_in(results / "studies") if results else ({}, [])
    submissions, refused = submissions_in(results / SUBMITTED) if results else ([], [])
    places = places_of(every)
    site = _assets() | _tuning_files(studies) | _submission_files(submissions) | _methods(every, places)
    site[".nojekyll"] = b""  # GitHub Pages serves the folder as it is
    site |= _overview_pages(every, submissions, results, left_out=[*troubles, *unread, *refused])
    for files in run_all(_tasks(every, mine, places)):
        site |= files
    if only is None:
        _remove_what_is_gone(out, site)
        site[WRITTEN] = json.dumps(sorted(site)).encode()
    _write(site, out, is_complete=only is None)
    return out / "index.html"


def build_board(shown: Sequence[tuple[Item, Records]], out: Path, results: Path) -> Path:
    """Write only the board's page under `out`, with links to pages that are there. Raise CannotWrite."""
    submissions, _ = submissions_in(results / SUBMITTED)
    every = [ItemResults(item, records) for item, records in shown]
    site = _assets() | page_file(BOARD, BOARD, **board_values(every, submissions))
    _write(site, out, is_complete=False)
    return out / BOARD


def _assets() -> Files:
    """Return the two files that every page loads."""
    return {
        "site.css": render("site.css", light=PALETTE, dark=DARK).encode(),
        "site.js": (TEMPLATES / "site.js").read_bytes(),
    }


def _tuning_files(studies: Mapping[str, tuple[str, bytes]]) -> Files:
    """Return the page of all tuning studies and the file of each, from a sentence and a file by the study's name."""
    files = Files()
    sentences = {}
    for name, (text, content) in studies.items():
        path = f"tune/{slug(name)}.json"
        files[path] = content
        sentences[path] = text
    return files | page_file("tuning.html", "tuning.html", studied=sentences)


def _submission_files(submissions: Sequence[Submission]) -> Files:
    """Return the page of all accepted submissions and the file of each; nothing without a submission."""
    if not submissions:
        return {}
    files = page_file("submitted/index.html", "submitted.html", submissions=submissions)
    return files | {f"submitted/{sent.name}": sent.bundle.content for sent in submissions}


def _overview_pages(
    every: Sequence[ItemResults],
    submissions: Sequence[Submission],
    results: Path | None,
    *,
    left_out: Sequence[str],
) -> Files:
    """Return the pages on all items, each with the name of its template, and the files of all claims and methods.

    `left_out`: a line for each file that could not be read.
    """
    made = made_from(run for reported in every for run in reported.runs)
    values: dict[str, dict[str, Any]] = {
        BOARD: board_values(every, submissions),
        "findings.html": findings_values(every),
        "findings_in_full.html": in_full_values(every),
        "released.html": {"parts": released_table(every)},
        "scales.html": scales_values(every),
        "glossary.html": {},
        "records.html": records_values(results),
        "performance.html": {"written": _performance(results)},
        "index.html": {**front_values(every), "troubles": left_out, "sent": len(submissions)},
        "claims.html": claims_values(every),
        "tables.html": {**tables_values(every), "made": made},
    }
    files = Files()
    for name, of_page in values.items():
        files |= page_file(name, name, **of_page)
    files["claims.csv"] = claims_csv([row for reported in every for row in rows_of(reported)])
    arenas = [reported for reported in every if is_arena(reported.item)]
    files["methods.csv"] = csv_of([row for reported in arenas for row in arena_rows(reported)])
    return files


def _performance(results: Path | None) -> str:
    """Return the text of the page on speed, which is empty without the handwritten page."""
    source = HERE / "performance.md"
    return article(with_cards(with_memory_order(source.read_text()), results)) if source.is_file() else ""


def _tasks(
    every: Sequence[ItemResults], mine: Sequence[ItemResults], places: Mapping[str, Places]
) -> list[Callable[[], Files]]:
    """Return the tasks that each make the files of one paper, or of one item or cell among `mine`."""
    papers = dict.fromkeys((*PAPERS, ARENA, *(reported.paper for reported in every)))
    cells = {cell.cell_key: cell for reported in mine for cell in reported.item.cells}
    tasks: list[Callable[[], Files]] = [partial(_paper, name, every) for name in papers]
    tasks += [partial(_item, reported) for reported in mine]
    tasks += [partial(_cell, cell, places[key]) for key, cell in cells.items()]
    return tasks


def _write(site: Files, out: Path, *, is_complete: bool) -> None:
    """Write all files under `out`. If the site is not complete, links lead only to pages that are there."""
    for path, content in site.items():
        written = content if is_complete else _without_dead_links(path, content, site, out)
        write_atomically(out / path, written, flushed=False)


def _without_dead_links(path: str, content: bytes, site: Collection[str], out: Path) -> bytes:
    """Return the page with plain text in place of links to pages that have not been built."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        return match[0] if target in site or (out / target).exists() else match[1]

    return LINK.sub(link, content.decode()).encode() if path.endswith(".html") else content


def _distinct(results: Sequence[tuple[Item, Records]]) -> list[ItemResults]:
    """Return each set of experiments once, under its first profile, because the same runs are no further evidence."""
    first: dict[tuple[str, tuple[str, ...]], tuple[Item, Records]] = {}
    for item, records in results:
        first.setdefault((item.name, tuple(cell.cell_key for cell in item.cells)), (item, records))
    return list(connect([ItemResults(item, records) for item, records in first.values()]))


def _item(reported: ItemResults) -> Files:
    """Return the page and the files of an item."""
    folder = reported.page.removesuffix("index.html")
    shown = shown_of(reported)
    files = {folder + name: content for name, content in item_files(reported, **shown).items()}
    return files | page_file(reported.page, "item.html", **item_values(reported), **shown)


def _cell(cell: Cell, places: Places) -> Files:
    """Return the experiment of a cell and, if it has a run, its page and all rounds."""
    runs = runs_of(places)
    files = {cell_page(cell, "json"): config_json(cell, runs)}
    if runs:
        files[cell_page(cell, "csv.gz")] = rounds_csv(runs)
        files |= page_file(cell_page(cell), "cell.html", **cell_values(places))
    return files


def _paper(name: str, every: Sequence[ItemResults]) -> Files:
    """Return the page of a paper, its deviations, and its analysis."""
    folder = slug(name)
    files = Files()
    mine = [reported for reported in every if reported.paper == name]
    analysis = ssfl_analysis(mine) if name == "ssfl" else None
    if analysis:
        files |= page_file(f"{folder}/explained/index.html", "analysis.html", paper=name, **analysis)
        for section in analysis["sections"]:
            for table in section["tables"]:
                if len(table.data):
                    path = f"{folder}/explained/{section['profile']}-{table.name}.csv"
                    files[path] = csv_of(table.data)
    values = paper_values(name, mine, every)
    made = made_from(run for reported in mine for run in reported.runs)
    files |= page_file(f"{folder}/index.html", "paper.html", **values, analysis=bool(analysis), made=made)
    if name == OWN:  # a custom table deviates from no paper
        return files
    source = HERE / folder / "departures.md"
    text = departures(source.read_text(), mine) if source.is_file() else None
    short = values["about"]["short"] if values["about"] else name
    return files | page_file(f"{folder}/departures.html", "departures.html", paper=name, short=short, article=text)


def _methods(every: Sequence[ItemResults], places: Mapping[str, Places]) -> Files:
    methods = by_kind(places.values())
    files = page_file("methods/index.html", "methods.html", methods=methods_table(methods))
    files |= page_file("compare.html", "compare.html", compared=compared_table(every))
    for kind, cells in methods.items():
        files |= page_file(method_page(kind), "method.html", **method_values(kind, cells))
    return files


def _remove_what_is_gone(out: Path, site: Collection[str]) -> None:
    """Remove the files that an earlier build wrote and this one does not. No other file is removed."""
    before = set[str]()
    with contextlib.suppress(OSError, ValueError, TypeError):  # there was no earlier build, or its list is damaged
        before = set(json.loads((out / WRITTEN).read_text()))
    for name in before.difference(site, [WRITTEN]):
        gone = (out / name).resolve()
        if gone.is_relative_to(out.resolve()) and gone.is_file():
            gone.unlink(missing_ok=True)
