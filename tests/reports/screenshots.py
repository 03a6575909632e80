"""The pictures of the site that the README shows: front, paper, table, cell, arena and compare, at desk and phone
width, and the front page in the dark.

fssl report && python -m tests.reports.screenshots reports/site reports/screenshots
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

TABLE, ARENA = "ssfl/tab2/laptop", "arena/mnist/laptop"
WIDTHS = {"desk": (1200, 900), "phone": (390, 844)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cell = next((options.site / TABLE).glob("cell-fedavg-full-*.html"))
    pages = {"front": options.site / "index.html", "cell": cell, "paper": options.site / "ssfl" / "index.html"}
    pages["compare"] = options.site / "compare.html"
    pages |= {name: options.site / item / "index.html" for name, item in (("table", TABLE), ("arena", ARENA))}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size, (width, height) in WIDTHS.items():
            context = browser.new_context(viewport={"width": width, "height": height})
            for name, path in sorted(pages.items()):
                page = context.new_page()
                page.goto(path.resolve().as_uri())
                page.screenshot(path=options.out / f"{name}-{size}.png")
                page.close()
            context.close()
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="dark")
        page.goto((options.site / "index.html").resolve().as_uri())
        page.screenshot(path=options.out / "front-dark.png")
        browser.close()


if __name__ == "__main__":
    main()
