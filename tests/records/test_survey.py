"""Records read patiently: what is damaged is told, what was edited is marked, rounds wait on the disk."""

import gzip
import json
from pathlib import Path

import pytest

from benchmark.records.record import read_run
from benchmark.records.survey import Survey, cell_keys
from tests.reports.many import items, write_run


@pytest.fixture
def results(tmp_path: Path) -> tuple[Path, str]:
    """Seeds 0 to 2 of one synthetic cell, 10 rounds each."""
    cell = items(25, rounds=10)[0].cells[0]
    for seed in range(3):
        write_run(cell, seed, tmp_path / "runs" / cell.cell_key / f"seed={seed}")
    return tmp_path, cell.cell_key


def test_whole_records_are_as_the_strict_reader_has_them(results: tuple[Path, str]) -> None:
    folder, key = results
    survey = Survey()
    found = survey.read(folder, [key], with_reference=False)[key]
    assert survey.troubles == [] and survey.seen == {key} and cell_keys(folder, with_reference=True) == [key]
    for seed, record in found.items():
        strict = read_run(folder / "runs" / key / f"seed={seed}")
        assert strict is not None and list(record.rounds) == list(strict.rounds) and len(record.rounds) == 10
        assert record.rounds[-1] == strict.rounds[-1] and record.rounds[2:4] == strict.rounds[2:4]
        assert (record.experiment, record.manifest, record.result) == (
            strict.experiment,
            strict.manifest,
            strict.result,
        )
        assert not record.edited


@pytest.mark.parametrize("name", ["rounds.jsonl", "experiment.json", "result.json"])
def test_a_record_edited_afterwards_is_marked(results: tuple[Path, str], name: str) -> None:
    """One digit of a number is enough, and the other runs are not blamed."""
    folder, key = results
    path = folder / "runs" / key / "seed=1" / name
    text = path.read_text()
    assert "60" in text or "0" in text
    path.write_text(text.replace("0", "1", 1) if name != "result.json" else text.replace("60.0", "61.0"))
    found = Survey().read(folder, [key], with_reference=False)[key]
    assert {seed: run.edited for seed, run in found.items()} == {0: False, 1: True, 2: False}


@pytest.mark.parametrize("text", ["{", "[1, 2]", '"text"', "{}", "\x00"])
def test_a_damaged_record_is_told_and_missing(results: tuple[Path, str], text: str) -> None:
    folder, key = results
    (folder / "runs" / key / "seed=1" / "experiment.json").write_text(text)
    survey = Survey()
    assert list(survey.read(folder, [key], with_reference=False)[key]) == [0, 2]
    assert len(survey.troubles) == 1 and survey.troubles[0].startswith(f"{key}/seed=1: ")


def test_a_damaged_copy_is_told(results: tuple[Path, str]) -> None:
    folder, key = results
    (folder / "reference" / key).mkdir(parents=True)
    (folder / "reference" / key / "seed=7.json.gz").write_bytes(gzip.compress(json.dumps({"rounds": 3}).encode()))
    survey = Survey()
    assert list(survey.read(folder, [key], with_reference=True)[key]) == [0, 1, 2]
    assert len(survey.troubles) == 1 and "seed=7.json" in survey.troubles[0]
