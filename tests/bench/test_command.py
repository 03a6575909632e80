"""`fssl bench` end to end at its quickest."""

import json

import pytest

from tests.cli.test_cli import fssl


@pytest.mark.slow
def test_a_quick_run_prints_and_writes_its_tables(capsys, tmp_path) -> None:
    words = ["bench", "--quick", "--work", "B", "--rounds", "1", "--workers", "1", "--threads", "1"]
    code, out, err = fssl(capsys, *words, "--results", tmp_path)
    assert code == 0
    assert "Work B" in out and "plain loop" in out and "round 2 of 2: pool" in err
    path = tmp_path / "benchmarks" / "engines-B-quick.json"
    found = json.loads(path.read_text())
    rows = found["ratios"]["B"]["contenders"]
    assert rows["plain loop"]["ratio"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert found["ratios"]["B"]["rounds"] == 1
    assert all(row["cpu_seconds"]["median"] > 0 for row in rows.values())
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--rounds", "0"], "--rounds: 0; at least 1 is needed"), (["--work", "D"], "'D'")],
)
def test_wrong_words(capsys, tmp_path, words, says) -> None:
    code, _, err = fssl(capsys, "bench", *words, "--results", tmp_path)
    assert code == 65 and says in err and err.count("\n") == 1
    assert not (tmp_path / "benchmarks").exists()
