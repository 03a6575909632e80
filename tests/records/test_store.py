"""What clients keep when it does not stay in memory: the same bits, few files, little memory, and kills in between."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import DataError, Stopped
from benchmark.experiment import Experiment
from benchmark.federated.store import ClientStore, Draft
from benchmark.records import recorder
from benchmark.records.checkpoints import newest
from benchmark.records.client_files import ClientFiles, is_whole
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.verify import troubles_of
from tests.conftest import record_of
from tests.methods.golden import TRACES
from tests.records.equality import differences
from tests.records.faults import STEPS
from tests.records.test_run import Interrupt

# Two of four clients a round keep their model and its momentum.
EXPERIMENT: Experiment = replace(
    TRACES["easgd"], federation=replace(TRACES["easgd"].federation, C=2, rounds=6)
)  # fmt: skip
RUN = f"{EXPERIMENT.cell_key}/seed={EXPERIMENT.seed}"


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    """An unbroken run that keeps all in memory."""
    results = tmp_path_factory.mktemp("whole")
    assert forks.run(EXPERIMENT, results)["code"] == 0
    return results


def clients_of(results: Path) -> list[Path]:
    return sorted((run_folder(results, EXPERIMENT) / "checkpoints" / "clients").glob("*"))


class Shelves:
    """A shelf in memory; what it was given is counted."""

    def __init__(self) -> None:
        self.trees: dict[str, dict] = {}

    def put(self, keeper: str, tree: dict) -> str:
        name = f"{keeper}-{len(self.trees)}"
        self.trees[name] = tree
        return name

    def get(self, keeper: str, name: str) -> dict:
        assert name.startswith(f"{keeper}-")
        return self.trees[name]


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40), max_size=4), max_size=12),
    st.integers(0, 600),
)
def test_a_store_holds_what_a_dict_would_within_its_memory(rounds, memory):
    """Each round writes tensors of so many numbers (4 bytes each). Stores of earlier rounds stay as they were, and a
    tree goes to the shelf once however often it is asked for."""
    shelf, past = Shelves(), []
    expected: dict[str, tuple[int, float]] = {}
    store = ClientStore(shelf=shelf, memory=memory)
    for number, changes in enumerate(rounds):
        draft = Draft(store)
        for keeper, size in changes.items():
            draft[keeper] = {"deep": {"x": torch.full((size,), float(number))}}
        past.append((store, dict(expected)))
        expected.update({keeper: (size, float(number)) for keeper, size in changes.items()})
        assert set(draft) == set(expected) and len(draft) == len(expected)
        store = store.after(draft)
        assert store.in_memory <= memory
        if number % 3 == 2:
            trees, names = store.shelved()
            assert not (trees and names) and {*trees, *names} == set(expected)
            before = len(shelf.trees)
            assert store.shelved() == (trees, names) and len(shelf.trees) == before
    for held, wanted in [*past, (store, expected)]:
        assert {k: (len(tree["deep"]["x"]), tree["deep"]["x"]) for k, tree in held.items()}.keys() == wanted.keys()
        for keeper, (size, value) in wanted.items():
            assert torch.equal(held[keeper]["deep"]["x"], torch.full((size,), value))


def test_a_draft_gives_copies_and_leaves_the_store():
    store = ClientStore({"a": {"x": torch.zeros(2)}})
    draft = Draft(store)
    draft.get("a")["x"].add_(1)
    assert store["a"]["x"].tolist() == [0.0, 0.0] and draft.get("b") is None and "b" not in draft
    draft["b"] = {"x": torch.ones(1)}
    assert list(draft) == ["a", "b"] and list(store) == ["a"]


@pytest.mark.parametrize("memory", [0, 400_000])
def test_with_little_memory_the_bits_are_the_same(whole, tmp_path, monkeypatch, memory):
    """Nothing stays in memory, or one of four clients (2 x 38,378 weights: 307 kB each); stopped and gone on with, too.

    On disk are then the states that the two checkpoints name: of four clients, and of the two that the last round
    changed once more.
    """
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    with pytest.raises(Stopped):
        run(EXPERIMENT, tmp_path, callbacks=[Interrupt(3)], seconds_between=0.0, client_memory=memory)
    run(EXPERIMENT, tmp_path, seconds_between=0.0, client_memory=memory)
    assert differences(tmp_path, whole, EXPERIMENT) == []
    assert 4 <= len(clients_of(tmp_path)) <= 6 and all(map(is_whole, clients_of(tmp_path)))
    sizes = [path.stat().st_size for path in (run_folder(tmp_path, EXPERIMENT) / "checkpoints").glob("*.pt")]
    assert max(sizes) < 38_378 * 4 + 12_000  # the center alone, and names
    folder = run_folder(tmp_path, EXPERIMENT)
    assert troubles_of(record_of(folder), folder) == []


def test_a_checkpoint_writes_only_the_clients_that_changed(tmp_path, monkeypatch):
    """Two of four clients a round: two files for each of the rounds after all four are on the shelf."""
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    put, written = ClientFiles.put, []

    def noted(self: ClientFiles, keeper: str, tree: dict) -> str:
        written.append(keeper)
        return put(self, keeper, tree)

    monkeypatch.setattr(ClientFiles, "put", noted)
    run(EXPERIMENT, tmp_path, seconds_between=0.0, client_memory=400_000)
    assert len(written) <= 2 * EXPERIMENT.federation.rounds


@pytest.mark.parametrize("step", [1, 3, STEPS.index("replace") + 1, len(STEPS)])
def test_killed_while_a_client_s_state_is_written(forks, whole, tmp_path, step):
    """The third file of a client, in each stage of its writing: the last checkpoint counts, whole."""
    few = {"client_memory": 0}
    end = forks.run(EXPERIMENT, tmp_path, options=few, faults={"die_in_client_write": [3, step]})
    assert end["code"] == -SIGKILL, end["said"]
    again = forks.run(EXPERIMENT, tmp_path, options=few)
    assert again["code"] == 0 and again["said"] == ""
    assert differences(tmp_path, whole, EXPERIMENT) == []
    assert 4 <= len(clients_of(tmp_path)) <= 6


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_client_s_file_costs_the_checkpoint_that_needs_it(
    whole, tmp_path, monkeypatch, capsys, damage: Callable[[Path], None]
):
    """The last round's own file: the checkpoint before it counts, and `verify` finds it, too (where it is there)."""
    monkeypatch.setattr(recorder, "MOST_OF_A_RUN", float("inf"))
    with pytest.raises(Stopped):
        run(EXPERIMENT, tmp_path, callbacks=[Interrupt(4)], seconds_between=0.0, client_memory=0)
    folder = run_folder(tmp_path, EXPERIMENT)
    latest = newest(folder / "checkpoints", RUN).checkpoint
    earlier = newest(folder / "checkpoints", RUN, before=4).checkpoint
    assert latest is not None and earlier is not None
    new = set(names_of(latest.state.clients)) - set(names_of(earlier.state.clients))
    path = folder / "checkpoints" / "clients" / sorted(new)[0]
    damage(path)
    told = [trouble for trouble in troubles_of(record_of(folder), folder) if "checkpoints/clients" in trouble]
    assert len(told) == path.exists()
    run(EXPERIMENT, tmp_path, seconds_between=0.0, client_memory=0)
    assert f"needs clients/{path.name}, which is damaged or gone" in capsys.readouterr().err
    assert differences(tmp_path, whole, EXPERIMENT) == []


def names_of(store) -> list[str]:
    return list(store.shelved()[1].values())


def test_a_file_of_somebody_else_is_refused(tmp_path):
    """Of another client, of another run, no file of torch's, or a path out of the folder."""
    mine, other = (ClientFiles(folder=tmp_path, run=run) for run in ("x/seed=0", "x/seed=1"))
    name = mine.put("../7", {"w": torch.ones(2)})
    assert mine.get("../7", name)["w"].tolist() == [1.0, 1.0] and [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(DataError, match="it is of ../7 of run x/seed=0"):
        mine.get("8", name)
    with pytest.raises(DataError, match="what ../7 keeps cannot be read"):
        other.get("../7", name)
    (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(DataError, match="goes on from the last checkpoint that is whole"):
        mine.get("../7", name)
    assert mine.missing([name, "../../etc/passwd", "7-0123456789abcdef.pt"]) == [
        name,
        "../../etc/passwd",
        "7-0123456789abcdef.pt",
    ]
