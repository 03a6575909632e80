"""The site as a visitor and as an attacker see it: complete, self-contained, the same twice, deaf to hostile names."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmark.experiment import from_json
from benchmark.papers.item import Item
from benchmark.verdicts.results import Records
from reports.pages.departures import paragraphs
from reports.site import build, item_page
from tests.reports.fakes import accuracies, make_cell, make_record, pair

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
        """The links that lead to another file."""
        return [link.partition("#")[0] for link in self.links() if not link.startswith("#")]


def words(page: Path) -> str:
    return " ".join(Page(page).text.split())


def lean(profile: str = "laptop", **changes: Any) -> tuple[Item, Records]:
    """Two methods at two cohort sizes, without rounds to draw: pages are quick to build. A/4 has one seed of three,
    B/4 none; B/2 has a diverged third seed."""
    cells = [
        make_cell(f"{m}/{C}", {"method": m, "C": C}, 300 + 10 * C + ord(m), published={"A": 83.07}.get(m))
        for C in (2, 4)
        for m in "AB"
    ]
    start = accuracies([(cells[0], [0.6, 0.7, 0.8]), (cells[1], [0.85, 0.9]), (cells[2], [0.5])])
    records = {key: {seed: replace(run, rounds=()) for seed, run in runs.items()} for key, runs in start.items()}
    records[cells[1].cell_key][2] = make_record(cells[1], 2, {}, status="diverged", rounds=[])
    claim = replace(pair().claims[0], contrast={"B/2": 1.0, "A/2": -1.0})
    item = Item(
        name="toy/tab1", title="Toy table", profile=profile, cells=tuple(cells), claims=(claim,), seeds=3, notes=("N.",)
    )
    return replace(item, **changes), records


@pytest.fixture(scope="module")
def site(laptop_table: tuple[Item, Records], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The realistic item, and the lean one under two profiles."""
    out = tmp_path_factory.mktemp("site")
    nowhere = out / "no studies"
    assert build([laptop_table, lean(), lean("paper")], out, studies=nowhere) == out / "index.html"
    return out


def test_every_page_is_well_formed_and_every_link_leads_somewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    names = [path.relative_to(site).as_posix() for path in pages]
    # front, compare, glossary, performance; pages and departures of five papers; what explains; items and cells
    assert len([name for name in names if not name.startswith("runs/")]) == 4 + 2 * 5 + 1 + (1 + 12) + 2 * (1 + 4)
    assert len([name for name in names if name.startswith("runs/")]) == 32 + 7
    for path in pages:
        page = Page(path)
        assert page.open == [], path
        for link in page.files():
            assert (path.parent / link).resolve().is_file(), (path, link)


def test_pages_load_nothing_and_forbid_it(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page(path)
        policies = [a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert len(policies) == 1 and (policies[0] or "").startswith("default-src 'none'")
        assert not [t for t, a in page.tags if t in ("link", "img", "iframe", "object", "base") or "src" in a]
        scripts = [a for t, a in page.tags if t == "script"]
        assert len(scripts) == (4 if path.name == "compare.html" else 2)  # there, data and a script of its own
        assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
        outside = set(re.findall(r"https?://[^\"'\s<)]+", path.read_text()))
        assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, never fetched


def test_script_is_short(site: Path) -> None:
    script = re.findall(r"<script>(.*?)</script>", (site / "index.html").read_text(), re.DOTALL)
    assert len(script) == 2 and sum(one.count("\n") for one in script) <= 170


def test_building_twice_gives_the_same_bytes(site: Path, laptop_table: tuple[Item, Records], tmp_path: Path) -> None:
    """Also from records that come in another order."""
    item, records = laptop_table
    turned = {key: dict(reversed(list(runs.items()))) for key, runs in reversed(list(records.items()))}
    build([(item, turned), lean(), lean("paper")], tmp_path, studies=tmp_path / "no studies")
    first = {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    second = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert first.keys() == second.keys()
    assert [str(name) for name in first if first[name] != second[name]] == []


def test_index_counts_cells_runs_and_verdicts(site: Path) -> None:
    """Of 12 cells 9 are complete: Control/small has 2 of 3, Control/middle none, FedAvg/full a diverged run."""
    text = words(site / "index.html")
    assert "SSFL Improving Semi-supervised Federated Learning" in text and "laptop 9 of 12 cells" in text
    row = "Accuracy versus the number of communicating clients C on EMNIST 32 of 32 runs: recorded under profile custom"
    assert f"ssfl/tab2 {row} laptop 9 of 12 31/36 1 diverged \u2713 1 holds ? 2 undecided" in text
    assert text.count("No table declared yet. Its methods have no finished run in the arena.") == 3  # of four papers


def test_missing_cells_say_so_and_are_never_dropped(site: Path) -> None:
    text = words(site / "toy/tab1/laptop/index.html")
    assert "50.00 n=1/3" in text and "not run (0/3)" in text and "n=2/3, 1 diverged" in text
    cell = next(path for path in site.glob("toy/tab1/laptop/cell-b-4-*.html"))
    assert words(cell).count("not run") == 1 + 3  # the cell and its three seeds


def test_only_profile_paper_compares_with_the_published_number(site: Path) -> None:
    """A/2: 70.00 against 83.07 is -13.07; elsewhere the published number is grey and has no difference."""
    paper, laptop = (site / f"toy/tab1/{profile}/index.html" for profile in ("paper", "laptop"))
    assert "-13.07 to paper" in words(paper)
    assert "13.07" not in laptop.read_text() and "83.07" in words(laptop)
    greys = [a for t, a in Page(laptop).tags if t == "td" and "grey" in (a.get("class") or "")]
    assert len(greys) == 2 and not [a for t, a in Page(paper).tags if t == "td" and "grey" in (a.get("class") or "")]


def test_item_page_shows_claim_curves_ladder_and_provenance(site: Path) -> None:
    page = site / "ssfl/tab2/laptop/index.html"
    text = words(page)
    assert "a large C decreases the performance significantly" in text and "98.3 % interval" in text
    assert "Ladder" in text and "Central FixMatch" in text
    assert "MNIST with 100 labels stands in for EMNIST" in text
    assert "4f1c2a9be07d5531c8a7e2b6f0d9134a5e6c7b80" in text and "Example CPU @ 2.10GHz" in text
    assert "selection rule last" in text and "packages torch 2.15.0" in text
    assert page.read_text().count('<svg class="forest"') == 3  # a plot a claim
    assert page.read_text().count('<svg class="chart"') == 3 * 3  # three metrics at three cohort sizes
    for name in ("curves.svg", "curves.pdf", "curves.csv", "table.md", "table.csv", "table.tex"):
        assert (page.parent / name).stat().st_size > 100


def test_cell_page_holds_what_runs_it_again(site: Path) -> None:
    """The experiment beside the page is the cell's own: read back, it has the cell's key."""
    item, _ = lean()
    for cell in item.cells:
        name = next(p.stem for p in site.glob(f"toy/tab1/laptop/cell-{cell.label.lower().replace('/', '-')}-*.html"))
        page = site / f"toy/tab1/laptop/{name}.html"
        assert f"fssl run --config {name}.json --seed=0" in words(page)
        assert from_json(json.loads(page.with_suffix(".json").read_text())).cell_key == cell.cell_key


def test_table_csv_lists_every_cell(site: Path) -> None:
    with open(site / "toy/tab1/laptop/table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["status"]) for row in rows] == [
        ("A/2", "done"), ("B/2", "diverged"), ("A/4", "partial"), ("B/4", "missing"),
    ]  # fmt: skip


def test_hostile_names_are_shown_not_run(tmp_path: Path) -> None:
    """Markup in every text a record or an item can bring: names, settings, quotes, notes, manifests, departures."""
    cells = (
        make_cell(HOSTILE, {"method": HOSTILE, HOSTILE: HOSTILE}, 401),
        make_cell("../../up", {"method": "=cmd", HOSTILE: "2"}, 402, role="ladder"),
    )
    claim = replace(pair().claims[0], name=HOSTILE, quote=HOSTILE, source=HOSTILE, contrast={HOSTILE: 1.0})
    item = Item(
        name=f"../{HOSTILE}", title=HOSTILE, profile=HOSTILE, cells=cells, claims=(claim,), seeds=2, notes=(HOSTILE,)
    )
    record = make_record(cells[0], 0, {"test/accuracy": 0.5})
    record = replace(
        record, manifest={"code": {"commit": HOSTILE}, HOSTILE: HOSTILE}, experiment={**record.experiment, "x": HOSTILE}
    )
    out = tmp_path / "site"
    build([(item, {cells[0].cell_key: {0: record}})], out, studies=tmp_path / "no studies")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site"]
    pages = list(out.rglob("*.html"))
    # front, compare, glossary, performance; five papers with departures; item, two cells, run
    assert len(pages) == 4 + 2 * 5 + 4
    for path in pages:
        page = Page(path)
        scripts = 4 if path.name == "compare.html" else 2
        assert page.open == [] and [t for t, _ in page.tags].count("script") == scripts
        assert "<script>alert" not in path.read_text()
    assert HOSTILE in Page(out / item_page(item)).text


def test_handwritten_departures_are_shown_as_text(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "departures.md").write_text("Batch 32, not 64 <b>.")
    build([lean()], tmp_path / "site", departures=tmp_path)
    assert "Batch 32, not 64 <b>." in words(tmp_path / "site/toy/departures.html")


def test_numbered_entries_are_joined_over_their_lines() -> None:
    text = "# Title\n\nAn opening\nline.\n\n 1. First,\n    continued.\n 2. Second.\n"
    assert paragraphs(text) == ["An opening line.", "1. First, continued.", "2. Second."]


def test_runs_of_two_commits_are_marked(tmp_path: Path) -> None:
    item, records = lean()
    runs = dict(records[item.cells[0].cell_key])
    runs[0] = replace(runs[0], manifest={**runs[0].manifest, "code": {"commit": "0000", "changes": None}})
    build([(item, {**records, item.cells[0].cell_key: runs})], tmp_path)
    assert re.search(r"code commit 0000 \w+ differs between runs", words(tmp_path / item_page(item)))


def test_nothing_run_at_all(tmp_path: Path) -> None:
    item, _ = lean()
    build([(item, {})], tmp_path)
    assert words(tmp_path / item_page(item)).count("not run (0/3)") == 4
    assert "No item has been run yet" in words(build([], tmp_path / "empty"))
