"""Memory over the data, and the time to start, of runs with many clients, each in a fresh process.

Memory is the proportional set size (a page that n processes share counts 1/n in each) of the run's process and its
workers, sampled while it works; the data are the images and labels in memory.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class Size:
    """A federation whose memory is measured."""

    K: int
    C: int
    small_network: bool
    rounds: int

    def work(self) -> Work:
        """Work A on as many random images as EMNIST balanced has; the small network is the laptop profile's."""
        work = WORKS["A"]
        images = (EMNIST_TRAIN - work.experiment.data.N_s) // self.K
        work = replace(with_clients(work, K=self.K, C=self.C, images=images), N_test=EMNIST_TEST)
        if self.small_network:
            model = Model(network="small_cnn", norm="gn", norm_groups=4)
            work = replace(work, experiment=replace(work.experiment, model=model))
        return work


SIZES = (Size(K=470, C=47, small_network=False, rounds=2), Size(K=10_000, C=100, small_network=True, rounds=2))
QUICK = (Size(K=40, C=2, small_network=True, rounds=1),)


def memory(options: Options) -> dict[str, Any]:
    """Peak bytes over the data and seconds to start, for each size."""
    return {"rows": [measured(size, options) for size in (QUICK if options.quick else SIZES)]}


def measured(size: Size, options: Options) -> dict[str, Any]:
    """One size in a process of its own. Raises FsslError where that ended by itself."""
    work = size.work()
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=train, args=(theirs, work, size.rounds, options.workers))
    started = time.monotonic()
    process.start()
    theirs.close()
    assert process.pid is not None  # it has been started
    try:
        watch = Watch(process.pid, ours)
        found = {}
        for name in ("imported", "ready", "done"):
            found[name], data = watch.until_told()
            options.say(f"K {size.K}, C {size.C}: {name} after {found[name] - started:.1f} s")
    finally:
        ours.close()
        process.join(timeout=10)
        process.kill()
    return {
        "K": size.K,
        "C": size.C,
        "network": work.experiment.model.network,
        "rounds": size.rounds,
        "processes": 1 + options.workers,
        "data_bytes": data,
        "peak_bytes": watch.peak,
        "over_data_bytes": watch.peak - data,
        "import_seconds": found["imported"] - started,
        "start_seconds": found["ready"] - started,
        "round_seconds": (found["done"] - found["ready"]) / size.rounds,
    }


def train(connection: Connection, work: Work, rounds: int, workers: int) -> None:
    """In the process: start, train, and tell when (monotonic clock) with the bytes of the data."""
    connection.send((time.monotonic(), 0))
    torch.set_num_threads(1)
    keep_freed_memory()
    load_ahead()  # as a run does
    environment = environment_of(work)
    with ProcessPool(environment, workers) as engine:
        module = FederatedModule(environment, engine)
        connection.send((time.monotonic(), data_bytes(environment)))
        for number in range(1, rounds + 1):
            module.training_step(number, 0)
        connection.send((time.monotonic(), data_bytes(environment)))
        with suppress(EOFError):
            connection.recv()  # until the pipe is closed


def data_bytes(environment: Environment) -> int:
    data = environment.data
    tensors = (data.train_images_NCHW, data.train_labels_N, data.test_images_NCHW, data.test_labels_N)
    return sum(tensor.nbytes for tensor in tensors)


class Watch:
    """The largest sum of a process tree's memory seen so far."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self._pid, self._connection = pid, connection
        self.peak = 0

    def until_told(self) -> tuple[float, int]:
        """Sample until the process sends a message; that message."""
        try:
            while not self._connection.poll(SAMPLE_EVERY):
                self.peak = max(self.peak, tree_bytes(self._pid))
            self.peak = max(self.peak, tree_bytes(self._pid))
            told: tuple[float, int] = self._connection.recv()
        except (EOFError, OSError):
            raise FsslError("fssl bench: a measured run ended by itself; see its traceback above") from None
        return told


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


def descendants(pid: int, parent_of: dict[int, int]) -> Sequence[int]:
    """Children, their children and so on."""
    found: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for child, parent in parent_of.items() if parent in generation]
        found += generation
    return found
