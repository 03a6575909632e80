"""A small site in a real browser: headless Chromium opens the files as a visitor would, from the disk."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from reports.site import build, item_page
from tests.reports.arena_fakes import small
from tests.reports.fakes import table2
from tests.reports.test_site import lean

AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser")
    build([table2(), small(), lean()], out, benchmarks=Path(__file__).parents[2] / "results" / "benchmarks")
    return out


def show(page: Any, path: Path) -> None:
    page.goto(path.as_uri())


def kinds(site: Path) -> list[Path]:
    folder = site / item_page(table2()[0])
    pages = [site / f"{name}.html" for name in ("index", "glossary", "ssfl/index", "methods/index", "methods/ssfl")]
    arena = site / item_page(small()[0])
    return [*pages, site / "ssfl/departures.html", folder, arena, next(folder.parent.glob("cell-fedavg-full*.html")),
            next(folder.parent.glob("claim-*.html")),
            next((site / "runs").rglob("*.html"))]  # fmt: skip


@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_wider_than_the_window(site: Path, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in kinds(site):
        show(page, path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (path.relative_to(site), wide)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_by_everybody(site: Path, page: Any, scheme: str) -> None:
    """axe: contrast, names and roles, in both themes."""
    page.emulate_media(color_scheme=scheme)
    for path in kinds(site):
        show(page, path)
        page.evaluate(gzip.decompress(AXE.read_bytes()).decode())
        found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        wrong = [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")]
        assert not wrong, (path.relative_to(site), wrong)


def test_a_figure_is_read_with_keys_and_pointer_and_its_lines_hide(site: Path, page: Any) -> None:
    show(page, site / item_page(table2()[0]))
    figure = page.locator("svg[data-figure=figure]")
    figure.focus()
    figure.press("ArrowRight")
    text = page.locator(".tip").inner_text()
    assert text.startswith("Round: 1") and "Grouping: " in text and "[" in text and "seed 0" in text
    page.locator("#figure-legend-1-name").click()
    assert page.locator("#figure-line-1-mean").evaluate_all("all => all.every(e => e.style.display === 'none')")
    figure.focus()
    figure.press("ArrowRight")
    assert "Grouping: " not in page.locator(".tip").inner_text()
    page.locator("#figure-legend-1-name").click()
    assert page.locator("#figure-line-1-mean").first.is_visible()


def test_lists_filter_and_tables_sort(site: Path, page: Any) -> None:
    """The board of claims and the list of items have filters of their own."""
    show(page, site / "index.html")
    board, items = page.locator(".listing").all()
    board.locator("input").fill("hardly falls")
    assert board.locator("[data-entry]:visible").count() == 1 and items.locator("[data-entry]:visible").count() == 3
    board.locator("input").fill("")
    board.locator("select[data-filter-key=paper]").select_option("toy")
    assert board.locator("[data-entry]:visible").count() == 1
    items.locator("th button", has_text="Runs").click()
    first = items.locator("tbody th").first.inner_text()
    items.locator("th button", has_text="Runs").click()
    assert items.locator("tbody th").first.inner_text() != first


def test_the_theme_is_the_system_s_until_it_is_chosen(site: Path, page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    show(page, site / "index.html")
    assert page.locator("#theme").get_attribute("aria-checked") == "true"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.reload()
    assert page.locator("#theme").get_attribute("aria-checked") == "false"
