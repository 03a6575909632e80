"""A small site in a real browser: headless Chromium opens the files as a visitor would, from the disk."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from reports.formatting import cell_page, item_page
from reports.site import build
from tests.reports.arena_fakes import small
from tests.reports.fakes import table2
from tests.reports.test_site import lean

AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser")
    build([table2(), small(), lean()], out)
    return out


def show(page: Any, path: Path) -> None:
    page.goto(path.as_uri())


KINDS = (
    *("index.html", "compare.html", "glossary.html", "performance.html", "methods/index.html", "methods/ssfl.html"),
    *("ssfl/index.html", "ssfl/departures.html", "ssfl/explained/index.html", "arena/index.html"),
    *("released.html", "ssfl/tab2/*/claim-*.html", cell_page(table2()[0].cells[6])),
    *(item_page(item) for item, _ in (table2(), small())),
)


def kinds(site: Path) -> list[Path]:
    """A page of each kind."""
    return [next(site.glob(kind)) for kind in KINDS]


@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_wider_than_the_window(site: Path, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in kinds(site):
        show(page, path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (path.relative_to(site), wide)


def test_printed_pages_show_all(site: Path, page: Any) -> None:
    """On A4 nothing scrolls, what is folded is open, and tables stay within the page."""
    page.set_viewport_size({"width": 718, "height": 1000})
    page.emulate_media(media="print")
    for path in kinds(site):
        show(page, path)
        cut = "e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowY) && e.scrollHeight > e.clientHeight + 1"
        assert page.evaluate(f"[...document.querySelectorAll('.tall, .scroll, pre')].filter({cut}).length") == 0, path
        shut = "[...document.querySelectorAll('details')].filter(e => e.lastElementChild.checkVisibility() === false)"
        assert page.evaluate(f"{shut}.length") == 0, path
    show(page, site / "index.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_by_everybody(site: Path, page: Any, scheme: str) -> None:
    """axe: contrast, names and roles, in both themes."""
    page.emulate_media(color_scheme=scheme)
    for path in kinds(site):
        show(page, path)
        page.evaluate(gzip.decompress(AXE.read_bytes()).decode())
        found = page.evaluate("axe.run({resultTypes: ['violations'], preload: false})")["violations"]
        wrong = [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")]
        assert not wrong, (path.relative_to(site), wrong)


def test_every_page_is_read_by_keys_alone(site: Path, page: Any) -> None:
    """The first key leads to the content; what has the focus is seen, and what scrolls can be scrolled by keys."""
    for path in kinds(site):
        show(page, path)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip", path.relative_to(site)
        wide = page.locator(".scroll:visible").evaluate_all(
            "all => all.filter(e => e.scrollWidth > e.clientWidth && e.tabIndex < 0).length"
        )
        assert wide == 0, path.relative_to(site)


def test_a_figure_is_read_with_keys(site: Path, page: Any) -> None:
    show(page, site / item_page(table2()[0]))
    figure = page.locator("svg[data-figure=figure]")
    figure.focus()
    figure.press("ArrowRight")
    text = page.locator(".tip").inner_text()
    assert text.startswith("Round: 1") and "Grouping: " in text and "[" in text and "seed 0" in text


def test_lists_filter_and_tables_sort(site: Path, page: Any) -> None:
    """The boards of claims and the list of items have filters of their own."""
    show(page, site / "index.html")
    board, _, items = page.locator(".listing").all()
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
    other = page.context.new_page()  # a reload within milliseconds would lose what chromium has yet to write down
    other.emulate_media(color_scheme="dark")
    show(other, site / "glossary.html")
    other.locator("#theme[aria-checked=false]").wait_for()
    other.locator("#theme").click()
    page.locator("#theme[aria-checked=true]").wait_for()
