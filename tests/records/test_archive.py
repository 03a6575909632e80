"""Archives of committed records: the same files come out, and nothing else than checked records is written."""

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from benchmark.errors import DataError
from benchmark.records.archive import unpack_archive, write_archive
from tests.conftest import ROOT

CELLS = sorted((ROOT / "results" / "reference").iterdir())[:2]


@pytest.fixture
def results(tmp_path) -> Path:
    for cell in CELLS:
        shutil.copytree(cell, tmp_path / "results" / "reference" / cell.name)
    return tmp_path / "results"


def contents(results: Path) -> dict[str, bytes]:
    return {path.relative_to(results).as_posix(): path.read_bytes() for path in results.rglob("*.gz")}


def test_an_archive_gives_the_same_records_and_the_same_bytes(results, tmp_path, printed):
    printed("data", "records", "--write", tmp_path / "one.tar", "--results", results)
    printed("data", "records", "--get", tmp_path / "one.tar", "--results", tmp_path / "other")
    assert contents(tmp_path / "other") == contents(results) and contents(results)
    assert unpack_archive(tmp_path / "one.tar", results) == write_archive(tmp_path / "other", tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def archive_of(path: Path, **entries: bytes) -> Path:
    with tarfile.open(path, "w") as packed:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return path


KEY = "0123456789abcdef"


@pytest.mark.parametrize(
    "name", ["../out.json.gz", f"/{KEY}/seed=0.json.gz", f"{KEY}/../x", f"{KEY}/seed=0.json.gz", f"{KEY}/seed=0.py"]
)
def test_what_is_no_record_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(DataError):
        unpack_archive(archive_of(tmp_path / "bad.tar", **{name: b"x"}), tmp_path / "results")
    assert not (tmp_path / "results").exists() and not (tmp_path / "out.json.gz").exists()


def test_a_different_record_here_is_kept(results, tmp_path, fssl):
    write_archive(results, tmp_path / "all.tar")
    ours = next((results / "reference").rglob("*.gz"))
    ours.write_bytes(b"ours")
    code, _, err = fssl("data", "records", "--get", tmp_path / "all.tar", "--results", results)
    assert code == 66 and str(ours) in err and ours.read_bytes() == b"ours"


@pytest.mark.parametrize("words", [(), ("--get", "a", "--write", "b"), ("--write", "b", "--seed=1")])
def test_exactly_one_of_the_two_is_asked_for(fssl, tmp_path, words):
    assert fssl("data", "records", *words, "--results", tmp_path)[0] == 65
