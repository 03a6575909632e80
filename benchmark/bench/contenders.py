"""Who takes part in `fssl bench`, and rounds of each in turn.

In turn, round by round, so that a busy machine slows all of them, and in a new random order each time, since who comes
after whom decides what caches hold. Ratios are medians of ratios of the same turn.
"""

import contextlib
import importlib.util
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from benchmark.bench.works import WORKS, Work, environment_of, quick
from benchmark.errors import ConfigError, FsslError
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool

PLAIN_LOOP = Path(__file__).resolve().parents[2] / "tests" / "performance" / "plain_loop.py"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much is measured, and with what."""

    rounds: int = 5  # counted, after one to warm up
    workers: int  # of the pool
    threads: int  # of the plain loop
    quick: bool = False
    say: Callable[[str], None] = print  # one line of progress


class Contender(Protocol):
    """Something that can do a round of a work."""

    @property
    def pids(self) -> Sequence[int]:
        """Its processes beside this one."""
        ...

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
    """The plain loop (`tests/performance/plain_loop.py`) with a thread for each core, in a process of its own: an
    engine's settings (one thread, an allocator that keeps freed memory) are not what a user of plain PyTorch has.

    Raises FsslError where the checkout's tests are not there, or the loop ended.
    """

    def __init__(self, work: Work, threads: int) -> None:
        if not PLAIN_LOOP.exists():
            raise FsslError(f"fssl bench: {PLAIN_LOOP.name} is not here; run it in a checkout, which has tests/")
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, work, threads), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    @property
    def pids(self) -> Sequence[int]:
        assert self._process.pid is not None  # it has been started
        return (self._process.pid,)

    def round(self, number: int) -> None:
        self._connection.send(number)
        self._answer()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()  # it holds nothing
        self._process.join(timeout=5)

    def _answer(self) -> None:
        try:
            self._connection.recv()
        except EOFError:
            raise FsslError("fssl bench: the plain loop's process ended; see its traceback above") from None


def serve(connection: Connection, work: Work, threads: int) -> None:
    """The plain loop's process: a round for every number that comes, until the pipe closes."""
    torch.set_num_threads(threads)
    loop = plain_loop().loop_of(environment_of(work))
    with contextlib.suppress(EOFError, OSError):  # nobody asks any more
        connection.send(None)
        while True:
            number = connection.recv()
            loop.round(range(work.cohort))
            connection.send(number)


def plain_loop() -> ModuleType:
    """The module of the plain loop, from its file: `tests` is no package of the project."""
    name = "fssl_plain_loop"
    spec = importlib.util.spec_from_file_location(name, PLAIN_LOOP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def ratios(name: str, options: Options) -> dict[str, Any]:
    """Rounds of a work by the plain loop and by the engines, all samples confident, in turn."""
    work = quick(WORKS[name]) if options.quick else WORKS[name]
    environment = environment_of(work)
    with ExitStack() as stack:
        plain = PlainContender(work, options.threads)
        stack.callback(plain.close)
        pool = stack.enter_context(ProcessPool(environment, options.workers))
        contenders: dict[str, Contender] = {
            "plain loop": plain,
            "reference": EngineContender(environment, ReferenceEngine(environment), options.threads),
            "pool": EngineContender(environment, pool),
        }
        times = interleave(contenders, options.rounds, say=options.say)
    rows = {label: figures(found, times["plain loop"], work.samples) for label, found in times.items()}
    return {"what": work.what, "rounds": options.rounds, "samples": work.samples, "contenders": rows}


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of each counted round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def interleave(
    contenders: Mapping[str, Contender], rounds: int, warm_up: int = 1, say: Callable[[str], None] = lambda line: None
) -> dict[str, Times]:
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
            say(f"round {number} of {warm_up + rounds}: {name} {wall:.2f} s")
    return times


def require_proc() -> None:
    """CPU seconds are read from /proc. Raises ConfigError where there is none."""
    if not Path("/proc/self/stat").exists():
        raise ConfigError("fssl bench reads CPU seconds from /proc, which only Linux has")


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
