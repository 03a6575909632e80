"""Checkpoints of another run, of another form, hostile; how often they are written, and how large (damaged ones:
test_disk)."""

import hashlib
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import ConfigError
from benchmark.methods.protocol import State
from benchmark.records import recorder
from benchmark.records.checkpoints import FORMAT, KEPT, Checkpoint, newest, save
from benchmark.records.lease import Lease
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment

TINY = tiny_experiment()
RUN = "x/seed=0"


def test_a_checkpoint_of_another_run_is_refused_with_both_named(tmp_path):
    save(tmp_path, checkpoint(1), "x/seed=5")
    with pytest.raises(ConfigError, match=f"belongs to run x/seed=5, not to {RUN}"):
        newest(tmp_path, RUN)


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


def test_a_file_that_ends_within_a_text_is_refused(tmp_path):
    write(tmp_path, 1, b"X")  # pickle's code for a text, without its length
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


def test_an_attempt_removes_files_of_its_own_and_of_earlier_ones_only(tmp_path):
    """The last attempt's newest counts, also where an earlier one was further, and a folder of such a name is none."""
    for number in (7, 8, 9):
        save(tmp_path, checkpoint(number), RUN, attempt=1)
    (tmp_path / "round-000004-000002-0123456789abcdef.pt").mkdir()
    save(tmp_path, checkpoint(3), RUN, attempt=2)  # 8 and 9 were damaged, say
    assert rounds_in(tmp_path) == [(1, 9), (2, 3)]
    save(tmp_path, checkpoint(4), RUN, attempt=2)
    save(tmp_path, checkpoint(10), RUN, attempt=1)  # it stood still and woke
    assert rounds_in(tmp_path) == [(1, 10), (2, 3), (2, 4)]
    found = newest(tmp_path, RUN)
    assert found.checkpoint is not None and found.checkpoint.round == 4
    save(tmp_path, checkpoint(5), RUN, attempt=2)
    assert rounds_in(tmp_path) == [(2, 4), (2, 5)]


def rounds_in(folder: Path) -> list[tuple[int, int]]:
    names = [path.name.split("-") for path in folder.iterdir() if path.is_file()]
    return sorted((int(attempt), int(number)) for _, number, attempt, _ in names)


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


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    folder = run_folder(tmp_path, TINY)
    (folder / "checkpoints").mkdir(parents=True)
    for name in (".result.json.abcd1234.tmp", "checkpoints/.round-000001-0123456789abcdef.pt.x.tmp"):
        (folder / name).write_bytes(b"half")
    assert run(TINY, tmp_path)["status"] == "done" and not list(folder.rglob(".*"))


def test_checkpoints_are_further_apart_where_one_takes_long(tmp_path, monkeypatch):
    """A clock that shows 100 s more a round, and 10 s for saving: 2 % of a run is one in every 500 s, so after rounds
    1 (nothing was known yet), 6, 11; the last round's in any case."""
    clock, saved = [0.0], []
    monkeypatch.setattr(recorder.time, "monotonic", lambda: clock[0])

    def slow(folder, checkpoint, run, attempt):
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
