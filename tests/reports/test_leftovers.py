"""What is gone from the records goes from the site, and nothing that a build did not write goes with it."""

import hashlib
import json
from pathlib import Path

import pytest

from benchmark.cli.main import main
from benchmark.papers.item import Item
from reports.site import build, item_page
from tests.reports.many import items, read, write
from tests.reports.test_site import lean


@pytest.fixture
def two(tmp_path: Path) -> tuple[list[Item], Path, Path]:
    """Two items of one cell (five runs) each, their records, and their site."""
    made = items(50, rounds=3)[:1]
    first, second = (
        Item(name=f"toy/{name}", title=name, profile="laptop", seeds=5, cells=(cell,))
        for name, cell in zip(("one", "two"), made[0].cells, strict=False)
    )
    results, site = tmp_path / "results", tmp_path / "site"
    assert write([first, second], results) == 10
    build(read([first, second], results), site, whole=True)
    return [first, second], results, site


def files(site: Path) -> set[str]:
    return {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}


def test_pages_of_an_item_that_is_gone_are_removed_and_nothing_else(two: tuple[list[Item], Path, Path]) -> None:
    """Left: what a site of the first item alone has, and the files that somebody put there."""
    (first, second), results, site = two
    mine = {"toy/two/laptop/notes.txt", "CNAME", "runs/keep.txt"}
    for name in mine:
        (site / name).write_text("mine")
    build(read([first], results), site, whole=True)
    alone = site.parent / "alone"
    build(read([first], results), alone, whole=True)
    assert files(site) == files(alone) | mine
    assert {name for name in files(site) if second.cells[0].cell_key in name} == set()
    assert not (site / "runs" / second.cells[0].cell_key).exists()


def test_a_file_that_was_changed_by_hand_stays(two: tuple[list[Item], Path, Path]) -> None:
    (first, second), results, site = two
    page = site / item_page(second)
    page.write_text(page.read_text() + "<!-- mine -->")
    build(read([first], results), site, whole=True)
    assert page.is_file() and [path.name for path in page.parent.iterdir()] == ["index.html"]


def test_a_build_of_one_item_leaves_the_others_pages(two: tuple[list[Item], Path, Path]) -> None:
    """But what it wrote itself and no longer writes goes: a cell that the item has no more."""
    (first, second), results, site = two
    before = files(site)
    cell = next(name for name in before if name.startswith("toy/one/laptop/cell-") and name.endswith(".html"))
    bare = Item(name=first.name, title=first.title, profile=first.profile, seeds=5, cells=())
    build([(bare, {})], site, others=read([second], results))
    gone = before - files(site)
    assert cell in gone and all(name.startswith("toy/one/laptop/") for name in gone)
    build(read([first, second], results), site, whole=True)
    assert files(site) == before


def test_a_tampered_list_reaches_no_file_outside(two: tuple[list[Item], Path, Path]) -> None:
    """Neither by "..", nor by an absolute name, nor through a link."""
    (first, second), results, site = two
    outside = site.parent / "outside.txt"
    outside.write_text("mine")
    (site / "link").symlink_to(site.parent)
    listed = json.loads((site / ".built.json").read_text())
    digest = next(iter(listed["files"].values()))
    own = hashlib.blake2b(b"mine", digest_size=12).hexdigest()
    listed["files"]["gone.html"] = {name: own for name in ("../outside.txt", str(outside), "link/outside.txt")}
    (site / ".built.json").write_text(json.dumps(listed))
    assert digest and build(read([first], results), site, whole=True).is_file()
    assert outside.read_text() == "mine"


def test_damaged_list_removes_nothing(two: tuple[list[Item], Path, Path]) -> None:
    (first, _), results, site = two
    before = files(site)
    (site / ".built.json").write_text('{"files": {"a": 3}, "pages": []}')
    build(read([first], results), site, whole=True)
    assert before <= files(site)


def test_a_report_of_one_item_still_lists_the_others(tmp_path: Path) -> None:
    """The front page of `fssl report ITEM` keeps the rows of items that have a page in the folder."""
    item, records = lean()
    build([(item, records)], tmp_path, whole=True)
    other = Item(name="toy/tab2", title="Another", profile="laptop", seeds=1, cells=())
    build([(other, {})], tmp_path, others=[(item, records)])
    text = (tmp_path / "index.html").read_text()
    assert "toy/tab1" in text and "toy/tab2" in text and (tmp_path / item_page(item)).is_file()
    assert main(["report", "--site", str(tmp_path / "empty"), "--results", str(tmp_path / "none")]) == 0
