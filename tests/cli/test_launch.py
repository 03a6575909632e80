"""`fssl work` and the options of a launch: what is trained, and what is refused before anything is written."""

from typing import Any

import pytest

from benchmark.cli.main import main
from benchmark.records.record import run_folder
from sweeps.grid import checked
from sweeps.sweep_file import read, written

MANY = written({"T": list(range(1, 102)), "seed": list(range(100))}, name="many", made_by="a test")  # 10,100 runs


def test_work_trains_a_sweep_file_once(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    grid: dict[str, list[Any]] = {"T": [1], "federation.rounds": [2], "profile": ["demo"], "seed": [0, 1]}
    path.write_text(written(grid, name="small", made_by="a test"))
    result = run_folder(tmp_path, checked(read(path))[0]) / "result.json"
    times = []
    for _ in range(2):
        assert main(["work", str(path), "--results", str(tmp_path), "--jobs", "1"]) == 0
        assert capsys.readouterr().out == "2 runs done\n"
        times.append(result.stat().st_mtime_ns)
    assert times[0] == times[1]


@pytest.mark.parametrize("words", [["work"], ["agent", "team/fssl/s1"]], ids=" ".join)
def test_a_bad_sweep_file_is_refused_before_anything_is_asked_or_written(words, tmp_path, capsys, monkeypatch):
    """W&B has no key here: an agent that went on to ask it would say so."""
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    (path := tmp_path / "sweep.yaml").write_text(MANY)
    assert main([words[0], str(path), *words[1:], "--results", str(tmp_path / "results")]) == 65
    assert capsys.readouterr().err == "fssl: the grid has 10,100 runs; --yes takes more than 10,000\n"
    assert not (tmp_path / "results").exists()
