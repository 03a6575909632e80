"""How fast the engines are on this machine, compared with a plain loop.

    python -m tests.performance.engines [--work A B] [--rounds 5] [--json results/benchmarks/engines.json]
    python -m tests.performance.engines --device cuda       local steps there, as a table to paste into an issue

Rounds are taken in turn, so that a busy machine slows all of them, and in a new random order each time, since who comes
after whom decides what caches hold. Ratios are medians of ratios of the same turn. CPU seconds are read from /proc
(Linux). Other programs disturb it: the load averages are in the file.
"""

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, get_args

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Precision
from benchmark.federated.devices import devices_named
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.start import CPU, usable_cores
from benchmark.records.files import write_atomically
from benchmark.records.provenance import PACKAGES, commit, hardware
from tests.performance import local_steps
from tests.performance.plain_loop import PlainLoop
from tests.performance.works import WORKS, Work, environment_of, quick


class Contender(Protocol):
    """Something that can do a round of a work."""

    @property
    def pids(self) -> Sequence[int]: ...  # its processes other than this one

    def round(self, number: int) -> None: ...


class EngineContender:
    """A run of its own over an engine; `threads` of this process while it runs."""

    def __init__(self, environment: Environment, engine: Engine, threads: int = 1) -> None:
        self.module = FederatedModule(environment, engine)
        self._threads = threads
        self.pids: Sequence[int] = engine.pids if isinstance(engine, ProcessPool) else ()

    def round(self, number: int) -> None:
        torch.set_num_threads(self._threads)
        self.module.training_step(number, 0)


class PlainContender:
    """The plain loop with a thread for each core, in a process of its own.

    An engine's settings (one thread, an allocator that keeps freed memory) are not what a user of plain PyTorch has.
    Raises EOFError where its process ended.
    """

    def __init__(self, work: Work, threads: int) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, work, threads), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()
        self.pids: Sequence[int] = (self._process.pid or 0,)

    def round(self, number: int) -> None:
        self._connection.send(number)
        self._connection.recv()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()  # it holds nothing
        self._process.join(timeout=5)


def serve(connection: Connection, work: Work, threads: int) -> None:
    """The plain loop's process: a round for every number that comes, until the pipe closes."""
    torch.set_num_threads(threads)
    loop = PlainLoop(environment_of(work))
    with suppress(EOFError, OSError):  # nobody asks any more
        connection.send(None)
        while True:
            number = connection.recv()
            loop.round(range(work.cohort))
            connection.send(number)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of each counted round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def interleave(contenders: Mapping[str, Contender], rounds: int, warm_up: int = 1) -> dict[str, Times]:
    """Rounds 1, 2, ... of each, in an order that is drawn anew for every round; the first `warm_up` are not counted."""
    times, order = {name: Times() for name in contenders}, random.Random(0)
    for number in range(1, warm_up + rounds + 1):
        for name, contender in order.sample(list(contenders.items()), len(contenders)):
            cpu, wall = cpu_seconds(contender.pids), time.perf_counter()
            contender.round(number)
            wall, cpu = time.perf_counter() - wall, cpu_seconds(contender.pids) - cpu
            if number > warm_up:
                times[name].wall.append(wall)
                times[name].cpu.append(cpu)
            print(f"round {number} of {warm_up + rounds}: {name} {wall:.2f} s", file=sys.stderr, flush=True)
    return times


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system seconds of this process and of these, to 10 ms."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick  # utime and stime, proc(5)
    return total


def figures(times: Times, yardstick: Times, samples: int) -> dict[str, Any]:
    """One contender's row: seconds a round, samples a second, ratios to the yardstick (above 1: faster)."""
    return {
        "wall_seconds": spread(times.wall),
        "cpu_seconds": spread(times.cpu),
        "ratio": spread([theirs / ours for theirs, ours in zip(yardstick.wall, times.wall, strict=True)]),
        "cpu_ratio": spread([theirs / ours for theirs, ours in zip(yardstick.cpu, times.cpu, strict=True)]),
        "samples_per_second": samples / statistics.median(times.wall),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and the least and the most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def measured(work: Work, rounds: int, workers: int, threads: int) -> dict[str, Any]:
    """Rounds of a work by the plain loop and by the engines, all samples confident, in turn."""
    environment = environment_of(work)
    with ExitStack() as stack:
        plain = PlainContender(work, threads)
        stack.callback(plain.close)
        pool = stack.enter_context(ProcessPool(environment, workers))
        contenders: dict[str, Contender] = {
            "plain loop": plain,
            "reference": EngineContender(environment, ReferenceEngine(environment), threads),
            "pool": EngineContender(environment, pool),
        }
        times = interleave(contenders, rounds)
    rows = {label: figures(of_one, times["plain loop"], work.samples) for label, of_one in times.items()}
    return {"what": work.what, "rounds": rounds, "samples": work.samples, "contenders": rows}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=sorted(WORKS), default=sorted(WORKS))
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each, after one more")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="of the pool (default: one a core)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of the plain loop (default: one a core)")
    parser.add_argument("--quick", action="store_true", help="tiny works: shows that everything runs, means nothing")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--device", help="cuda, cuda:1 or cpu: what local steps cost there, and nothing else")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32", help="of these local steps")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.device is not None:
        try:
            (device,) = devices_named(options.device) or (CPU,)
            for line in local_steps.table(device, options.precision, options.rounds, options.quick):
                print(line, flush=True)
        except ConfigError as error:
            sys.exit(str(error))
        return
    given = [f"--{name} {getattr(options, name)}" for name in ("rounds", "workers", "threads")]
    results: dict[str, Any] = {
        "command": " ".join(["python -m tests.performance.engines --work", *options.work, *given]),
        "quick": options.quick,
        "code": commit(),
        "hardware": hardware(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        "load_before": list(os.getloadavg()),
        "ratios": {},
    }
    for name in options.work:
        work = quick(WORKS[name]) if options.quick else WORKS[name]
        results["ratios"][name] = measured(work, options.rounds, options.workers, options.threads)
        results["load_after"] = list(os.getloadavg())
        for label, row in results["ratios"][name]["contenders"].items():
            ratio = "{median:.2f} ({least:.2f} to {most:.2f})".format_map(row["ratio"])
            cpu, wall = row["cpu_ratio"]["median"], row["wall_seconds"]["median"]
            print(f"{name}  {label:12} {wall:6.2f} s  {ratio}  CPU {cpu:.2f}", flush=True)
        if options.json:  # what is measured so far, if this is broken off
            write_atomically(options.json, (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())


if __name__ == "__main__":
    main()
