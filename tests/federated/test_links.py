"""What travels between ranks, who is silent, and which processes are ranks at all.

Legend: A, B, C sizes of any tensor.
"""

import pickle
import time
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import SingleDeviceStrategy

from benchmark.errors import ConfigError
from benchmark.federated import ranks
from benchmark.federated.choice import build_engine, place_among_ranks
from benchmark.federated.environment import prepare
from benchmark.federated.links import ALIGNED, opened, packed_letter
from benchmark.federated.ranks import Name, Place, Ranks, Watch, place_of
from benchmark.federated.trainer import build_trainer

CPU = torch.device("cpu")
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@given(
    sizes=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
    dtypes=st.lists(st.sampled_from([torch.float32, torch.float64, torch.bool, torch.bfloat16]), max_size=4),
    sliced=st.booleans(),
)
def test_tensors_in_one_stretch_of_bytes_come_out_as_they_went_in(sizes, order, dtypes, sliced):
    """Values, types and layouts, of several at once; each in memory of its own, and aligned on the way."""
    draw = torch.Generator().manual_seed(0)
    went = [torch.randint(0, 2, sizes, generator=draw).to(dtype).permute(order) for dtype in dtypes]
    went = [tensor_ABC[:, ::2] for tensor_ABC in went] if sliced else went
    letter = packed_letter("hello", enumerate(went), CPU)
    message, layouts = pickle.loads(letter.pickled)
    found = opened(layouts, letter.payload)
    assert message == "hello" and letter.payload.numel() % ALIGNED == 0 and list(found) == list(range(len(went)))
    for came, sent in zip(found.values(), went, strict=True):
        assert came.dtype == sent.dtype and torch.equal(came, sent)
        assert sliced or came.stride() == sent.stride()
    storages = {tensor.untyped_storage().data_ptr() for tensor in found.values() if tensor.numel()}
    assert len(storages) == sum(tensor.numel() > 0 for tensor in went)


def test_a_scalar_and_what_changes_after_it_was_handed_over():
    scalar, weights = torch.tensor(2.5), torch.ones(3)
    letter = packed_letter((), [(0, scalar), (-1, weights)], CPU)
    weights += 1  # local work may change what is kept in place
    found = opened(pickle.loads(letter.pickled)[1], letter.payload)
    assert found[0].shape == () and float(found[0]) == 2.5 and found[-1].tolist() == [1.0, 1.0, 1.0]


@dataclass
class Heard:
    """What a `Watch` sees of a link."""

    beats: int = 0
    expected_bytes: int = 0


def watched(links, monkeypatch) -> Watch:
    monkeypatch.setattr(ranks, "LOOKS", 0.01)
    monkeypatch.setattr(ranks, "SILENCE", 0.05)
    return Watch(links)


def looks(watch: Watch, count: int, between: float = 0.011) -> list[int | None]:
    found = []
    for _ in range(count):
        time.sleep(between)
        found.append(watch.look())
    return found


def test_a_link_is_lost_after_so_many_silent_looks(monkeypatch):
    """A look each 0.01 s, 0.05 s of patience: the sixth look without a beat is one too many; a beat starts anew."""
    links = {1: Heard(), 2: Heard()}
    watch = watched(links, monkeypatch)
    assert looks(watch, 5) == [None] * 5
    links[1].beats += 1
    assert looks(watch, 1) == [2]


def test_a_process_that_was_stopped_itself_calls_nobody_silent(monkeypatch):
    """0.2 s, four times the patience, pass between two looks: they count as one."""
    watch = watched({1: Heard()}, monkeypatch)
    assert looks(watch, 4, between=0.2) == [None] * 4


def test_a_long_message_on_its_way_is_no_silence(monkeypatch):
    """250 kB at 5 MB/s are 0.05 s more: eleven looks instead of six."""
    watch = watched({1: Heard(expected_bytes=250_000)}, monkeypatch)
    found = looks(watch, 11)
    assert found[:10] == [None] * 10 and found[10] == 1


def test_ranks_are_what_torchrun_started():
    assert place_of(TORCHRUN) == Place(rank=1, size=3)
    for name in TORCHRUN:
        assert place_of({key: value for key, value in TORCHRUN.items() if key != name}) is None
    with pytest.raises(ConfigError, match="RANK='one', WORLD_SIZE='3'; whole numbers, as torchrun sets them"):
        place_of({**TORCHRUN, "RANK": "one"})


@pytest.mark.parametrize(
    ("engine", "size", "shared"),
    [("auto", 3, True), ("auto", 1, False), ("distributed", 3, True), ("distributed", 1, True), ("cpu", 1, False)],
)
def test_which_engines_share_among_ranks(engine, size, shared):
    environ = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": str(size)}
    assert place_among_ranks(engine, environ) == (Place(rank=0, size=size) if shared else None)


def test_what_cannot_be_shared_among_ranks_is_refused(tiny):
    assert place_among_ranks("auto", {}) is None
    with pytest.raises(ConfigError, match="--engine: 'distributed' without ranks; `torchrun"):
        place_among_ranks("distributed", {})
    with pytest.raises(ConfigError, match="--engine: 'cpu' on 3 ranks, each of which would do all"):
        place_among_ranks("cpu", TORCHRUN)
    environment, alone = prepare(tiny), Ranks([Name(rank=0, host="here", pid=1)], None, 0)
    with pytest.raises(ConfigError, match="--workers: 2 with ranks"):
        build_engine("auto", environment, 2, 1, ranks=alone)
    with pytest.raises(ConfigError, match="'distributed' needs ranks that have met"):
        build_engine("distributed", environment, None, 1)


def test_lightning_takes_no_part_in_the_ranks(monkeypatch):
    """In the environment of torchrun's rank 0 of 3, and of a scheduler's: one process, one device, no set-up."""
    launched = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "3"}
    for name, value in {**launched, "TORCHELASTIC_RUN_ID": "none", "SLURM_NTASKS": "3"}.items():
        monkeypatch.setenv(name, value)
    trainer = build_trainer()
    assert isinstance(trainer.strategy, SingleDeviceStrategy) and trainer.strategy.launcher is None
    assert trainer.world_size == 1 and trainer.num_devices == 1 and trainer.is_global_zero
    assert isinstance(trainer._accelerator_connector.cluster_environment, LightningEnvironment)
    assert not torch.distributed.is_initialized()
