"""The allocator's setting, measured where it matters: page faults of large tensors that come and go."""

import resource

import torch

from benchmark.federated.machine import keep_freed_memory
from tests.federated.helpers import in_a_process


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
