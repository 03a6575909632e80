"""`python -m tests.performance.engines` end to end at its quickest."""

import json

import pytest

from tests.performance.engines import main


@pytest.mark.slow
def test_a_quick_run_prints_and_writes_its_rows(capsys, tmp_path) -> None:
    path = tmp_path / "engines.json"
    main(["--quick", "--work", "B", "--rounds", "1", "--workers", "1", "--threads", "1", "--json", str(path)])
    out, err = capsys.readouterr()
    assert "B  plain loop" in out and "round 2 of 2: pool" in err
    measured = json.loads(path.read_text())
    rows = measured["ratios"]["B"]["contenders"]
    assert rows["plain loop"]["ratio"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert measured["ratios"]["B"]["rounds"] == 1
    assert all(row["cpu_seconds"]["median"] > 0 for row in rows.values())
    assert str(tmp_path) not in path.read_text()
