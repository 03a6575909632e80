"""What the tests of all papers share: items by name, and an independent transcription of what is printed."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from tests.conftest import ROOT


def item_of(name: str, profile: str = "paper") -> Item:
    return items([name], profile)[0]


@pytest.fixture(scope="session")
def transcribed() -> Mapping[str, Any]:
    """ "rscfed.tab1" -> the document of that table or figure."""
    path = ROOT.parent / "shared" / "facts" / "paper_tables.yaml"
    if not path.exists():
        pytest.skip("the independent transcription is not here")
    return {document["id"].lower(): document for document in yaml.safe_load_all(path.read_text())}
