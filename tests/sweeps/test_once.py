"""Launchers beside each other: each run is trained once. `python -m tests.soak.once` is the same at full size."""

import pytest

from benchmark.cli.main import main
from benchmark.errors import Stopped
from benchmark.records.claim import claimed
from benchmark.records.record import run_folder
from sweeps.grid import checked
from sweeps.launcher import LocalWorkers, Standing, launch
from sweeps.sweep_file import read, written
from tests.soak.once import race


def test_two_launchers_share_eight_cells_and_a_killed_process_costs_no_cell(tmp_path):
    found = race(tmp_path, workers=2, number=8, rounds=6, kills=1)
    assert found["wrong"] == [], found
    assert found["killed"] == 1 and found["attempts"] <= 9  # one cell was taken over, no other was begun twice


def test_what_another_process_is_at_is_left_to_it(tiny, tmp_path):
    """It is waited for: until the launch is ended, no process is started and nothing touched."""
    folder, seen = run_folder(tmp_path, tiny), list[Standing]()

    def watch(standing: Standing) -> None:
        seen.append(standing)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with claimed(folder):
        with pytest.raises(Stopped):
            launch(LocalWorkers(1, tmp_path), [tiny], tmp_path, watch=watch)
        assert (seen[-1].trained, list(seen[-1].finished)) == (0, [])
        assert [path.name for path in folder.iterdir()] == ["claim"]
    assert len(seen) == 3 and seen[-1].running == {tiny}


def test_the_plain_worker_runs_a_sweep_file_and_a_second_one_has_nothing_to_do(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(written({"T": [1], "profile": ["demo"], "seed": [0, 1]}, name="small", made_by="a test"))
    words = ["work", str(path), "--results", str(tmp_path), "--jobs", "1"]
    first, _ = checked(read(path))
    assert main(words) == 0
    assert capsys.readouterr().out == "2 runs done\n"
    written_at = (run_folder(tmp_path, first) / "result.json").stat().st_mtime_ns
    assert main(words) == 0
    assert capsys.readouterr().out == "2 runs done\n"
    assert (run_folder(tmp_path, first) / "result.json").stat().st_mtime_ns == written_at


def test_what_the_worker_does_not_take(tmp_path, capsys):
    for words, said in (
        ([str(tmp_path / "none.yaml")], "cannot be read"),
        (["ssfl/tab2", "a.yaml"], "names all its runs"),
        (["ssfl/tab3000"], "ssfl/tab3"),
        (["ssfl/tab2", "--jobs", "0"], "--jobs: 0"),
        (["ssfl/tab2", "--takeover-after", "5"], "--takeover-after: 5; at least 30 is needed"),
    ):
        assert main(["work", *words, "--results", str(tmp_path)]) == 65
        assert said in capsys.readouterr().err
