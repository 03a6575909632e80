"""`fssl bench` end to end at its quickest."""

import json

import pytest

from benchmark.bench.tables import written
from tests.cli.test_cli import fssl


@pytest.mark.slow
def test_a_quick_run_prints_and_writes_its_table(capsys, tmp_path) -> None:
    words = ["bench", "--quick", "--only", "ratios", "--work", "B", "--rounds", "1", "--workers", "1", "--threads", "1"]
    code, out, err = fssl(capsys, *words, "--results", tmp_path)
    assert code == 0
    assert "Work B" in out and "plain loop" in out and "round 2 of 2: cpu engine" in err
    (path,) = (tmp_path / "benchmarks").glob("*.json")
    found = json.loads(path.read_text())
    assert path.stem == found["name"] == "engines-ratios-B-quick"
    rows = found["ratios"]["B"]["contenders"]
    assert rows["plain loop"]["ratio"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert all(row["rounds"] == 1 and row["cpu_seconds"]["median"] > 0 for row in rows.values())
    gap = found["ratios"]["B"]["difference"]
    assert gap["difference"] <= 1e-5 < 1e-3 < gap["change"]
    assert path.with_suffix(".md").read_text().count("\n## ") == len(written(found)) == 2
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rounds", "0"], "--rounds: 0"),
        (["--work", "D"], "'D'"),
        (["--only", "speed"], "'speed'"),
    ],
)
def test_wrong_words(capsys, tmp_path, words, says) -> None:
    code, _, err = fssl(capsys, "bench", *words, "--results", tmp_path)
    assert code == 65 and says in err and err.count("\n") == 1
    assert not (tmp_path / "benchmarks").exists()


@pytest.mark.slow
def test_the_share_kept_of_a_run_that_learns(capsys, tmp_path) -> None:
    """Two rounds with clients after one of the server alone, each also dense: so the ratio of each is known."""
    words = ["bench", "--quick", "--only", "share", "--rounds", "1", "--workers", "1", "--threads", "1"]
    code, out, _ = fssl(capsys, *words, "--results", tmp_path)
    assert code == 0
    (path,) = (tmp_path / "benchmarks").glob("*.json")
    learning = json.loads(path.read_text())["learning"]
    assert [row["round"] for row in learning["rows"]] == [1, 2]
    for row in learning["rows"]:
        assert 0.0 <= row["kept"] <= 1.0 and row["dense_seconds"] > 0.0 and row["cpu"] > 0.0
    assert "after 1 rounds of the server alone" in learning["what"]
    assert "Confident-only in a run that learns" in out
