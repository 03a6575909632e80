"""The static site: a front page, a page an item, a cell and a run, and tables and figures as files beside them.

A pure function of items and records: no clock, no machine, no random name, so that building twice gives the same
bytes; a page whose inputs are as they were is left alone. Pages open from a file, load nothing from anywhere, and
carry a content policy that forbids them to.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmark.papers.item import Cell, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import CellResult, Records, cell_result, collect, counted, seeds_of
from reports.alone import FIGURES, figure_files, table_files
from reports.arena.site import arena_view
from reports.cache import Built, content_of, contents
from reports.drawing import inline
from reports.files import item_page, slug
from reports.pages.cell import cell_figure, cell_series, cell_values, run_page
from reports.pages.compare import compare_values, entry, group
from reports.pages.departures import departures_values
from reports.pages.explained import explained_values, explaining
from reports.pages.front import front_values
from reports.pages.glossary import glossary_values
from reports.pages.item import item_values
from reports.pages.paper import PAPERS, paper_page, paper_values
from reports.pages.performance import performance_values
from reports.pages.run import Place, run_values
from reports.pages.tuning import StudyPage, study_pages
from reports.parts import Part, build_parts, processes_for
from reports.render import render
from reports.views import cell_page

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "results" / "benchmarks"
STUDIES = HERE.parent / "results" / "studies"
EXPLAINED = 6  # runs are explained in the time that one takes to be shown with its cell, measured
Result = tuple[Item, Records]


def build(
    results: Sequence[Result],
    out: Path,
    departures: Path = HERE,
    others: Sequence[Result] = (),
    troubles: Sequence[str] = (),
    benchmarks: Path = BENCHMARKS,
    studies: Path = STUDIES,
    whole: bool = False,
    processes: int | None = None,
) -> Path:
    """Writes the site of these items under `out` and returns its index page. Files are replaced one by one, each whole;
    pages of items that are not in `results` stay as they are, and of `others` the index lists those that have one.
    What an earlier build wrote of these items (with `whole`: of anything) and this one did not is removed.
    `departures` has a handwritten `<paper>/departures.md` for each paper. `troubles`: what could not be read, for the
    front page. `benchmarks`: a folder of measurements of speed; `studies`: of tuning studies. `processes`: by default
    as many as there is work for; the bytes are the same. Raises CannotWrite."""
    site = _Site(out, departures)
    known = [*results, *(other for other in others if (out / item_page(other[0])).is_file())]
    places = _places(known)
    papers = dict.fromkeys((*(one.name for one in PAPERS), *(item.name.split("/")[0] for item, _ in known)))
    parts = [*site.items(results, places), *site.explained_pages(papers, known)]
    build_parts(parts, site.built, processes or processes_for(sum(part.runs for part in parts)))
    for paper in papers:
        site.departures_page(paper, known)
    site.further_pages(known, benchmarks)
    tuned, unread = study_pages(studies)
    site.study_pages(tuned)
    inside = [Path()] if whole else [item_page(item).parent for item, _ in results]
    return site.index(known, [*troubles, *unread], list(papers), tuned, inside)


def _cell_page(item: Item, cell: Cell) -> Path:
    return item_page(item).parent / f"{cell_page(cell.label)}.html"


def _places(results: Sequence[Result]) -> dict[str, list[Place]]:
    """Cell key -> the pages of the cells that its runs stand in, from the site's root."""
    found: dict[str, list[Place]] = {}
    for item, _ in results:
        for cell in item.cells:
            page = _cell_page(item, cell)
            text = f"{item.name}, {item.profile}: {cell.label}"
            found.setdefault(cell.cell_key, []).append({"href": page.as_posix(), "text": text})
    return found


class _Site:
    """Where pages go, and which of them need building."""

    def __init__(self, out: Path, departures: Path) -> None:
        self.out, self.departures, self.built = out, departures, Built(out)

    def write(self, page: Path, template: str, values: Mapping[str, Any], *scripts: str) -> None:
        self.built.put(page, render(page, template, values, ("site.js", *scripts)), page)

    def study_pages(self, studies: Sequence[StudyPage]) -> None:
        for study in studies:
            self.write(study.page, "tuning.html", study.values)
            for name, content in study.files.items():
                self.built.put(study.page.parent / name, content, study.page)

    def index(
        self,
        results: Sequence[Result],
        troubles: Sequence[str],
        papers: Sequence[str],
        studies: Sequence[StudyPage],
        inside: Sequence[Path],
    ) -> Path:
        """The front page, and a page a paper from the same rows. `inside`: folders to be cleared of what is gone."""
        page = Path("index.html")
        tuned = [{"href": study.page.as_posix(), "study": study.values["study"]} for study in studies]
        hrefs = {(item.name, item.profile): item_page(item).as_posix() for item, _ in results}
        values = front_values(results, hrefs, troubles)
        self.write(page, "index.html", {**values, "tuned": tuned})
        shown = [(item, counted(item, records)) for item, records in results]
        for paper in papers:
            about = paper_values(paper, shown, values["items"], values)
            explained = bool(explaining(paper, results))
            self.write(Path(paper_page(paper)), "paper.html", {**about, "explained": explained})
        self.built.put(Path(".nojekyll"), b"", page)  # GitHub Pages serves the folder as it is
        self.built.clear(inside)
        self.built.write()
        return self.out / page

    def further_pages(self, results: Sequence[Result], benchmarks: Path) -> None:
        """Those that are not about one item: compare, glossary, performance."""
        groups = [group(item, self._compared(item, counted(item, records))) for item, records in results]
        self.write(Path("compare.html"), "compare.html", compare_values(groups), "compare.js")
        self.write(Path("glossary.html"), "glossary.html", glossary_values())
        written = self.departures / "performance.md"
        self.write(Path("performance.html"), "performance.html", performance_values(benchmarks, written))

    def _compared(self, item: Item, records: Records) -> list[dict[str, Any] | None]:
        """The cells' parts of the compare page, as their pages' last build left them."""
        pages = {label: _cell_page(item, result.cell) for label, result in collect(item, records).items()}
        for label, page in pages.items():
            if page.as_posix() not in self.built.notes:
                result = cell_result(item.cell(label), records, item.seeds)
                self.built.notes[page.as_posix()] = entry(result, records, page.as_posix())
        return [self.built.notes[page.as_posix()] for page in pages.values()]

    def departures_page(self, paper: str, results: Sequence[Result]) -> None:
        file = self.departures / slug(paper) / "departures.md"
        values = departures_values(paper, file.read_text() if file.is_file() else "", results)
        self.write(Path(slug(paper), "departures.html"), "departures.html", values)

    def items(self, results: Sequence[Result], places: Mapping[str, Sequence[Place]]) -> list[Part]:
        found = []
        for item, records in results:
            own = counted(item, records)
            build_item = functools.partial(self.item, item, own, places)
            found.append(Part(runs=sum(map(len, own.values())), build=build_item))
        return found

    def explained_pages(self, papers: Iterable[str], results: Sequence[Result]) -> list[Part]:
        """Of papers whose items compare grouping with FedAvg: SSFL's."""
        mine = {paper: found for paper in papers if (found := explaining(paper, results))}
        return [
            Part(
                runs=sum(len(seeds) for _, records in found for seeds in records.values()) // EXPLAINED,
                build=functools.partial(self._explained_page, paper, found),
            )
            for paper, found in mine.items()
        ]

    def _explained_page(self, paper: str, mine: Sequence[Result]) -> None:
        page = Path(slug(paper), "explained", "index.html")
        runs = [run for item, records in mine for cell in item.cells for run in seeds_of(records, cell)]
        if self.built.fresh(page, repr([item for item, _ in mine]), contents(runs)):
            return
        values, files = explained_values(mine)
        for name, content in files.items():
            self.built.put(page.parent / name, content, page)
        self.write(page, "explained.html", {"paper": paper, **values})

    def item(self, item: Item, records: Records, places: Mapping[str, Sequence[Place]]) -> None:
        """`records`: of the item's own seeds only."""
        page, results = item_page(item), collect(item, records)
        runs = [record for cell in item.cells for record in seeds_of(records, cell)]
        if not self.built.fresh(page, repr(item), contents(runs)):
            self._item_page(item, records, page)
        for result in results.values():
            self._cell(item, result, records)
        for record in runs:
            self._run(record, places.get(record.cell_key, ()))

    def _item_page(self, item: Item, records: Records, page: Path) -> None:
        arena = arena_view(item, records) if item.methods_are_rows else None
        figures = figure_files(item, records)
        drawn = figures.get("figure.svg")
        files = {**table_files(item, records), **figures, **(arena["files"] if arena else {})}
        for name, content in files.items():
            self.built.put(page.parent / name, content, page)
        values = {
            **item_values(item, records, arena),
            "departures": "../" * (len(page.parts) - 2) + "departures.html",
            "paper_figure": Markup(inline(drawn.decode(), "figure")) if drawn else None,
            "explained": "../" * (len(page.parts) - 2) + "explained/index.html",
            "figures": [(title, [f"{name}.{end}" for end in ends if f"{name}.{end}" in figures])
                        for name, title, ends in FIGURES if f"{name}.svg" in figures],
        }  # fmt: skip
        self.write(page, "item.html", values)

    def _cell(self, item: Item, result: CellResult, records: Records) -> None:
        page, runs = _cell_page(item, result.cell), seeds_of(records, result.cell)
        if self.built.fresh(page, _identity(item, result.cell), contents(runs)):
            return
        self.built.notes[page.as_posix()] = entry(result, records, page.as_posix())
        series = cell_series(result, records)
        figures = cell_figure(result, series, f"{page.stem}-curves")
        for name, content in figures.items():
            self.built.put(page.parent / name, content, page)
        values = cell_values(item, result, records, series, page.with_suffix(".json").name, list(figures))
        self.built.put(page.with_suffix(".json"), values["config"].encode(), page)
        self.write(page, "cell.html", values)

    def _run(self, record: RunRecord, places: Sequence[Place]) -> None:
        page = Path(run_page(record))
        if self.built.fresh(page, json.dumps(list(places)), content_of(record)):
            return
        config = json.dumps({**record.experiment, "seed": record.seed}, indent=2, ensure_ascii=False) + "\n"
        self.built.put(page.with_suffix(".json"), config.encode(), page)
        self.write(page, "run.html", run_values(record, places, page.with_suffix(".json").name))


def _identity(item: Item, cell: Cell) -> str:
    """All that a cell's page takes from its item."""
    compared = sum(other.printed() is not None for other in item.cells)
    return repr((item.name, item.title, item.profile, item.seeds, item.margin, compared, cell))
