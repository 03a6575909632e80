"""The demo site in a real browser: headless Chromium opens the files as a visitor would, from the disk."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.papers.item import Cell, Item
from benchmark.verdicts.results import Records
from reports.site import build, item_page
from tests.reports.arena_fakes import small
from tests.reports.browsing import show
from tests.reports.fakes import make_cell, make_record, pair, table2

AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"
HOSTILE = (
    "<script>document.title='run'</script>",
    '"><img src=x onerror="document.title=\'run\'">',
    "a_b & 50%",
    "../../x",
    "=cmd()",
    "</script><script>document.title='run'</script>",
)


def hostile() -> tuple[Item, Records]:
    """Every text that a record or an item brings is markup, a formula or a path; W&B's address is a script."""
    cells = tuple(make_cell(text, {"method": text, "data": text}, 800 + i) for i, text in enumerate(HOSTILE))
    claim = replace(pair().claims[0], name=HOSTILE[0], quote=HOSTILE[1], contrast={HOSTILE[0]: 1.0, HOSTILE[1]: -1.0})
    records = {cell.cell_key: {seed: _hostile_run(cell, seed) for seed in range(3)} for cell in cells}
    item = Item(
        name="toy/hostile", title=HOSTILE[1], profile="demo", cells=cells, claims=(claim,), seeds=3, notes=HOSTILE
    )
    return item, records


def _hostile_run(cell: Cell, seed: int) -> Any:
    record = make_record(cell, seed, {"test/accuracy": 0.5 + 0.1 * seed, cell.label: 1.0})
    return replace(record, manifest={cell.label: cell.label}, wandb_url="javascript:document.title='run'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser")
    build([table2(), small(), hostile()], out, troubles=[HOSTILE[0]])
    return out


def pages_of_each_kind(site: Path) -> list[Path]:
    table, arena, bad = (site / item_page(item) for item, _ in (table2(), small(), hostile()))
    names = ("index", "compare", "glossary", "performance", "ssfl/index", "semifl/index")
    cells = [next(folder.parent.glob("cell-*.html")) for folder in (table, arena, bad)]
    runs = next((site / "runs").rglob("*.html"))
    return [*(site / f"{name}.html" for name in names), site / "ssfl/departures.html", table, arena, bad, *cells, runs]


def test_every_link_of_every_page_resolves(site: Path, page: Any) -> None:
    """As the browser itself understands them; and no page but the compare page has an address of the web."""
    for path in sorted(site.rglob("*.html")):
        show(page, path)
        links = page.eval_on_selector_all("a[href]", "found => found.map(a => a.href)")
        for link in links:
            assert link.startswith("file://"), (path, link)
            target = link.removeprefix("file://").split("#")[0]
            assert Path(target).is_file() and str(site) in target, (path, link)


def test_no_text_of_a_record_is_run(site: Path, page: Any) -> None:
    """The scripts would set the page's title to "run"."""
    item, _ = hostile()
    folder = (site / item_page(item)).parent
    for path in [*folder.glob("*.html"), site / "index.html", site / "compare.html"]:
        show(page, path)
        assert page.title() != "run" and page.locator("img").count() == 0
    show(page, site / "compare.html")
    page.select_option("#group", label="toy/hostile (demo)")
    for text in HOSTILE:
        page.select_option("#cell", label=text)
        page.click("#add")
    assert page.locator("#chosen tbody a").all_inner_texts()[2:] == list(HOSTILE) and page.title() != "run"


def test_a_script_is_no_link(site: Path, page: Any) -> None:
    item, _ = hostile()
    show(page, site / "runs" / item.cells[0].cell_key / "seed-0.html")
    assert "W&B: javascript:document.title='run'" in page.inner_text("main")
    assert page.locator("a[href^='javascript']").count() == 0


def test_table_sorts_by_a_clicked_heading(site: Path, page: Any) -> None:
    """FedAvg at the full cohort: three runs, of which the third diverged; by accuracy, largest first, then last."""
    item, _ = table2()
    show(page, next((site / item_page(item)).parent.glob("cell-fedavg-small-*.html")))

    def column() -> list[float]:
        return [float(text) for text in page.locator("table[data-sort] tbody td:nth-child(3)").all_inner_texts()]

    before = column()
    heading = page.get_by_role("button", name="Accuracy")
    heading.click()
    assert column() == sorted(before, reverse=True)
    assert page.locator("th[aria-sort='descending']").count() == 1
    heading.press("Enter")
    assert column() == sorted(before) and page.locator("th[aria-sort='ascending']").count() == 1


def test_front_page_filters(site: Path, page: Any) -> None:
    show(page, site / "index.html")
    shown = page.locator("tr[data-entry]:visible")
    assert shown.count() == 3
    page.select_option("[data-filter-key=methods]", label="Grouping")
    assert shown.count() == 1 and "ssfl/tab2" in shown.first.inner_text()
    assert page.inner_text("[data-count]") == "1 of 3"
    page.select_option("[data-filter-key=methods]", label="all")
    page.select_option("[data-filter-key=profile]", label="demo")
    assert shown.count() == 2
    page.fill("[data-filter]", "ARENA")
    assert shown.count() == 1


def test_curves_tell_their_values_to_mouse_and_keyboard(site: Path, page: Any) -> None:
    """FedAvg/small measures accuracy in round 1 and every fifth; its last values are those of the records."""
    item, records = table2()
    show(page, next((site / item_page(item)).parent.glob("cell-fedavg-small-*.html")))
    chart = page.locator("svg.chart").first
    chart.focus()
    page.keyboard.press("End")
    told = page.locator(".tip").inner_text()
    ends = [100 * run.rounds[-1]["test/accuracy"] for run in records[item.cells[0].cell_key].values()]
    assert told.startswith("Round 120") and f"mean: {sum(ends) / 3:.4g}"[:10] in told
    for seed, end in enumerate(ends):
        value = next(line for line in told.splitlines() if line.startswith(f"seed {seed}: "))
        assert float(value.split(": ")[1]) == pytest.approx(end, abs=0.02)
    page.keyboard.press("Home")
    assert page.locator(".tip").inner_text().startswith("Round 1\n")
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()
    chart.hover()
    assert page.locator(".tip").is_visible()


def test_compare_page_agrees_with_the_paired_interval(site: Path, page: Any) -> None:
    """The page starts with the item's first two cells; its interval is that of benchmark.verdicts.statistics."""
    from benchmark.verdicts.results import collect
    from benchmark.verdicts.statistics import paired

    item, records = table2()
    show(page, site / "compare.html")
    results = list(collect(item, records).values())
    seen = paired(results[1].values, results[0].values)
    assert seen is not None and seen.interval is not None
    low, high = (f"{100 * edge:+.2f}" for edge in seen.interval)
    row = page.locator("#chosen tbody tr").nth(1).inner_text()
    assert f"{100 * seen.mean:+.2f}" in row and f"[{low}, {high}]" in row
    page.get_by_role("button", name=f"Remove {results[1].cell.label}").click()
    assert page.locator("#chosen tbody tr").count() == 1 and "at least two" in page.inner_text("#said")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(site: Path, browser: Any, scheme: str) -> None:
    """axe-core finds nothing on a page of each kind, in both schemes; contrast included."""
    script = gzip.decompress(AXE.read_bytes()).decode()
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme, bypass_csp=True)
    opened = context.new_page()
    found = {}
    for path in pages_of_each_kind(site):
        show(opened, path)
        opened.evaluate(script)
        result = opened.evaluate("axe.run({resultTypes: ['violations']})")
        for one in result["violations"]:
            where = [(node["target"], node.get("failureSummary", "")[:300]) for node in one["nodes"][:3]]
            found[f"{path.relative_to(site)}: {one['id']}"] = where
    context.close()
    assert found == {}, json.dumps(found, indent=1)


@pytest.mark.parametrize("width", [1200, 390])
def test_pages_fit_their_width(site: Path, browser: Any, width: int) -> None:
    """Wide tables scroll inside their frame; the page itself never does, on a desk or a phone."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    opened = context.new_page()
    for path in pages_of_each_kind(site):
        show(opened, path)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()


def test_pages_print_and_work_without_script(site: Path, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    item, _ = table2()
    show(opened, site / item_page(item))
    assert opened.locator("svg.chart").count() == 9 and opened.locator("table.numbers").first.is_visible()
    assert opened.pdf()[:5] == b"%PDF-"
    context.close()
