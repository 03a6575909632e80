"""A small site in a real browser: headless Chromium opens the files as a visitor would, from the disk."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from reports.formatting import cell_page, item_page
from tests.reports.fakes import small, table2

AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"


KINDS = (
    "index.html",
    "claims.html",
    "tables.html",
    "tuning.html",
    "findings.html",
    "findings_in_full.html",
    "compare.html",
    "glossary.html",
    "performance.html",
    "methods/index.html",
    "methods/ssfl.html",
    "ssfl/index.html",
    "ssfl/departures.html",
    "ssfl/explained/index.html",
    "arena/index.html",
    "released.html",
    cell_page(table2()[0].cells[6]),
    *(item_page(item) for item, _ in (table2(), small())),
)


CUT = """[...document.querySelectorAll('.tall, .scroll, pre')].filter(e =>
    ['auto', 'scroll'].includes(getComputedStyle(e).overflowY) && e.scrollHeight > e.clientHeight + 1).length"""
SHUT = "[...document.querySelectorAll('details')].filter(e => !e.lastElementChild.checkVisibility()).length"
WIDTH = "document.documentElement.scrollWidth"


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_its_window_prints_whole_and_can_be_read_by_everybody(site: Path, page: Any, kind: str) -> None:
    """Axe: contrast, names and roles, in both themes. By keys alone: the first leads to the content, and what scrolls
    can be scrolled. On A4 nothing scrolls, and what is folded is open."""
    page.goto(next(site.glob(kind)).as_uri())
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(WIDTH) <= width
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth && e.tabIndex < 0).length"
    assert page.locator(".scroll:visible").evaluate_all(wide) == 0
    page.evaluate(gzip.decompress(AXE.read_bytes()).decode())
    for scheme, rules in (("light", ""), ("dark", "runOnly: ['color-contrast'], ")):  # the theme changes nothing else
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(f"axe.run({{{rules}resultTypes: ['violations'], preload: false}})")["violations"]
        wrong = [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")]
        assert not wrong, scheme
    page.set_viewport_size({"width": 718, "height": 1000})
    page.emulate_media(media="print")
    assert (page.evaluate(CUT), page.evaluate(SHUT)) == (0, 0)
    assert kind != "index.html" or page.evaluate(WIDTH) <= 718


def test_a_figure_is_read_with_keys(site: Path, page: Any) -> None:
    page.goto((site / item_page(table2()[0])).as_uri())
    figure = page.locator("svg[data-figure=figure]")
    figure.focus()
    figure.press("ArrowRight")
    text = page.locator(".tip").inner_text()
    assert text.startswith("Round: 3") and "Grouping: " in text and "[" in text and "seed 0" in text


def test_lists_filter_and_tables_sort(site: Path, page: Any) -> None:
    """The boards of claims and the list of items have filters of their own."""
    page.goto((site / "claims.html").as_uri())
    board = page.locator(".listing").first
    board.locator("input").fill("hardly falls")
    assert board.locator("[data-entry]:visible").count() == 1
    board.locator("input").fill("")
    board.locator("select[data-filter-key=paper]").select_option("toy")
    assert board.locator("[data-entry]:visible").count() == 1
    page.goto((site / "tables.html").as_uri())
    items = page.locator(".listing")
    assert items.locator("[data-entry]:visible").count() == 3
    items.locator("th button", has_text="Runs").click()
    first = items.locator("tbody th").first.inner_text()
    items.locator("th button", has_text="Runs").click()
    assert items.locator("tbody th").first.inner_text() != first


def test_the_theme_is_the_system_s_until_it_is_chosen(site: Path, page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto((site / "index.html").as_uri())
    assert page.locator("#theme").get_attribute("aria-checked") == "true"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    other = page.context.new_page()  # a reload within milliseconds would lose what chromium has yet to write down
    other.emulate_media(color_scheme="dark")
    other.goto((site / "glossary.html").as_uri())
    other.locator("#theme[aria-checked=false]").wait_for()
    other.locator("#theme").click()
    page.locator("#theme[aria-checked=true]").wait_for()
