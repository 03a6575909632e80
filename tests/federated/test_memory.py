"""Memory: a client that does not fit is named, with what helps; what the allocator frees is used again."""

import resource
from dataclasses import dataclass, replace

import pytest
import torch

from benchmark.errors import FsslError
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.machine import keep_freed_memory
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Local, Reader, Stream, Tree
from benchmark.methods.shared import ServerUpdate
from tests.conftest import tiny_experiment
from tests.federated.helpers import in_a_process


@dataclass(frozen=True, kw_only=True)
class Asks(ServerUpdate):
    """Asks for this much memory, in float32 numbers, before it begins."""

    numbers: int = 0

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        torch.empty(self.numbers)
        return super().start(received, private, reader)


def job(numbers: int) -> tuple[ReferenceEngine, Job]:
    environment = prepare(tiny_experiment())
    stream = Stream(part="labelled", batch_size=8, views=("weak",))
    return ReferenceEngine(environment), Job(
        key=Key(client=SERVER),
        update=Asks(numbers=numbers),
        receives={"student": weights_of(environment.network())},
        data={"labelled": stream},
        limit=Limit(steps=1),
    )


def test_a_job_without_memory_is_named():
    """2^60 numbers of 4 bytes are more than any address space; the next job goes on as if nothing had been."""
    engine, greedy = job(1 << 60)
    modest = replace(greedy, update=Asks(numbers=1))
    with pytest.raises(
        FsslError, match="round 3, the server: its job does not fit into memory; choose a smaller batch size"
    ):
        list(engine.fit([greedy], 3, {}))
    (after,), (alone,) = engine.fit([modest], 3, {}), job(1)[0].fit([modest], 3, {})
    assert all(torch.equal(value, alone.sends["student"][name]) for name, value in after.sends["student"].items())


def test_another_error_of_a_job_is_raised_as_it_is():
    """Negative sizes are no lack of memory."""
    engine, wrong = job(-1)
    with pytest.raises(RuntimeError, match="negative dimension"):
        list(engine.fit([wrong], 1, {}))


def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(16 << 20, dtype=torch.uint8)  # 4,096 pages of 4 KiB each time
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def faults_without_and_with() -> tuple[int, int]:
    plain = faults()
    keep_freed_memory()
    torch.ones(16 << 20, dtype=torch.uint8)
    return plain, faults()


def test_freed_memory_is_used_again():
    """Without the setting a tensor's pages are faulted in again and again; with it hardly any are."""
    plain, kept = in_a_process(faults_without_and_with)
    assert kept < plain / 10
