"""The static site: a front page, a page a paper, an item, a cell and a run, with tables and figures as files.

A pure function of items and records: no clock, no machine, no random name, so that building twice gives the same
bytes. Pages open from a file, load nothing from anywhere, and carry a content policy that forbids them to.
"""

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmark.errors import CannotWrite
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import CellResult, Records, collect, counted, seeds_of
from reports.articles import departures, performance
from reports.exports import item_files, item_pictures, tables_of
from reports.formatting import item_page as item_page
from reports.formatting import mean_spread, metric_name, percent, sentence, slug, without_dollars
from reports.pages import (
    MARKS,
    Result,
    analysis_of,
    cell_pictures,
    cell_values,
    filters,
    front_values,
    item_row,
    item_values,
    paper_of,
    papers,
    run_page,
    run_values,
    settings_of,
)
from reports.paper_table import SELECTED_ON_TEST, cell_page, contrast_text, estimate_text, method_of, rule_text
from reports.provenance import made_from
from reports.results import csv_text, curves_frame
from reports.style import DARK, PALETTE
from reports.tables import csv_of
from reports.tuning import study_pages

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
RESULTS = HERE.parent / "results"  # of this checkout: speed and studies
WRITTEN = ".fssl-files.json"  # in the site: what the last build of everything wrote


def build(
    results: Sequence[Result],
    out: Path,
    *,
    others: Sequence[Result] = (),
    troubles: Sequence[str] = (),
    benchmarks: Path | None = None,
    studies: Path | None = None,
    written: Path = HERE,
    whole: bool = False,
) -> Path:
    """Writes the site of these items under `out` and returns its front page.

    Pages of items that are not in `results` stay as they are; of `others` the index lists those that have one. An item
    whose cells are the same experiments under several profiles is shown once. With `whole`, files that an earlier
    build of everything wrote and this one did not are removed. `written` has a handwritten `<paper>/departures.md` for
    each paper, and `performance.md`. `troubles`: what could not be read, for the front page. Raises CannotWrite.
    """
    site = _Site(out)
    results, others = _distinct(results), _distinct(others)
    known = [*results, *(other for other in others if (out / item_page(other[0])).is_file())]
    own = {id(item): counted(item, records) for item, records in known}
    rows = {id(item): item_row(item, own[id(item)], item_page(item).as_posix()) for item, _ in known}
    texts = {paper: _text(written / slug(paper) / "departures.md") for paper in _papers(known)}
    places = _places(known)
    for item, _ in results:
        site.item(item, own[id(item)], rows[id(item)], texts[paper_of(item)], places)
    shown = [(item, own[id(item)]) for item, _ in known]
    tuned, unread = study_pages(studies or RESULTS / "studies")
    site.studies(tuned)
    site.papers(known, list(rows.values()), texts)
    site.page("glossary.html", "glossary.html")
    speed = performance(written / "performance.md", benchmarks or RESULTS / "benchmarks")
    site.page("performance.html", "performance.html", **speed)
    runs = [run for _, records in shown for seeds in records.values() for run in seeds.values()]
    front = front_values(shown, list(rows.values()))
    studied = {name: f"tune/{slug(name)}/index.html" for name in tuned}
    site.page("index.html", "index.html", **front, made=made_from(runs), troubles=[*troubles, *unread], studied=studied)
    site.put(Path(".nojekyll"), b"")  # GitHub Pages serves the folder as it is
    if whole:
        site.remove_what_is_gone()
    return out / "index.html"


def _distinct(results: Sequence[Result]) -> list[Result]:
    """Each set of experiments once, under its first profile: the same runs are no further evidence."""
    first: dict[tuple[str, tuple[str, ...]], Result] = {}
    for item, records in results:
        first.setdefault((item.name, tuple(cell.cell_key for cell in item.cells)), (item, records))
    return list(first.values())


def _papers(known: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys((*papers(), *(paper_of(item) for item, _ in known))))


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _places(known: Sequence[Result]) -> dict[str, list[tuple[str, str]]]:
    """Cell key -> address and name of the pages of the cells that its runs stand in."""
    found: dict[str, list[tuple[str, str]]] = {}
    for item, _ in known:
        for cell in item.cells:
            page = item_page(item).parent / cell_page(cell.label)
            found.setdefault(cell.cell_key, []).append((page.as_posix(), f"{item.name}, {item.profile}: {cell.label}"))
    return found


class _Site:
    """Writes pages and the files beside them."""

    def __init__(self, out: Path) -> None:
        self.out, self.files = out, set[str]()
        self._cells: dict[str, list[tuple[str, Markup]]] = {}  # the curves of a cell
        self._runs: set[str] = set()

    def put(self, path: Path, content: bytes) -> None:
        """The file whole or as it was. A file that has this content already is left alone."""
        target = self.out / path
        self.files.add(path.as_posix())
        try:
            if target.is_file() and target.read_bytes() == content:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.tmp")
            temporary.write_bytes(content)
            temporary.replace(target)
        except OSError as error:
            raise CannotWrite(
                f"{target}: cannot be written ({error.strerror}); choose a folder of yours with room"
            ) from None

    def page(self, path: str | Path, template: str, **values: Any) -> None:
        page = Path(path)
        root = "../" * (len(page.parts) - 1)
        self.put(page, render(template, root=root, **values).encode())

    def item(
        self,
        item: Item,
        records: Records,
        row: Mapping[str, Any],
        text: str,
        places: Mapping[str, list[tuple[str, str]]],
    ) -> None:
        """The item's page, and those of its cells and runs."""
        page = item_page(item)
        tables, pictures = tables_of(item, records), item_pictures(item, records)
        for name, content in item_files(item, records, tables, pictures).items():
            self.put(page.parent / name, content)
        analysis = analysis_of(paper_of(item))
        self.page(
            page,
            "item.html",
            **item_values(item, records, row, text),
            tables=tables,
            drawn={name: picture.inline(name) for name, picture in pictures.items()},
            section=analysis.item_section(item, records) if analysis else None,
        )
        for result in collect(item, records).values():
            self.cell(item, result, records, page.parent)
        for run in (run for cell in item.cells for run in seeds_of(records, cell)):
            self.run(run, places.get(run.cell_key, ()))

    def cell(self, item: Item, result: CellResult, records: Records, folder: Path) -> None:
        page = folder / cell_page(result.cell.label)
        runs = seeds_of(records, result.cell)
        config = page.with_suffix(".json")
        self.put(config, _json(settings_of(result, runs)))
        key = result.cell.cell_key
        if key not in self._cells:  # several items have the same cell
            self._cells[key] = [
                (name, picture.inline(f"curve-{place}"))
                for place, (name, picture) in enumerate(cell_pictures(result, records))
            ]
        self.page(
            page,
            "cell.html",
            **cell_values(item, result, records),
            pictures=self._cells[key],
            config=config.name,
        )

    def run(self, run: RunRecord, places: Sequence[tuple[str, str]]) -> None:
        page = Path(run_page(run))
        if page.as_posix() in self._runs:
            return
        self._runs.add(page.as_posix())
        self.put(page.with_suffix(".json"), _json({**run.experiment, "seed": run.seed}))
        metrics = sorted({name for line in run.rounds for name in line} - {"round"})
        frame = curves_frame([run], metrics)[["round", "metric", "value"]]
        self.put(page.with_suffix(".csv"), csv_text(frame).encode())
        drawn = self._cells.get(run.cell_key, [])[:1]  # the accuracy of all runs of the cell
        self.page(page, "run.html", **run_values(run), places=places, drawn=drawn, name=page.stem)

    def papers(self, known: Sequence[Result], rows: Sequence[Mapping[str, Any]], texts: Mapping[str, str]) -> None:
        """A paper's page, its departures, and its own analysis."""
        for paper, text in texts.items():
            mine = [row for row in rows if row["paper"] == paper]
            page = Path(slug(paper), "explained", "index.html")
            found = [result for result in known if paper_of(result[0]) == paper]
            module = analysis_of(paper)
            analysis = module.page(found) if module else None
            if analysis:
                for section in analysis["sections"]:
                    for table in section["tables"]:
                        if len(table.data):
                            self.put(page.parent / f"{section['profile']}-{table.name}.csv", csv_of(table).encode())
                self.page(page, "analysis.html", paper=paper, **analysis)
            about = {"name": paper, "about": papers().get(paper), "rows": mine, "filters": filters(mine)}
            runs = [
                run for item, records in found for seeds in counted(item, records).values() for run in seeds.values()
            ]
            self.page(
                Path(slug(paper), "index.html"), "paper.html", **about, analysis=bool(analysis), made=made_from(runs)
            )
            article = departures(text, known) if text else None
            self.page(Path(slug(paper), "departures.html"), "departures.html", paper=paper, article=article)

    def studies(self, found: Mapping[str, tuple[dict[str, Any], dict[str, bytes]]]) -> None:
        for name, (values, files) in found.items():
            page = Path("tune", slug(name), "index.html")
            for file, content in files.items():
                self.put(page.parent / file, content)
            self.page(page, "tuning.html", **values)

    def remove_what_is_gone(self) -> None:
        """What an earlier build wrote and this one did not; no file that it did not write."""
        path = self.out / WRITTEN
        try:
            before = set(json.loads(path.read_text())) if path.is_file() else set()
        except (OSError, ValueError, TypeError):
            before = set()
        for name in before - self.files:
            gone = (self.out / name).resolve()
            if gone.is_relative_to(self.out.resolve()) and gone.is_file():
                gone.unlink()
        self.put(Path(WRITTEN), json.dumps(sorted(self.files)).encode())


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def render(template: str, *, root: str, **values: Any) -> str:
    """A page. Its scripts stand in it and are named by their hash in its content policy; nothing else may run."""
    theme, script = ((TEMPLATES / name).read_text() for name in ("theme.js", "site.js"))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (theme, script)]
    common = {"theme": Markup(theme), "script": Markup(script), "hashes": hashes, "css": _css(), "marks": MARKS}
    return _environment().get_template(template).render(**values, **common, root=root) + "\n"


@functools.cache
def _css() -> Markup:
    """The style sheet with the palette's variables."""
    series = (f"--series-{i}: {colour};" for i, colour in enumerate(PALETTE))
    text = (TEMPLATES / "site.css").read_text().replace("/* series */", " ".join(series))
    dark = " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(DARK))
    return Markup(text.replace("/* dark series */", dark))


@functools.cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["selected_on_test"] = SELECTED_ON_TEST
    texts: list[Any] = [sentence, percent, slug, without_dollars, mean_spread, metric_name]
    texts += [cell_page, contrast_text, estimate_text, method_of, rule_text]
    found.filters |= {"css": css_class, **{function.__name__: function for function in texts}}
    return found


def css_class(text: str) -> str:
    """ "not judged yet" -> "not-judged-yet"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
