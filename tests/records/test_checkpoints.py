"""Checkpoints that are damaged, of another run, hostile, or cannot be written; how often and how large."""

import errno
import hashlib
import io
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import CannotWrite, ConfigError, Stopped
from benchmark.methods.protocol import State
from benchmark.records import checkpoints, files, recorder
from benchmark.records.checkpoints import FORMAT, KEPT, Checkpoint, newest, save
from benchmark.records.lease import Lease
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.records.equality import differences
from tests.records.test_run import Interrupt

TINY = tiny_experiment()
RUN = "x/seed=0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    results = tmp_path_factory.mktemp("whole")
    run(TINY, results)
    return results


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Results of a run that was stopped after round 2, with checkpoints of rounds 1 and 2."""
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    with pytest.raises(Stopped):
        run(TINY, tmp_path, callbacks=[Interrupt(2)], seconds_between=0.0)
    assert len(files_of(tmp_path)) == 2
    return tmp_path


def files_of(results: Path) -> list[Path]:
    return sorted((run_folder(results, TINY) / "checkpoints").iterdir())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, empty])
@pytest.mark.parametrize("how_many", [1, 2])
def test_damaged_checkpoints_are_named_and_passed_over(stopped, whole, capsys, damage, how_many):
    """One: from round 1, all: from the beginning; said on standard error and in the manifest, with the same result."""
    damaged = files_of(stopped)[-how_many:]
    for path in damaged:
        damage(path)
    run(TINY, stopped)
    said = capsys.readouterr().err
    attempt = json.loads((run_folder(stopped, TINY) / "manifest.json").read_text())["attempts"][-1]
    assert attempt["from_round"] == 2 - how_many and len(attempt["warnings"]) == (1 if how_many == 1 else 3)
    for path in damaged:
        assert f"{path.name} is damaged" in said and f"{path.name} is damaged" in str(attempt["warnings"])
    assert ("starts from round 1" in said) == (how_many == 2)
    assert differences(stopped, whole, TINY) == []


def test_a_checkpoint_with_fewer_lines_than_rounds_is_passed_over(stopped, whole, capsys):
    """What a machine that lost its power might leave: the line of round 2 is not whole."""
    path = run_folder(stopped, TINY) / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-20] + b"\0" * 19 + b"\n")
    run(TINY, stopped)
    assert "is ahead of rounds.jsonl, which ends at round 1" in capsys.readouterr().err
    assert differences(stopped, whole, TINY) == []


def test_a_checkpoint_of_another_run_is_refused_with_both_named(stopped):
    other = TINY.with_seed(5)
    run_folder(stopped, other).mkdir(parents=True)
    for name in ("checkpoints", "rounds.jsonl"):
        (run_folder(stopped, TINY) / name).rename(run_folder(stopped, other) / name)
    with pytest.raises(ConfigError, match=f"belongs to run {TINY.cell_key}/seed=0, not to {TINY.cell_key}/seed=5"):
        run(other, stopped)


def test_a_newer_format_is_refused_with_both_numbers(tmp_path):
    content = {"format": FORMAT + 6, "run": RUN, "round": 1, "server": {}, "clients": {}, "best": None, "last": {}}
    put(tmp_path, 1, content)
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 6}, this version reads format {FORMAT}"):
        newest(tmp_path, RUN)


def test_a_checkpoint_from_before_formats_had_numbers_is_read(tmp_path):
    """Its content is that of format 1, without the number."""
    content = {"run": RUN, "round": 3, "server": {"w": torch.ones(2)}, "clients": {}, "best": None, "last": {}}
    put(tmp_path, 3, content)
    found = newest(tmp_path, RUN).checkpoint
    assert found is not None and found.round == 3 and found.state.server["w"].tolist() == [1.0, 1.0]


def test_hostile_files_run_no_code(tmp_path):
    """With a right checksum, a pickle that calls something, in torch's format and by itself."""

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'canary'}",))

    for number, data in enumerate(
        (in_torch_s_format(Evil()), in_torch_s_format({"run": Evil()}), pickle.dumps(Evil()))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, 1, data)
        with pytest.raises(ConfigError, match="is no checkpoint"):
            newest(folder, RUN)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("content", [{}, [1], torch.ones(1), {"format": FORMAT}])
def test_what_only_looks_like_a_checkpoint_is_refused(tmp_path, content):
    put(tmp_path, 1, content)
    with pytest.raises(ConfigError, match="is no checkpoint"):
        newest(tmp_path, RUN)


def in_torch_s_format(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def put(folder: Path, number: int, content: object) -> None:
    write(folder, number, in_torch_s_format(content))


def write(folder: Path, number: int, data: bytes) -> None:
    (folder / f"round-{number:06d}-{hashlib.sha256(data).hexdigest()[:16]}.pt").write_bytes(data)


def checkpoint(number: int) -> Checkpoint:
    state = State(server={"w": torch.full((2,), float(number))}, clients={"3": {"v": torch.ones(1)}})
    return Checkpoint(round=number, state=state, best=None, last={})


def test_only_the_newest_stay(tmp_path):
    for number in range(1, 6):
        save(tmp_path, checkpoint(number), RUN)
    assert [path.name[:12] for path in sorted(tmp_path.iterdir())] == ["round-000004", "round-000005"] and KEPT == 2
    found = newest(tmp_path, RUN).checkpoint
    assert found is not None and found.round == 5 and found.state.server["w"].tolist() == [5.0, 5.0]
    assert found.state.clients["3"]["v"].tolist() == [1.0]


def test_later_rounds_that_were_damaged_do_not_stay_in_place_of_older_whole_ones(tmp_path):
    for number in (7, 8, 9):
        save(tmp_path, checkpoint(number), RUN)
    empty(sorted(tmp_path.iterdir())[-1])
    save(tmp_path, checkpoint(8), RUN)  # done again from 7, say
    save(tmp_path, checkpoint(9), RUN)
    assert [path.name[:12] for path in sorted(tmp_path.iterdir())] == ["round-000008", "round-000009"]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30))
def test_the_size_is_that_of_the_tensors_and_little_more(tmp_path_factory, sizes):
    """300 bytes a tensor and 8 kB at most; a view of a large storage counts as what it shows."""
    folder = tmp_path_factory.mktemp("sizes")
    large = torch.zeros(100_000)
    server = {f"tensor.{number}.weight": large[:size] for number, size in enumerate(sizes)}
    state = State(server=server, clients={"0": {"momentum": {"w": torch.zeros(5, 5)}}})
    size = save(folder, Checkpoint(round=1, state=state, best={"round": 1}, last={}), RUN)
    tensors = 4 * (sum(sizes) + 25)
    assert tensors <= size <= tensors + 300 * (len(sizes) + 1) + 8000
    assert size == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there_and_the_run_goes_on_when_there_is_room(
    tmp_path, whole, monkeypatch, operation
):
    """From round 2's checkpoint on there is no room: exit code 73, round 1's is whole, nothing half written is left."""
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    original, write = getattr(os, operation), checkpoints.write_atomically

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def when_full(path, content):
        with monkeypatch.context() as patch:
            if not path.name.startswith("round-000001"):
                patch.setattr(files.os, operation, full)
            write(path, content)

    monkeypatch.setattr(checkpoints, "write_atomically", when_full)
    with pytest.raises(CannotWrite, match="No space left on device"):
        run(TINY, tmp_path, seconds_between=0.0)
    assert getattr(os, operation) is original
    (left,) = files_of(tmp_path)
    assert left.name.startswith("round-000001")
    monkeypatch.undo()
    run(TINY, tmp_path)
    assert differences(tmp_path, whole, TINY) == []


def test_what_a_killed_process_left_half_written_is_removed(tmp_path, whole):
    folder = run_folder(tmp_path, TINY)
    (folder / "checkpoints").mkdir(parents=True)
    for name in (".result.json.abcd1234.tmp", "checkpoints/.round-000001-0123456789abcdef.pt.x.tmp"):
        (folder / name).write_bytes(b"half")
    run(TINY, tmp_path)
    assert differences(tmp_path, whole, TINY) == []


def test_checkpoints_are_further_apart_where_one_takes_long(tmp_path, monkeypatch):
    """A clock that shows 100 s more a round, and 10 s for saving: 2 % of a run is one in every 500 s, so after rounds
    1 (nothing was known yet), 6, 11; the last round's in any case."""
    clock, saved = [0.0], []
    monkeypatch.setattr(recorder.time, "monotonic", lambda: clock[0])

    def slow(folder, checkpoint, run):
        clock[0] += 10.0
        saved.append(checkpoint.round)

    monkeypatch.setattr(recorder, "save", slow)
    written = recorder.Recorder(Lease(tmp_path, 1), TINY)
    with written.opened({}):
        for number in range(1, 13):
            clock[0] += 100.0
            written._finished = checkpoint(number)
            written.save_when_due()
        written.save()
        written.save()  # there already
    assert saved == [1, 6, 11, 12]
