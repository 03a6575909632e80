"""The site as a visitor and as an attacker see it: complete, self-contained, the same twice, deaf to hostile names."""

import csv
import gzip
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmark.experiment import from_json
from benchmark.papers.item import Item
from reports.formatting import cell_page, item_page
from reports.site import build
from tests.reports.fakes import accuracies, lean, make_cell, make_record, pair, small, table2
from tests.reports.snapshots import DEPARTURES, departures, published

HOSTILE = "<script>alert('x')</script>\"&"


class Page(HTMLParser):
    """Tags with their attributes, the text, and what is left open."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data

    def links(self) -> list[str]:
        return [attrs["href"] or "" for tag, attrs in self.tags if tag == "a" and "href" in attrs]

    def files(self) -> list[str]:
        """Return the links that lead to another file."""
        return [link.partition("#")[0] for link in self.links() if not link.startswith(("#", "https:"))]


def words(page: Path) -> str:
    return " ".join(Page(page).text.split())


def test_every_page_is_well_formed_loads_the_site_s_own_files_and_every_link_leads_somewhere(site: Path) -> None:
    """Each cell that has a run has one page, and every cell has its experiment as a file. A page has one style sheet
    and one script, beside it; a script inside is refused by its policy."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    names = {path.relative_to(site).as_posix() for path in pages}
    assert {"index.html", "glossary.html", "performance.html", "ssfl/index.html"} <= names
    shown = (table2(), small(), lean())
    with_runs = {cell.cell_key for item, records in shown for cell in item.cells if records.get(cell.cell_key)}
    keys = {cell.cell_key for item, _ in shown for cell in item.cells}
    assert {Path(name).stem for name in names if name.startswith("cells/")} == with_runs
    assert {path.stem for path in site.glob("cells/*.json")} == keys
    ids = {}
    for path, page in pages.items():
        ids[path] = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    for path, page in pages.items():
        assert page.open == [] and len(ids[path]) == len(set(ids[path])), path
        for link in page.links():
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert link.startswith("https:") or target.is_file(), (path, link)
            assert not anchor or anchor in ids[target], (path, link)
        (policy,) = [a["content"] or "" for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
        assert "'unsafe-inline'" not in policy.partition("script-src")[2]
        loaded = [attrs.get("href") or attrs.get("src") or "" for tag, attrs in page.tags if tag in ("link", "script")]
        assert [(path.parent / name).resolve() for name in loaded if name] == [site / "site.css", site / "site.js"]
        assert not [t for t, _ in page.tags if t in ("img", "iframe", "object", "base")], path
        assert not [a for _, a in page.tags for name in a if name.startswith("on")], path


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    sites = []
    for out in (tmp_path / "first", tmp_path / "second"):
        build([small(), lean()], out)
        sites.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert sites[0] == sites[1]


def test_numbers_and_pictures_stand_beside_the_item_s_page_as_files(site: Path) -> None:
    """What the page itself says is in the snapshots."""
    folder = (site / item_page(table2()[0])).parent
    for name in ("table.md", "table.tex", "table.csv", "claims.csv", "figure.svg", "figure.pdf", "figure.csv"):
        assert (folder / name).stat().st_size > 100, name
    page = (folder / "index.html").read_text()
    assert 'id="figure-data"' in page and 'data-figure="claims-0"' in page


def test_a_cell_has_one_page_with_its_experiment_and_its_rounds_as_files(tmp_path: Path) -> None:
    """It is in two items with other seeds, and links to both. What it says of its runs is in the snapshots."""
    item, records = published()
    cell = item.cells[0]
    other = replace(item, name="toy/tab9", seeds=5)
    build([(item, records), (other, records)], tmp_path)
    path = tmp_path / cell_page(cell)
    page = Page(path)
    linked = {(path.parent / link).resolve() for link in page.files()}
    assert {tmp_path / item_page(item), tmp_path / item_page(other)} <= linked
    rounds = gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode().splitlines()
    assert rounds == ["seed,round", "3,1", "3,2"]
    assert from_json(json.loads(path.with_suffix(".json").read_text())).seed == 0
    assert not (tmp_path / cell_page(item.cells[3])).exists()
    assert tmp_path / cell_page(item.cells[3], "json") in {
        ((tmp_path / item_page(item)).parent / link).resolve() for link in Page(tmp_path / item_page(item)).files()
    }


def test_hostile_names_are_shown_not_run(tmp_path: Path) -> None:
    """In every name that a record or an item brings; no path leaves the site. No cell of a Markdown table is broken or
    becomes a tag or link; LaTeX has no bare special; CSV no formula."""
    names = (HOSTILE, "../../x", "=cmd()", "a_b & 50% $x", "| a | b |\nnext", "[x](http://y)", "+a1", "@SUM(1)", "-x")
    cells = tuple(make_cell(name, {"method": name, "data": name}, 900 + i) for i, name in enumerate(names))
    records = {}
    for cell in cells:
        run = make_record(cell, 0, {"test/accuracy": 0.5, HOSTILE: 1.0})
        manifest = {HOSTILE: HOSTILE, "code": {"commit": HOSTILE}}
        records[cell.cell_key] = {0: replace(run, manifest=manifest)}
    claim = replace(pair().claims[0], name=HOSTILE, quote=HOSTILE, contrasts=({HOSTILE: 1.0, "../../x": -1.0},))
    item = Item(name="toy/<b>", title=HOSTILE, profile="demo", cells=cells, claims=(claim,), notes=(HOSTILE,))
    build([(replace(item, typed="$(x).toml"), records)], tmp_path / "site", troubles=[HOSTILE])
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    for path in (tmp_path / "site").rglob("*"):
        if path.suffix in (".html", ".svg"):
            assert "<script>alert" not in path.read_text(), path
    page = tmp_path / "site" / item_page(item)
    assert HOSTILE in words(page) and HOSTILE in words(tmp_path / "site/index.html")
    assert "fssl reproduce '$(x).toml' --profile" in words(page) and "fssl report '$(x).toml' --" in words(page)
    table = page.with_name("table.md").read_text()
    assert len([line for line in table.splitlines() if line.startswith("|")]) == 2 + len(names)
    assert "<script" not in table and "[x](http" not in table
    assert r"a\_b \& 50\% \$x" in page.with_name("table.tex").read_text()
    for row in csv.reader(page.with_name("table.csv").open()):
        assert not [field for field in row if field.startswith(("=", "+", "@", "-"))], row


def test_what_is_built_again_and_what_stays(tmp_path: Path) -> None:
    """An item of the same experiments under two profiles is shown once. With `only`, others stay as they are and are
    listed, with links to the pages that there are. Else what is gone is removed, and nothing that is not ours."""
    first = tmp_path / item_page(lean()[0])
    build([lean(), lean("gpu")], tmp_path)
    assert first.is_file() and not (tmp_path / "toy/tab1/gpu").exists()
    before = first.read_bytes()
    build([small(), lean(), lean(name="toy/tab9")], tmp_path, only={("arena/toy", "demo")})
    assert {"toy/tab1", "arena/toy", "toy/tab9"} <= set(words(tmp_path / "tables.html").split())
    files = Page(tmp_path / "tables.html").files()
    assert item_page(lean()[0]) in files and all((tmp_path / file).exists() for file in files)
    assert first.read_bytes() == before
    (tmp_path / "mine.txt").write_text("kept")
    text = words(build([], tmp_path, troubles=["abc/seed=1: damaged"]))
    assert "fssl reproduce ssfl/tab2 --profile demo" in text and "abc/seed=1: damaged" in text
    assert not first.exists() and (tmp_path / "mine.txt").exists()


def test_departures_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is in the snapshots."""
    (tmp_path / "written/toy").mkdir(parents=True)
    (tmp_path / "written/toy/departures.md").write_text(DEPARTURES)
    monkeypatch.setattr("reports.site.HERE", tmp_path / "written")
    build([departures()], tmp_path / "site")
    page = (tmp_path / "site/toy/departures.html").read_text()
    assert "<b>x</b>" in DEPARTURES and "<b>x" not in page
    assert "<td>1</td>" in page and 'href="javascript' not in page


def test_an_implementation_choice_with_a_run_that_diverged_shows_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "written/toy").mkdir(parents=True)
    (tmp_path / "written/toy/departures.md").write_text(DEPARTURES)
    monkeypatch.setattr("reports.site.HERE", tmp_path / "written")
    item, records = departures()
    other = item.cells[1]
    build([(item, {**records, **accuracies([(other, [None])])})], tmp_path / "site")
    page = words(tmp_path / "site/toy/departures.html")
    assert "reset | kept; profile laptop: 80.00 ±20.00 | 1 run diverged" in page
