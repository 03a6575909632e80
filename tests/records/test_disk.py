"""Disks that are full, read-only or damaged: nothing half-written, and the same numbers after.

Full and read-only disks are real ones: small file systems in memory, which only root can mount.
"""

import json
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytorch_lightning as pl
from benchmark.records.checkpoints import newest

from benchmark.errors import CannotWrite
from benchmark.experiment import Experiment
from benchmark.records import recorder
from benchmark.records.record import run_folder
from benchmark.records.run import run
from reports.site import build
from tests.conftest import tiny_experiment
from tests.records.equality import differences
from tests.reports.fakes import table2

# State at the slots, so that a resumed run needs more than the weights.
EXPERIMENT: Experiment = replace(tiny_experiment(), method=replace(tiny_experiment().method, momentum="released_code"))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of its own of 20 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of its own")
    try:
        mount("-t", "tmpfs", "-o", "size=20m", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("unbroken")
    run(EXPERIMENT, results, seconds_between=0.0)
    return results


class Fills(pl.Callback):
    """Leaves no byte of the disk free once a round is recorded."""

    def __init__(self, disk: Path, after_round: int) -> None:
        self.file, self.after_round = disk / "filler", after_round

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:
        if pl_module.rounds_done == self.after_round:
            with open(self.file, "wb", buffering=0) as file:
                for size in (1 << 16, 1 << 12, 1):
                    try:
                        while file.write(b"\0" * size):
                            pass
                    except OSError:
                        continue


@pytest.mark.parametrize("after_round", [1, 2])
def test_a_full_disk_ends_the_run_with_its_checkpoint_whole_and_it_goes_on_when_there_is_room(
    disk, unbroken, after_round
):
    folder = run_folder(disk, EXPERIMENT)
    with pytest.raises(CannotWrite, match="No space left on device") as found:
        run(EXPERIMENT, disk, callbacks=[Fills(disk, after_round)], seconds_between=0.0)
    assert found.value.exit_code == 73 and str(disk) in str(found.value)
    assert not (folder / "result.json").exists()
    whole = newest(folder / "checkpoints", f"{EXPERIMENT.cell_key}/seed=0", after_round)
    assert whole.warnings == ()  # no checkpoint is damaged
    with pytest.raises(CannotWrite):  # and again, as long as there is no room
        run(EXPERIMENT, disk, seconds_between=0.0)
    (disk / "filler").unlink()
    assert run(EXPERIMENT, disk)["status"] == "done"
    assert differences(disk, unbroken, EXPERIMENT) == []


def test_half_a_line_is_cut_back(tmp_path, unbroken):
    """A round's line finds room for its first hundred bytes only: the journal stays whole, and the run goes on."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = run_folder(tmp_path, EXPERIMENT)

    class Narrow(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args) -> None:
            if pl_module.rounds_done == 2:
                size = (folder / "rounds.jsonl").stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limit[1]))

    try:
        with pytest.raises(CannotWrite, match="File too large"):
            run(EXPERIMENT, tmp_path, callbacks=[Narrow()], seconds_between=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["round"] for line in lines] == [1, 2] and lines[-1].endswith("\n")
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []


def test_a_read_only_disk_is_told_before_any_training(disk, monkeypatch):
    run(EXPERIMENT, disk)
    mount("-o", "remount,ro", str(disk))
    monkeypatch.setattr("benchmark.records.run.FederatedModule", None)  # nothing may be trained
    with pytest.raises(CannotWrite, match="Read-only file system") as found:
        run(EXPERIMENT.with_seed(1), disk)
    assert found.value.exit_code == 73
    assert run(EXPERIMENT, disk)["status"] == "done"  # what is finished can still be read
    with pytest.raises(CannotWrite, match="cannot be written"):
        build([table2()], disk / "site")


def test_files_are_written_beside_and_nowhere_else(disk, unbroken, monkeypatch):
    """The results on a disk of their own; the usual folder for temporary files does not even exist."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk / "nowhere"))
    run(EXPERIMENT, disk, seconds_between=0.0)
    assert differences(disk, unbroken, EXPERIMENT) == [] and not (disk / "nowhere").exists()


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.pt"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "newest checkpoint flipped": lambda folder: flip(checkpoints(folder)[-1], 0.5),
    "newest checkpoint cut": lambda folder: cut(checkpoints(folder)[-1], 1000),
    "newest checkpoint empty": lambda folder: cut(checkpoints(folder)[-1], 0),
    "all checkpoints flipped": lambda folder: list(map(flip, checkpoints(folder))),
    "no checkpoints": lambda folder: list(map(Path.unlink, checkpoints(folder))),
    "journal without its last byte": lambda folder: cut(folder / "rounds.jsonl", -1),
    "journal of one line and a half": lambda folder: cut(folder / "rounds.jsonl", 1200),
    "journal empty": lambda folder: cut(folder / "rounds.jsonl", 0),
    "journal flipped": lambda folder: flip(folder / "rounds.jsonl", 0.0),  # its first brace
    "no journal": lambda folder: (folder / "rounds.jsonl").unlink(),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_run_goes_on_from_what_is_whole_with_the_numbers_of_an_unbroken_one(what, tmp_path, unbroken, capsys):
    """Killed before its result, then damaged: from the older checkpoint, or from the start; never from half a file."""
    folder = run_folder(tmp_path, EXPERIMENT)
    shutil.copytree(run_folder(unbroken, EXPERIMENT), folder)
    (folder / "result.json").unlink()
    DAMAGE[what](folder)
    capsys.readouterr()
    assert run(EXPERIMENT, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, EXPERIMENT) == []
    told = capsys.readouterr().err
    assert ("is damaged" in told) == what.startswith(("newest", "all"))
    assert ("is ahead of rounds.jsonl" in told) == ("journal" in what)
    if what == "all checkpoints flipped":
        assert "no checkpoint is left: the run starts from round 1" in told
        assert json.loads((folder / "manifest.json").read_text())["attempts"][-1]["from_round"] == 0


@pytest.mark.parametrize(("line", "from_round"), [(2, 0), (3, 2)])
def test_a_broken_line_costs_the_rounds_after_the_last_checkpoint_before_it(tmp_path, monkeypatch, line, from_round):
    """Checkpoints are there of rounds 2 and 3; none of these is before the second round's line."""
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    run(EXPERIMENT, tmp_path / "whole", seconds_between=0.0)
    folder = run_folder(tmp_path, EXPERIMENT)
    shutil.copytree(run_folder(tmp_path / "whole", EXPERIMENT), folder)
    (folder / "result.json").unlink()
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b":", b"", 1)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines))
    assert run(EXPERIMENT, tmp_path, seconds_between=0.0)["status"] == "done"
    assert json.loads((folder / "manifest.json").read_text())["attempts"][-1]["from_round"] == from_round
    assert differences(tmp_path, tmp_path / "whole", EXPERIMENT) == []
