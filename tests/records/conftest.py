"""One forking process for all tests that kill runs."""

from collections.abc import Iterator

import pytest

from tests.records.forks import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    process = Forks()
    yield process
    process.close()
