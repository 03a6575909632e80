"""Disks that are read-only or damaged: nothing half-written, and the same numbers after.

Full disks: see `test_run_folder`.
"""

import errno
import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.errors import CannotWrite, Stopped
from benchmark.experiment import Experiment
from benchmark.records.files import replacing, write_atomically
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.records.equality import differences
from tests.records.test_run import Interrupt

# State at the slots, so that a resumed run needs more than the weights.
EXPERIMENT: Experiment = replace(tiny_experiment(), method=replace(tiny_experiment().method, momentum="released_code"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("unbroken")
    run(EXPERIMENT, results)
    return results


def test_a_read_only_disk_is_reported_before_any_training(disk, monkeypatch):
    run(EXPERIMENT, disk)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    monkeypatch.setattr("benchmark.records.run.FederatedModule", None)  # nothing may be trained
    with pytest.raises(CannotWrite, match="Read-only file system") as error:
        run(EXPERIMENT.with_seed(1), disk)
    assert error.value.exit_code == 73
    assert run(EXPERIMENT, disk)["status"] == "done"  # what is finished can still be read


def test_temporary_files_are_written_into_the_folder_of_the_run(disk, unbroken, monkeypatch):
    """The results on a disk of their own; the usual folder for temporary files does not even exist."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk / "nowhere"))
    run(EXPERIMENT, disk)
    assert differences(disk, unbroken, EXPERIMENT) == [] and not (disk / "nowhere").exists()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {"state": ["state.pt"], "no state": [], "what is for people": ["progress.jsonl", "experiment.json"]}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_run_goes_on_from_what_is_whole_with_the_numbers_of_an_unbroken_one(what, tmp_path, unbroken, capsys):
    """From the state, or from the start; never from half a file. What is only for people is written anew."""
    folder = run_folder(tmp_path, EXPERIMENT)
    with pytest.raises(Stopped):
        run(EXPERIMENT, tmp_path, callbacks=[Interrupt(2)])
    for name in DAMAGE[what]:
        flip(folder / name)
    if what == "no state":
        (folder / "state.pt").unlink()
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []
    damaged = what == "state"
    assert ("state.pt: is damaged" in (said := capsys.readouterr().err)) == damaged
    assert ("the run starts from round 1" in said) == damaged
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert attempts[-1]["from_round"] == (0 if "state" in what else 2)


def test_a_file_system_without_links(tmp_path, unbroken, monkeypatch):
    def refused(*words: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []


def test_two_that_write_one_file_at_once_each_write_it_whole(tmp_path):
    """As two `report --commit-reference` do: the one that ends last has it, and nothing else is left."""
    path = tmp_path / "copy"
    with replacing(path) as slow:
        slow.write(b"slow")
        write_atomically(path, b"fast")
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow" and list(tmp_path.iterdir()) == [path]
