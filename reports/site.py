"""The static site: one page an item, one a cell, an index, and the tables as CSV and LaTeX beside them.

A pure function of items and records: no clock, no machine, no random name, so that building twice gives the same
bytes. Pages open from a file, load nothing from anywhere, and carry a content policy that forbids them to.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from benchmark.papers.item import Item
from benchmark.tracking.files import write_atomically
from reports.arena.exports import arena_csv, arena_latex, arena_markdown
from reports.arena.site import arena_view
from reports.cells import (
    ACCURACY,
    SELECTED_ON_TEST,
    CellResult,
    Records,
    collect,
    counted,
    grid,
    ladder,
    notes_of,
    seeds_of,
)
from reports.drawing import inline, png, svg
from reports.exports import table_csv, table_latex
from reports.figures import DIVERSITY, cell_figure, diversity_panels, figure_of, measured
from reports.files import slug
from reports.series import finished_runs
from reports.verdicts import Judged, judge
from reports.views import (
    MARKS,
    PROFILES,
    cell_page,
    claim_view,
    grid_view,
    provenance,
    resolved,
    run_view,
    value_view,
)
from reports.words import mean_spread, metric_name, percent

HERE = Path(__file__).parent
KEPT = ("pseudo/kept", "pseudo/accuracy")


def build(
    results: Sequence[tuple[Item, Records]],
    out: Path,
    departures: Path = HERE,
    others: Sequence[tuple[Item, Records]] = (),
) -> Path:
    """Writes the site of these items under `out` and returns its index page. Files are replaced one by one, each whole;
    pages of items that are not in `results` stay as they are, and of `others` the index lists those that have one.
    `departures` has a handwritten `<paper>/departures.md` for each paper. Raises CannotWrite."""
    site = _Site(out, departures)
    for item, records in results:
        site.item(item, records)
    for paper in dict.fromkeys(item.name.split("/")[0] for item, _ in results):
        site.departures_page(paper)
    return site.index([*results, *(other for other in others if (out / item_page(other[0])).is_file())])


def paragraphs(text: str) -> list[str]:
    """A handwritten page's paragraphs and numbered entries, each on one line; its headings are the page's own."""
    blocks: list[str] = []
    fresh = True
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            fresh = True
        elif fresh or re.match(r"\s*\d+\. ", line):
            blocks.append(line.strip())
            fresh = False
        else:
            blocks[-1] += f" {line.strip()}"
    return blocks


def item_page(item: Item) -> Path:
    """The item's page, relative to the site: ssfl/tab2/laptop/index.html."""
    return Path(*(slug(part) for part in item.name.split("/")), slug(item.profile), "index.html")


class _Site:
    """Where pages go and the templates they come from."""

    def __init__(self, out: Path, departures: Path) -> None:
        self.out, self.departures = out, departures
        self.script = (HERE / "templates" / "site.js").read_text()
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )

    def write(self, page: Path, template: str, values: dict[str, Any]) -> None:
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        text = self.templates.get_template(template).render(
            root="../" * (len(page.parts) - 1),
            css=Markup((HERE / "templates" / "site.css").read_text()),
            script=Markup(self.script),
            script_hash=digest,
            **values,
        )
        write_atomically(self.out / page, text.encode())

    def index(self, results: Sequence[tuple[Item, Records]]) -> Path:
        papers: dict[str, list[dict[str, Any]]] = {}
        for item, records in results:
            papers.setdefault(item.name.split("/")[0], []).append(_card(item, records))
        page = Path("index.html")
        profiles = list(dict.fromkeys(item.profile for item, _ in results))
        self.write(page, "index.html", {"papers": papers, "profiles": profiles, "marks": MARKS})
        return self.out / page

    def departures_page(self, paper: str) -> None:
        file = self.departures / slug(paper) / "departures.md"
        blocks = paragraphs(file.read_text()) if file.is_file() else []
        self.write(Path(slug(paper), "departures.html"), "departures.html", {"paper": paper, "blocks": blocks})

    def item(self, item: Item, records: Records) -> None:
        records = counted(item, records)
        page, results, judged = item_page(item), collect(item, records), judge(item, records)
        folder = self.out / page.parent
        arena = arena_view(item, records) if item.rows == "methods" else None
        for name, text in {**_tables(item, records), **(arena["files"] if arena else {})}.items():
            write_atomically(folder / name, text.encode())
        cells = grid(results.values())
        if arena or (cells and len(cells.methods) > 8):
            cells = None  # a list reads better than a table that wide
        runs = [record for cell in item.cells for record in seeds_of(records, cell)]
        values = {
            **_heading(item, results, judged),
            "arena": arena,
            "grid": grid_view(item, cells) if cells else None,
            "notes": notes_of(item, results.values()),
            "selection": SELECTED_ON_TEST if any(r.selected_on_test for r in results.values()) else None,
            "cells": [_listed(item, result) for result in results.values() if result.cell.role != "ladder"],
            "ladder": [_rung(item, result, records) for result in ladder(results.values())],
            "claims": [claim_view(one) for one in judged],
            "figures": self._figures(item, records, folder),
            "provenance": provenance(runs),
            "n_runs": len(runs),
            "departures": "../" * (len(page.parts) - 2) + "departures.html",
        }
        self.write(page, "item.html", values)
        for result in results.values():
            self._cell(item, result, records, page.parent)

    def _figures(self, item: Item, records: Records, folder: Path) -> list[dict[str, Any]]:
        """The curves, and appendix D's variants where any of them was measured; each inline and as files."""
        metrics = (ACCURACY,) if item.rows == "methods" else (ACCURACY, DIVERSITY, KEPT[0])
        shown = [name for name in metrics if name == ACCURACY or measured(records, name)]
        if not any(records.values()):
            return []
        curves = figure_of(item, records, shown)
        write_atomically(folder / "curves.png", png(curves))
        figures: dict[str, tuple[Figure | None, str]] = {"curves": (curves, ", ".join(map(metric_name, shown)))}
        variants = [f"diversity/{gradient}/l1/plain/clients" for gradient in ("gradient", "delta")]
        if item.rows == "settings" and any(measured(records, variant) for variant in variants):
            for name, figure in diversity_panels(item, records).items():
                gradient, norm = name.split("-")
                title = f"{'Exact gradients' if gradient == 'gradient' else 'Local updates'}, {norm} norm"
                figures[f"diversity-{name}"] = (figure, title)
        views = []
        for name, (figure, title) in figures.items():
            text = svg(figure) if figure is not None else ""
            if text:
                write_atomically(folder / f"{name}.svg", text.encode())
            body = Markup(inline(text, name)) if text else None
            views.append({"name": name, "title": title, "svg": body, "main": name == "curves"})
        return views

    def _cell(self, item: Item, result: CellResult, records: Records, folder: Path) -> None:
        name, runs = cell_page(result.cell.label), seeds_of(records, result.cell)
        config = resolved(result, records)
        write_atomically(self.out / folder / f"{name}.json", config.encode())
        shown = [m for m in (ACCURACY, DIVERSITY, *KEPT) if measured({"": {r.seed: r for r in runs}}, m)]
        figure = Markup(inline(svg(cell_figure(result, records, shown)), "curves")) if shown else None
        values = {
            "item": item,
            "paper": item.name.split("/")[0],
            "profile_text": PROFILES.get(item.profile, ""),
            "cell": result.cell,
            "value": value_view(item, result),
            "selection": SELECTED_ON_TEST if result.selected_on_test else None,
            "setting": {key: str(value) for key, value in result.cell.setting.items()},
            "runs": [run_view(record) for record in runs],
            "missing": [seed for seed in range(item.seeds) if seed not in {record.seed for record in runs}],
            "figure": figure,
            "command": f"fssl run --config {name}.json --seed=0",
            "config": config,
            "config_file": f"{name}.json",
            "provenance": provenance(runs),
        }
        self.write(folder / f"{name}.html", "cell.html", values)


def _tables(item: Item, records: Records) -> dict[str, str]:
    """The item's table for other programs, by file name."""
    if item.rows == "methods":
        return {
            "table.csv": arena_csv(item, records),
            "table.tex": arena_latex(item, records),
            "table.md": arena_markdown(item, records),
        }
    return {"table.csv": table_csv(item, records), "table.tex": table_latex(item, records)}


def _heading(item: Item, results: dict[str, CellResult], judged: Sequence[Judged]) -> dict[str, Any]:
    statuses = [result.status for result in results.values()]
    return {
        "item": item,
        "paper": item.name.split("/")[0],
        "profile_text": PROFILES.get(item.profile, ""),
        "done": sum(status == "done" for status in statuses),
        "total": len(statuses) + len(item.choices),
        "runs_done": sum(min(result.n, item.seeds) for result in results.values()),
        "runs_wanted": item.seeds * (len(statuses) + len(item.choices)),
        "diverged": sum(len(result.diverged) for result in results.values()),
        "verdicts": {mark: sum(one.verdict == mark for one in judged) for mark in MARKS},
        "marks": MARKS,
    }


def _card(item: Item, records: Records) -> dict[str, Any]:
    records = counted(item, records)
    heading = _heading(item, collect(item, records), judge(item, records))
    share = f"{100 * heading['runs_done'] / max(1, heading['runs_wanted']):.1f}"
    return {**heading, "href": item_page(item).as_posix(), "share": share}


def _listed(item: Item, result: CellResult) -> dict[str, Any]:
    return {"setting": {key: str(v) for key, v in result.cell.setting.items()}, "value": value_view(item, result)}


def _rung(item: Item, result: CellResult, records: Records) -> dict[str, Any]:
    """A ladder cell: accuracy, and the means of what its finished runs measured of their pseudo-labels."""
    quality = {}
    for metric in KEPT:
        values = [value for run in finished_runs(records, result) if (value := run.selected(metric)) is not None]
        quality[metric_name(metric)] = percent(sum(values) / len(values)) if values else "-"
    text = mean_spread(result.summary) if result.summary else None
    return {"value": value_view(item, result), "text": text, "quality": quality}
