"""Memory over the data, and the time to start, of runs with many clients, each in a fresh process.

Memory is the proportional set size (a page that n processes share counts 1/n in each) of the run's process and its
workers, sampled while it works; the data are the images and labels in memory.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmark.bench.contenders import Options
from benchmark.bench.works import WORKS, Work, environment_of, with_clients
from benchmark.errors import FsslError
from benchmark.federated.environment import Environment
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.start import load_ahead
from benchmark.models.build import Model

SAMPLE_EVERY = 0.05  # seconds
EMNIST_TRAIN, EMNIST_TEST = 112_800, 18_800  # EMNIST balanced
ROUNDS = 2


def memory(options: Options) -> dict[str, Any]:
    """Peak bytes over the data and seconds to start: work A at 470 clients, and a small network at 10,000."""
    if options.quick:
        return {"rows": [measured(with_clients(options.work("A"), K=40, C=2, images=10), options)]}
    small = Model(network="small_cnn", norm="gn", norm_groups=4)  # the laptop profile's
    works = [emnist(K=470, C=47), emnist(K=10_000, C=100)]
    works[1] = replace(works[1], experiment=replace(works[1].experiment, model=small))
    return {"rows": [measured(work, options) for work in works]}


def emnist(K: int, C: int) -> Work:
    """Work A on as many random images as EMNIST balanced has."""
    work = WORKS["A"]
    work = with_clients(work, K=K, C=C, images=(EMNIST_TRAIN - work.experiment.data.N_s) // K)
    return replace(work, N_test=EMNIST_TEST)


def measured(work: Work, options: Options) -> dict[str, Any]:
    """One work in a process of its own. Raises FsslError where that ended by itself."""
    context, federation = get_context("spawn"), work.experiment.federation
    ours, theirs = context.Pipe()
    process = context.Process(target=train, args=(theirs, work, options.workers))
    started, peak = time.monotonic(), 0
    process.start()
    theirs.close()
    told: list[tuple[float, int]] = []  # when it was ready, and when it was done; and the bytes of the data
    try:
        while len(told) < 2:
            assert process.pid is not None  # it has been started
            peak = max(peak, tree_bytes(process.pid))
            if ours.poll(SAMPLE_EVERY):
                told.append(ours.recv())
                options.say(f"K {federation.K}, C {federation.C}: {told[-1][0] - started:.1f} s")
    except (EOFError, OSError):
        raise FsslError("fssl bench: a measured run ended by itself; see its traceback above") from None
    finally:
        ours.close()
        process.join(timeout=10)
        process.kill()
    (ready, data), (done, _) = told
    return {
        "K": federation.K,
        "C": federation.C,
        "network": work.experiment.model.network,
        "processes": 1 + options.workers,
        "data_bytes": data,
        "peak_bytes": peak,
        "over_data_bytes": peak - data,
        "start_seconds": ready - started,
        "round_seconds": (done - ready) / ROUNDS,
    }


def train(connection: Connection, work: Work, workers: int) -> None:
    """In the process: start, train, and tell when (monotonic clock) with the bytes of the data."""
    torch.set_num_threads(1)
    keep_freed_memory()
    load_ahead()  # as a run does
    environment = environment_of(work)
    with ProcessPool(environment, workers) as engine:
        module = FederatedModule(environment, engine)
        connection.send((time.monotonic(), data_bytes(environment)))
        for number in range(1, ROUNDS + 1):
            module.training_step(number, 0)
        connection.send((time.monotonic(), data_bytes(environment)))
        with suppress(EOFError):
            connection.recv()  # until the pipe is closed


def data_bytes(environment: Environment) -> int:
    return sum(value.nbytes for value in vars(environment.data).values() if isinstance(value, torch.Tensor))


def tree_bytes(pid: int) -> int:
    """Proportional set size of a process and all its descendants; one that has ended meanwhile counts nothing."""
    total = 0
    for each in (pid, *descendants(pid, parents())):
        with suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total


def parents() -> dict[int, int]:
    """Of every process its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def descendants(pid: int, parent_of: Mapping[int, int]) -> Sequence[int]:
    """Children, their children and so on."""
    found: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for child, parent in parent_of.items() if parent in generation]
        found += generation
    return found
