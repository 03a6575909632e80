"""`fssl migrate`: records of an older version under their new keys; nothing is lost, and what must stay is told."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.cli.main import main
from benchmark.experiment import Evaluation, Experiment
from benchmark.records.files import read_json, write_json
from benchmark.records.record import read_copy, reference_path, run_digest, run_folder, write_reference
from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment

OLD, OLDER = "0" * 16, "1" * 16
SELDOM, OFTEN = (tiny_experiment(evaluation=Evaluation(every=every)) for every in (3, 1))
KEY = OFTEN.cell_key


def old_run(results: Path, key: str, experiment: Experiment) -> Path:
    """A finished run as the earlier version left it: under another key, without `measured`."""
    run(experiment, results / "made", seconds_between=0.0)
    made, folder = run_folder(results / "made", experiment), results / "runs" / key / f"seed={experiment.seed}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    made.rename(folder)
    lines = [{**json.loads(line), "cell_key": key} for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {name: value for name, value in read_json(folder / "result.json").items() if name != "measured"}
    result["cell_key"] = key
    write_json(folder / "result.json", {**result, "digest": run_digest(folder, result)})
    shutil.rmtree(results / "made")
    return folder


def migrated(capsys, results: Path) -> tuple[int, str]:
    code = main(["migrate", "--results", str(results)])
    return code, capsys.readouterr().out


def test_a_finished_run_moves_with_its_weights_and_is_whole(capsys, tmp_path):
    folder = old_run(tmp_path, OLD, OFTEN)
    before = record_of(folder)
    code, out = migrated(capsys, tmp_path)
    moved = run_folder(tmp_path, OFTEN)
    assert code == 0 and f"{folder} -> {moved}" in out and "1 moved, 0 stay" in out
    record = record_of(moved)
    assert record.result["migrated_from"] == [OLD] and record.measured["every"] == 1 and not record.edited
    assert record.result["last"] == before.result["last"] and len(record.rounds) == 3
    assert (moved / "weights" / "README.md").exists() and not folder.parent.exists()
    assert main(["verify", "--results", str(tmp_path)]) == 0
    capsys.readouterr()
    assert migrated(capsys, tmp_path) == (0, "0 moved, 0 stay where they are\n")
    assert run(OFTEN, tmp_path) == record.result  # done: not trained again


def test_of_two_records_of_one_run_the_first_stays(capsys, tmp_path):
    seldom, often = old_run(tmp_path, OLD, SELDOM), old_run(tmp_path, OLDER, OFTEN)
    for folder in (seldom, often):
        write_reference(tmp_path, record_of(folder))
    code, out = migrated(capsys, tmp_path)
    assert code == 0 and "4 moved, 0 stay" in out
    for record in (record_of(run_folder(tmp_path, OFTEN)), read_copy(reference_path(tmp_path, KEY, 0))):
        assert record.result["migrated_from"] == [min(OLD, OLDER)]
    assert [path.name for path in sorted((tmp_path / "reference").iterdir())] == [KEY, "index.json"]
    assert main(["verify", "--results", str(tmp_path)]) == 0


def test_records_that_differ_stay_and_are_told(capsys, tmp_path):
    records = [record_of(old_run(tmp_path, key, run_)) for key, run_ in ((OLD, OFTEN), (OLDER, SELDOM))]
    rounds = [{**line, "client/loss": line["client/loss"] * 1.001} for line in records[1].rounds]
    for record in (records[0], replace(records[1], rounds=rounds)):
        path = write_reference(tmp_path, record)
    shutil.rmtree(tmp_path / "runs")
    code, out = migrated(capsys, tmp_path)
    assert code == 66 and "another record of this run differs: round 3: client/loss is " in out
    assert "1 moved, 1 stay" in out and path.exists() and reference_path(tmp_path, KEY, 0).exists()


@pytest.mark.parametrize("what", ["unfinished", "edited", "damaged"])
def test_what_cannot_be_moved_stays(capsys, tmp_path, what):
    folder = old_run(tmp_path, OLD, OFTEN)
    if what == "unfinished":
        (folder / "result.json").unlink()
    elif what == "edited":
        write_json(folder / "result.json", {**read_json(folder / "result.json"), "wall_seconds": 0.0})
    else:
        (folder / "experiment.json").write_text("{")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out = migrated(capsys, tmp_path)
    assert code == 66 and f"{folder}: stays: " in out and "0 moved, 1 stay" in out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_move_that_was_killed_half_way_is_done_again(capsys, tmp_path):
    """Files of the record are there but for the result: what lies there is no finished run yet."""
    folder = old_run(tmp_path, OLD, OFTEN)
    target = run_folder(tmp_path, OFTEN)
    target.mkdir(parents=True)
    shutil.copy(folder / "experiment.json", target)
    assert migrated(capsys, tmp_path)[0] == 0
    assert record_of(target).status == "done" and replace(record_of(target)).rounds[2]["cell_key"] == KEY
