"""The list of confirmatory runs that are not committed."""

from pathlib import Path

import pytest

from benchmark.errors import ConfigError
from benchmark.papers.items import items
from benchmark.records.not_committed import FILE, left_out, left_out_in_words
from tests.conftest import ROOT


def test_each_group_is_of_cells_that_exist_and_has_a_reason() -> None:
    groups = left_out(ROOT / "results")
    assert groups
    for group in groups:
        (item,) = items([group.item], group.profile)
        assert {cell.label for cell in item.cells}.issuperset(group.cells)
        assert group.reason.strip() and group.source.strip()


def test_an_absent_list_is_empty_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert left_out(tmp_path) == () and left_out_in_words(tmp_path) == ""
    (tmp_path / FILE).write_text('[[runs]]\nitem = "ssfl/fig6"\ncounts = 3\n')
    with pytest.raises(ConfigError, match="count"):
        left_out(tmp_path)
