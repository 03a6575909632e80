"""Provide the place of the packed real data, a separate cache for every test that loads a set, and image folders."""

import os
from pathlib import Path

import pytest
from PIL import Image

from benchmark.data import datasets

REAL = Path(os.environ.get("FSSL_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (REAL / name).is_dir(), reason=f"no {name} in FSSL_DATA or ../shared/data")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Give every test a separate cache and no data folder but the one that it names."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FSSL_DATA", raising=False)


@pytest.fixture
def of_any_size(monkeypatch):
    """Accept sets of a few images under a known name."""
    monkeypatch.setattr(datasets, "check_counts", lambda data: None)


def save_images(
    folder: Path, count: int, mode: str = "RGB", size: tuple[int, int] = (6, 5), red: int = 0, green: int = 0
) -> None:
    """Save images that differ by ten in red, or in grey, from `red` on."""
    folder.mkdir(parents=True)
    for index in range(count):
        colour = 10 * index + red if mode == "L" else (10 * index + red, 20 + green, 30)
        Image.new(mode, size, colour).save(folder / f"{index}.png")
