"""A disk that can be full."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.records.faults import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 20 MB."""
    (folder := tmp_path / "disk").mkdir()
    with small_disk(folder, 20) as mounted:
        if not mounted:
            pytest.skip("no file system can be mounted here")
        yield folder
