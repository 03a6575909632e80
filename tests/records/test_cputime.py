"""CPU seconds: of this process, of children that live and of children that have ended; and in the record of a run."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmark.federated.engines import EngineOptions
from benchmark.federated.start import load_ahead, usable_cores
from benchmark.records.processes import CpuClock, tree_seconds
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import record_of

BUSY = """
import sys, time
while time.process_time() < 0.3: pass
print(flush=True)
sys.stdin.read()
"""


def test_a_child_counts_while_it_lives_as_after_its_end():
    """It is busy for 0.3 s beside its start; then it waits: its time is there before it has ended, and once after."""
    clock = CpuClock()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        living = clock.lap()
        of_child = tree_seconds(child.pid)
    assert living == pytest.approx(of_child, abs=0.15) and of_child >= 0.29
    assert clock.lap() < 0.15
    assert tree_seconds(child.pid) == 0.0


@pytest.mark.skipif(usable_cores() < 2, reason="one core: the pool has one worker")
def test_a_record_holds_the_cpu_seconds_of_its_workers(tiny, tmp_path):
    """This process aggregates and evaluates; the local steps, 16 times as many as usual, are the workers'."""
    load_ahead()  # the start of what processes are forked from is no part of the run's cost
    longer = replace(tiny, federation=replace(tiny.federation, T=16 * tiny.federation.T))
    before = time.process_time()
    result = run(longer, tmp_path, engine=EngineOptions(engine="pool"))
    here = time.process_time() - before
    of_rounds = sum(line["time/cpu_seconds"] for line in record_of(run_folder(tmp_path, longer)).rounds)
    assert 0 < round(of_rounds, 3) <= result["cpu_seconds"] < of_rounds + 2.0 and result["cpu_seconds"] > 1.5 * here
