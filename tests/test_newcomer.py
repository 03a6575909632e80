"""The commands of README.md end with 0 for somebody who types them one after another in an empty folder."""

from pathlib import Path

import pytest

from tests.newcomer import commands, walk


@pytest.mark.slow
def test_a_newcomer_gets_through_the_readme(tmp_path: Path) -> None:
    """pytest shows the times and the errors of the commands if one of them fails."""
    steps = []
    for step in walk(tmp_path):
        print(step)
        steps.append(step)
    assert [step.command for step in steps if step.code] == []
    assert len(steps) == len(commands()) >= 10
    assert list(tmp_path.glob("results/runs/*/*/result.json"))
    assert (tmp_path / "tables").is_dir() and (tmp_path / "b.zip").stat().st_size
