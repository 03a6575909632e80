"""One page of each kind is as it was reviewed; `python -m tests.reports.snapshots` writes the files anew."""

from importlib.metadata import version

import pytest

from tests.reports.snapshots import SNAPSHOTS, snapshots

NAMES = sorted(path.stem for path in SNAPSHOTS.glob("*.txt"))


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    return snapshots()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_as_it_was_reviewed(now: dict[str, str], name: str) -> None:
    if name == "terminal" and int(version("rich").partition(".")[0]) < 15:
        pytest.skip("older versions of rich pad the columns of a table differently")
    assert now[name].splitlines() == (SNAPSHOTS / f"{name}.txt").read_text().splitlines()


def test_every_kind_of_page_has_its_file(now: dict[str, str]) -> None:
    assert sorted(now) == NAMES
