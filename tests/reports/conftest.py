"""Items and records that several of the reports' tests show."""

import pytest

from benchmark.papers.item import Item
from reports.cells import Records
from tests.reports.fakes import table2


@pytest.fixture(scope="session")
def laptop_table() -> tuple[Item, Records]:
    """The realistic item of tests/reports/fakes.py under profile laptop."""
    return table2()
