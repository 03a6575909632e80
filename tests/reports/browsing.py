"""How tests open a page of a site in the browser."""

from pathlib import Path
from typing import Any


def show(page: Any, path: Path) -> None:
    page.goto(path.as_uri())
