"""Let contenders run the same rounds in turn, so that a busy machine slows all of them.

Every contender is a process with children, all of this one; they do a round each in an order drawn anew for every turn,
after one turn to warm up, and wait while others are at it. Ratios are medians of ratios of the same turn. Before
anything is timed, the mean of a contender's first round has to be that of the same jobs one after another.
"""

import argparse
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmark.errors import FsslError
from benchmark.federated.environment import weights_of
from benchmark.files import write_atomically
from benchmark.records.cpu_clock import _children, tree_seconds
from benchmark.records.provenance import PACKAGES, commit, hardware
from tests.conftest import ROOT
from tests.performance.peers.work import Setup, Weights, by_hand, network_for
from tests.performance.works import WORKS

TOLERANCE = 1e-5  # of any weight
# The pool's products and SGD round otherwise than a plain step, and over 16 steps of 64 images some activation falls to
# the other side (2e-5 was seen on work A, and 5e-4 on B with a single client). That it is the same step is tested with
# the engines.
OURS = 1e-3
PATIENCE = 300.0  # seconds for a driver to start
# For everyone: no accelerator, nothing sent home.
COMMON = {
    "CUDA_VISIBLE_DEVICES": "",
    "FLWR_TELEMETRY_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PFL_PYTORCH_DEVICE": "cpu",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# What `benchmark.federated.machine` sets in our own processes.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
}


@dataclass(frozen=True, kw_only=True)
class Contender:
    name: str
    driver: str  # its module
    python: Path
    tuned: bool  # with our order of memory and allocator
    processes: int = 2  # that train at the same time; 0: its only one
    threads: int = 1  # of each

    @property
    def tolerance(self) -> float:
        return OURS if self.driver == "ours" or self.threads > 1 else TOLERANCE

    def command(self, setup: Setup) -> list[str]:
        launch = ["-m", f"tests.performance.peers.{self.driver}"]
        if self.driver == "pfl":
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={setup.processes}", *launch]
        return [str(self.python), *launch, json.dumps(asdict(setup))]


class Driver:
    """A contender at work. Raises FsslError where it ends before its time."""

    def __init__(self, contender: Contender, process: "subprocess.Popen[bytes]", log: Path, theirs: Listener) -> None:
        self.name, self._process, self._log = contender.name, process, log
        self._connection = self._accepted(theirs)
        self.versions: dict[str, str] = self._answer()

    def round(self) -> tuple[float, float, Any]:
        """Run a round; return its wall seconds, the CPU seconds of all its processes, and the mean if it is the first
        round.
        """
        wall, cpu = time.perf_counter(), tree_seconds(self._process.pid)
        self._connection.send(None)
        mean = self._answer()
        return time.perf_counter() - wall, tree_seconds(self._process.pid) - cpu, mean

    def _accepted(self, theirs: Listener) -> Connection:
        theirs._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]  # it has no public one
        for _ in range(int(PATIENCE)):
            if self._process.poll() is not None:
                break
            try:
                return theirs.accept()
            except TimeoutError:
                continue
        raise self._gone()

    def _answer(self) -> Any:
        try:
            while not self._connection.poll(1.0):
                if self._process.poll() is not None:
                    raise self._gone()
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._gone() from None

    def _gone(self) -> FsslError:
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
        return FsslError(f"{self.name}: its driver ended or did not begin; its last lines:\n{last}")


@contextmanager
def started(contender: Contender, setup: Setup, folder: Path) -> Iterator[Driver]:
    log, address = folder / f"{contender.name}.log", str(folder / f"{contender.name}.socket")
    setup = replace(
        setup,
        processes=contender.processes,
        threads=contender.threads,
        channels_last=contender.tuned and contender.driver != "ours",
        address=address,
    )
    variables = {**os.environ, **COMMON, **(KEEP_FREED_MEMORY if contender.tuned else {}), "PYTHONPATH": str(ROOT)}
    with Listener(address, family="AF_UNIX") as listener, log.open("wb") as written:
        process = subprocess.Popen(
            contender.command(setup), cwd=ROOT, env=variables, stdout=written, stderr=subprocess.STDOUT
        )
        try:
            yield Driver(contender, process, log, listener)
        finally:
            for pid in reversed(tree(process.pid)):
                try:
                    os.kill(pid, 15)
                except ProcessLookupError:
                    continue
            process.wait(30)


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants, parents first."""
    return [pid, *(one for child in _children(pid) for one in tree(child))]


def difference(mean: Mapping[str, Any], wanted: Weights) -> float:
    """Return the largest difference of all weights. Raise FsslError if the names differ."""
    if mean.keys() != wanted.keys():
        raise FsslError(f"the weights have other names: {sorted(mean.keys() ^ wanted.keys())}")
    return max(float(np.abs(mean[name] - value.numpy()).max()) for name, value in wanted.items())


Laps = list[tuple[float, float]]  # wall and CPU seconds of each round


def figures(taken: Laps, ours: Laps) -> dict[str, dict[str, float]]:
    """Return the seconds per round, and the ratios to our round in the same turn: above 1, we are faster."""
    columns = {"": taken, "ratio": [(w / our_w, c / our_c) for (w, c), (our_w, our_c) in zip(taken, ours, strict=True)]}
    (walls, cpus), (ratios, cpu_ratios) = (zip(*rows, strict=True) for rows in columns.values())
    found = {"wall_seconds": walls, "cpu_seconds": cpus, "ratio": ratios, "cpu_ratio": cpu_ratios}
    return {name: {"median": median(v), "least": min(v), "most": max(v)} for name, v in found.items()}


def measured(work: str, who: Sequence[Contender], rounds: int, small: bool) -> dict[str, Any]:
    setup = Setup(work=work, rounds=1 + rounds, processes=2, small=small)
    wanted = {order: by_hand(replace(setup, channels_last=order)) for order in (False, True)}
    begun = weights_of(network_for(setup))
    change = max(float((value - begun[name]).abs().max()) for name, value in wanted[False].items())
    rows: dict[str, Any] = {}
    times: dict[str, Laps] = {one.name: [] for one in who}
    order = random.Random(0)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        drivers = [(one, stack.enter_context(started(one, setup, Path(folder)))) for one in who]
        for number in range(setup.rounds):
            for one, driver in order.sample(drivers, len(drivers)):
                wall, cpu, mean = driver.round()
                print(f"{work}, round {number}: {one.name} {wall:.2f} s, {cpu:.2f} CPU s", file=sys.stderr, flush=True)
                if number:
                    times[one.name].append((wall, cpu))
                    continue
                off = difference(mean, wanted[one.tuned])
                if not off <= one.tolerance:
                    raise FsslError(f"{one.name}: a weight of its mean is off by {off:.1e}: it is not the same work")
                rows[one.name] = {"versions": driver.versions, "difference": off}
    for name, taken in times.items():
        rows[name] |= figures(taken, times["ours"])
    samples = WORKS[work].samples if not small else None
    return {"what": WORKS[work].what, "samples": samples, "largest_change": change, "rows": rows}


def options_of(text: str | None) -> argparse.ArgumentParser:
    """Return the options that every comparison has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=sorted(WORKS))
    parser.add_argument("--rounds", type=int, default=5, help="of each contender, after one more")
    parser.add_argument("--small", action="store_true", help="two clients, few images: shows that everything runs")
    parser.add_argument("--json", type=Path, help="file for the result")
    return parser


def compare(who: Sequence[Contender], options: argparse.Namespace) -> None:
    """Prints a line for each contender and work, and writes what is measured."""
    torch.set_num_threads(1)
    contenders = {one.name: {"processes": one.processes, "threads": one.threads} for one in who}
    packages = {package: importlib.metadata.version(package) for package in PACKAGES}
    found: dict[str, Any] = {
        "what": "seconds a round, and ratios to our round of the same turn: above 1, we are faster",
        "contenders": contenders,
        "rounds": options.rounds,
        "code": commit(),
        "hardware": hardware(),
        "packages": packages,
        "load_before": list(os.getloadavg()),
        "works": {},
    }
    try:
        for work in options.work:
            found["works"][work] = measured(work, who, options.rounds, options.small)
            for name, row in found["works"][work]["rows"].items():
                ratio = "{median:.2f} ({least:.2f} to {most:.2f})".format_map(row["ratio"])
                cpu, wall = row["cpu_ratio"]["median"], row["wall_seconds"]["median"]
                print(f"{work}  {name:28} {wall:6.2f} s  {ratio}  CPU {cpu:.2f}", flush=True)
            found["load_after"] = list(os.getloadavg())
            if options.json:  # what is measured so far, if this is broken off
                write_atomically(options.json, (json.dumps(found, indent=1) + "\n").encode())
    except FsslError as error:
        sys.exit(str(error))
