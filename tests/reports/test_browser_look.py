"""In a real browser: light and dark, numbers below each other, lists, and the way from a number to its runs."""

from pathlib import Path
from typing import Any

import pytest

from benchmark.papers.item import Item
from reports.site import build, item_page
from reports.views import cell_page
from tests.reports.browsing import show
from tests.reports.fakes import make_cell, make_record, table2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("look")
    build([table2()], out)
    return out


def test_light_and_dark_are_chosen_by_a_switch_and_kept(site: Path, browser: Any) -> None:
    """By mouse and keyboard; kept on the next page; back at the system's own, nothing is kept. Before the first paint
    the page has its colours: the script that sets them stands in the head."""
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    show(page, site / "index.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    light, switch = page.evaluate(paper), page.get_by_role("switch", name="Dark")
    assert switch.get_attribute("aria-checked") == "false"
    switch.click()
    dark = page.evaluate(paper)
    assert dark != light and switch.get_attribute("aria-checked") == "true"
    show(page, site / "glossary.html")
    assert page.evaluate(paper) == dark and page.get_by_role("switch").get_attribute("aria-checked") == "true"
    assert page.evaluate("document.head.querySelector('script').textContent.includes('dataset.theme')")
    page.emulate_media(media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    page.get_by_role("switch").press("Space")
    assert page.evaluate(paper) == light and page.evaluate("localStorage.length") == 0
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("#theme[aria-checked=true]")
    assert page.evaluate(paper) == dark
    context.close()


def test_switch_works_where_nothing_may_be_stored(site: Path, page: Any) -> None:
    page.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied'); }})")
    show(page, site / "index.html")
    page.get_by_role("switch").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_difference_leads_to_its_cells_and_those_to_their_runs(site: Path, page: Any) -> None:
    """Two clicks from a number of the table to a run; a difference opens the compare page with both of its cells."""
    item, _ = table2()
    show(page, site / item_page(item))
    page.locator("a.diff").first.click()
    assert page.locator("#chosen tbody a").all_inner_texts() == ["FedAvg/small", "Grouping/small"]
    paths = page.locator("#plot path[data-n]")
    assert [paths.nth(i).get_attribute("class") for i in (0, 1)] == ["l s0", "l s1"]  # the methods' own colours
    show(page, site / item_page(item))
    page.locator("td a.value").first.click()
    page.get_by_role("link", name="seed 0").click()
    assert page.inner_text("h1") == "Seed 0" and "/runs/" in page.url
    show(page, site / item_page(item))
    page.locator("#claims .terms a").first.click()
    assert page.inner_text("h1") == "Grouping/full"


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A list of two cells, the first with three runs of losses .5, .1234 and 12.25, the second with one run: the item's
    page and the first cell's."""
    cells = [make_cell(f"R={R}", {"R": R, "T": 4}, 900 + i) for i, R in enumerate((0, 0.4))]
    losses = [{"test/accuracy": 0.5 + 0.2 * i, "test/loss": loss} for i, loss in enumerate((0.5, 0.1234, 12.25))]
    records = {cells[0].cell_key: {seed: make_record(cells[0], seed, last) for seed, last in enumerate(losses)}}
    records[cells[1].cell_key] = {0: make_record(cells[1], 0, {"test/accuracy": 0.6})}
    item = Item(name="toy/list", title="A list", profile="demo", cells=tuple(cells), seeds=3)
    out = tmp_path_factory.mktemp("listed")
    build([(item, records)], out)
    page = out / item_page(item)
    return page, page.parent / f"{cell_page(cells[0].label)}.html"


def test_a_list_filters_by_its_settings(listed: tuple[Path, Path], page: Any) -> None:
    """By R, which has two values; T has one, so that there is nothing to choose."""
    show(page, listed[0])
    shown = page.locator("tr[data-entry]:visible")
    assert shown.count() == 2 and page.locator("[data-part]").count() == 1
    page.select_option("[data-part=R]", label="0.4")
    assert shown.count() == 1 and "R=0.4" in shown.first.inner_text()


def test_decimal_points_lie_below_each_other(listed: tuple[Path, Path], page: Any) -> None:
    """Within half a pixel: means with and without a spread (n = 3 and 1), and losses of one to four decimals."""
    points = """(nodes) => nodes.map((node) => {
      const text = document.createTreeWalker(node, NodeFilter.SHOW_TEXT).nextNode();
      const range = document.createRange();
      range.setStart(text, text.data.indexOf("."));
      range.setEnd(text, text.data.indexOf(".") + 1);
      return range.getBoundingClientRect().left;
    })"""
    show(page, listed[0])
    means = page.eval_on_selector_all("table.numbers tbody a.value b", points)
    show(page, listed[1])
    losses = page.eval_on_selector_all("table[data-sort] tbody tr.done td:nth-child(4)", points)
    assert (len(means), len(losses)) == (2, 3)
    assert max(means) - min(means) < 0.5 and max(losses) - min(losses) < 0.5
