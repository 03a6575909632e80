"""Provide fixtures for the tests of all papers: items by name, and texts and transcriptions outside the checkout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmark.papers.item import Item
from benchmark.papers.items import items
from tests.conftest import ROOT


def item_of(name: str, profile: str = "paper") -> Item:
    return items([name], profile)[0]


def shared(name: str) -> Path:
    path = ROOT.parent / "shared" / name
    if not path.exists():
        pytest.skip(f"no {name} in ../shared")
    return path


@pytest.fixture(scope="session")
def transcribed() -> Mapping[str, Any]:
    """Return for a name such as "rscfed.tab1" the document of that table or figure in a second, independent
    transcription.
    """
    documents = yaml.safe_load_all(shared("facts/paper_tables.yaml").read_text())
    return {document["id"].lower(): document for document in documents}
