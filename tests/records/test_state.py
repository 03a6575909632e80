"""`state.pt`: of another run, of another form, damaged, hostile; how often it is written, and what that needs."""

import errno
import gc
import io
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmark import files
from benchmark.errors import ConfigError, DataError, DiskFull
from benchmark.methods.protocol import State
from benchmark.methods.ssfl import SSFL
from benchmark.records import recorder
from benchmark.records.run import run
from benchmark.records.run_lock import locked
from benchmark.records.state import FORMAT, NAME, RunState, load, save
from tests.conftest import tiny_experiment
from tests.federated.helpers import agree, in_a_process
from tests.test_hostile import Evil

RUN = "x/seed=0"


def state_after(number: int) -> RunState:
    state = State(server={"w": torch.full((2,), float(number)), "n": 3}, clients={"3": {"v": torch.ones(1)}, "4": {}})
    lines = tuple(f'{{"round": {n}}}\n' for n in range(1, number + 1))
    return RunState(state=state, lines=lines, measured={"every": 1}, exchange={"together": True})


def only(server: dict[str, torch.Tensor], clients: dict[str, Any]) -> RunState:
    return replace(state_after(1), state=State(server=server, clients=clients))


def test_what_is_saved_is_read(tmp_path):
    save(tmp_path, state_after(2), RUN)
    save(tmp_path, state_after(3), RUN)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    loaded = load(tmp_path, RUN)
    assert loaded is not None and loaded.round == 3
    assert agree(vars(loaded.state), vars(state_after(3).state))
    for name in ("lines", "measured", "exchange"):
        assert getattr(loaded, name) == getattr(state_after(3), name)
    assert load(tmp_path / "nowhere", RUN) is None


@pytest.mark.parametrize("room", [0, 64, 20_000, 41_400])
def test_a_disk_that_is_full_at_any_byte_leaves_the_state_before(tmp_path, monkeypatch, room):
    """torch hides the disk's error behind one of its own."""
    large = only({"w": torch.rand(10_000)}, {})
    save(tmp_path, state_after(1), RUN)

    class Full(io.FileIO):
        def write(self, content: Any) -> int:
            if self.tell() + len(content) > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    @contextmanager
    def on_a_full_disk(path: Path) -> Iterator[tuple[Path, Any]]:
        with Full(tmp_path / "temporary", "w") as file:
            yield tmp_path / "temporary", file

    monkeypatch.setattr(files, "_temporary", on_a_full_disk)
    with pytest.raises(DiskFull, match="state.pt cannot be written"):
        save(tmp_path, large, RUN)
    loaded = load(tmp_path, RUN)
    assert loaded is not None and agree(vars(loaded.state), vars(state_after(1).state))


def test_a_state_of_another_run_or_a_newer_format_is_refused_with_both_named(tmp_path):
    save(tmp_path, state_after(1), "x/seed=5")
    with pytest.raises(ConfigError, match=f"belongs to run x/seed=5, not to {RUN}"):
        load(tmp_path, RUN)
    torch.save({"format": FORMAT + 6, "run": RUN}, tmp_path / NAME)
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 6}, but this version reads {FORMAT}"):
        load(tmp_path, RUN)


def test_hostile_files_run_no_code_and_what_only_looks_like_a_state_is_damaged(tmp_path):
    """A pickle that calls something, in torch's format and by itself."""
    evil = Evil(tmp_path / "canary")
    looks_like: tuple[Any, ...] = ({}, [1], torch.ones(1), {"format": FORMAT}, {"format": FORMAT, "run": RUN})
    for content in (evil, {"run": evil}, pickle.dumps(evil), *looks_like):
        if isinstance(content, bytes):
            (tmp_path / NAME).write_bytes(content)
        else:
            torch.save(content, tmp_path / NAME)
        with pytest.raises(DataError, match="is damaged"):
            load(tmp_path, RUN)
    assert not (tmp_path / "canary").exists()


def test_a_flipped_bit_is_noticed_wherever_a_number_lies(tmp_path):
    """torch's files have checksums."""
    save(tmp_path, only({"w": torch.arange(10_000.0)}, {}), RUN)
    whole = (tmp_path / NAME).read_bytes()
    first = whole.index(torch.arange(100.0, 110.0).numpy().tobytes())
    for at in range(first, first + 30_000, 997):
        (tmp_path / NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError, match="is damaged"):
            load(tmp_path, RUN)


def test_the_size_is_that_of_the_tensors_and_little_more(tmp_path):
    """300 bytes a tensor and 8 kB at most; a view of a large storage counts as what it shows."""
    large = torch.zeros(100_000)
    sizes = [0, 1, 3, 50, 700, 3000] * 5
    server = {f"tensor.{number}.weight": large[:size] for number, size in enumerate(sizes)}
    save(tmp_path, only(server, {"0": {"momentum": {"w": torch.zeros(5, 5)}}}), RUN)
    tensors = 4 * (sum(sizes) + 25)
    assert tensors <= (tmp_path / NAME).stat().st_size <= tensors + 300 * (len(sizes) + 1) + 8000


def peaks_of_saving_and_loading(folder: Path) -> tuple[int, int]:
    """Return by how many MB the peak of this process grows for a state of 176 MB."""

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

    clients = {}
    for n in range(4):
        clients[str(n)] = {str(k): torch.ones(1024, 1024) for k in range(11)}
    run_state = only({}, clients)
    del clients
    before = peak()
    save(folder, run_state, RUN)
    saved = peak()
    del run_state
    gc.collect()  # torch 2.9 keeps what it saved until then
    load(folder, RUN)
    return saved - before, peak() - before


def test_saving_and_going_on_need_no_second_copy_in_memory(tmp_path):
    assert max(in_a_process(peaks_of_saving_and_loading, tmp_path)) < 80


def test_saves_are_further_apart_where_one_takes_long(tmp_path, monkeypatch):
    """A clock that shows 100 s more a round, and 10 s for saving: 5 % of a run is one in every 200 s, so after rounds
    1 (nothing was known yet), 3, 5; the last round's in any case."""
    clock = [0.0]
    saved = []
    monkeypatch.setattr(recorder.time, "monotonic", lambda: clock[0])

    def slow(folder: Path, run_state: RunState, *rest: object) -> None:
        clock[0] += 10.0
        saved.append(run_state.round)

    monkeypatch.setattr(recorder.state, "save", slow)
    with locked(tmp_path) as lock:
        written = recorder.Recorder(lock, tiny_experiment())
        for number in range(1, 7):
            clock[0] += 100.0
            written._state = state_after(number)
            written.save_when_due()
        written.save()
        written.save()  # there already
    assert saved == [1, 3, 5, 6]


@pytest.mark.parametrize(
    "value",
    [[np.int64(3)], np.float64(0.5), {1, frozenset()}, np.zeros(2), (1, [np.bool_(True)]), range(3), Path("x")],
    ids=repr,
)
def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_saved(tmp_path, value):
    """torch reads a file that may be anybody's with `weights_only`, which knows few types."""
    with pytest.raises(ConfigError, match="memory"):
        save(tmp_path, only({"memory": value}, {}), RUN)
    with pytest.raises(ConfigError, match="7"):
        save(tmp_path, only({}, {"7": {"memory": value}}), RUN)
    assert not list(tmp_path.iterdir())


def test_plain_values_of_every_kind_are_saved_and_read(tmp_path):
    state: dict[str, Any] = {
        "a": [1, 2.5, None, True],
        "b": ["x", {"y": [torch.ones(2)]}],
        "e": (1, "z"),
        "c": {3: b"z"},
        "d": 1j,
    }
    save(tmp_path, only(state, {}), RUN)
    assert agree(vars(load(tmp_path, RUN).state), vars(only(state, {}).state))  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True)
class Remembers(SSFL):
    """A method with a set of numpy's numbers in its state."""

    def round(self, state, world):
        state, metrics = super().round(state, world)
        return replace(state, server={**state.server, "seen": {np.int64(world.round)}}), metrics


def test_a_method_with_such_a_state_ends_in_its_first_round(tmp_path, tiny):
    """And not when it is stopped, hours later, with a state that nothing reads."""
    method = Remembers(**{f.name: getattr(tiny.method, f.name) for f in fields(tiny.method)})
    with pytest.raises(ConfigError, match="seen"):
        run(replace(tiny, method=method), tmp_path)
    assert not list(tmp_path.rglob("rounds.jsonl")) and not list(tmp_path.rglob(NAME))
