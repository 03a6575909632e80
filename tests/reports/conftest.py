"""Provide a site that several of the reports' tests read, and the browser that some of them use."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.site import build
from tests.reports.fakes import lean, small, table2


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of a realistic item, a method comparison and a lean item. Tests only read it."""
    out = tmp_path_factory.mktemp("site")
    assert build([table2(), small(), lean()], out) == out / "index.html"
    return out


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start a headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, of the dev extra, is not installed")
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    chromium = next(filter(None, found), None)
    if chromium is None:
        pytest.skip("no chromium on the PATH (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Open a page that collects forbidden events: console errors, and requests for anything but files."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    opened.wrong = []
    opened.on("console", lambda message: opened.wrong.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: opened.wrong.append(str(error)))
    opened.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else opened.wrong.append(r.url))
    yield opened
    assert opened.wrong == []
    context.close()
