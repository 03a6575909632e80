"""The allocator's setting, measured where it matters: page faults of large tensors that come and go."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

PROGRAM = """
import resource, sys, torch
from benchmark.federated.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(16 << 20, dtype=torch.uint8)  # 4,096 pages of 4 KiB each time
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = faults()
assert keep_freed_memory()
torch.ones(16 << 20, dtype=torch.uint8)
print(plain, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
def test_freed_memory_is_used_again():
    """Without the setting a tensor's pages are faulted in again and again; with it hardly any are."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    plain, kept = map(int, done.stdout.split())
    assert kept < plain / 10
