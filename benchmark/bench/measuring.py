"""Rounds of several contenders in turn, timed by the wall and by CPU seconds of all their processes; what is told.

In turn, round by round, so that a busy machine slows all of them; ratios are medians of ratios of the same turn.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmark.errors import ConfigError

Say = Callable[[str], None]  # one line of progress


class Contender(Protocol):
    """Something that can do a round of a work."""

    @property
    def pids(self) -> Sequence[int]:
        """Its processes beside this one."""
        ...

    def round(self, number: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of each counted round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def require_proc() -> None:
    """CPU seconds and memory are read from /proc. Raises ConfigError where there is none."""
    if not Path("/proc/self/stat").exists():
        raise ConfigError("fssl bench reads CPU seconds and memory from /proc: a Linux machine would be right")


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system seconds of this process and of these, to 10 ms."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick  # utime and stime, proc(5)
    return total


def interleave(
    contenders: Mapping[str, Contender], rounds: int, warm_up: int = 1, say: Say = lambda line: None
) -> dict[str, Times]:
    """Rounds 1, 2, ... of each in turn; the first `warm_up` are not counted."""
    times = {name: Times() for name in contenders}
    for number in range(1, warm_up + rounds + 1):
        for name, contender in contenders.items():
            wall, cpu = timed(lambda: contender.round(number), contender.pids)  # noqa: B023  # run at once
            if number > warm_up:
                times[name].wall.append(wall)
                times[name].cpu.append(cpu)
            say(f"round {number} of {warm_up + rounds}: {name} {wall:.2f} s")
    return times


def timed(work: Callable[[], object], pids: Sequence[int] = ()) -> tuple[float, float]:
    """Wall and CPU seconds of a call, with those of these processes."""
    cpu, wall = cpu_seconds(pids), time.perf_counter()
    work()
    return time.perf_counter() - wall, cpu_seconds(pids) - cpu


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and the least and the most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratio(yardstick: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """Of the paired ratios yardstick / ours: above 1 is faster than the yardstick."""
    return spread([theirs / mine for theirs, mine in zip(yardstick, ours, strict=True)])


def figures(times: Times, yardstick: Times, flops: float, samples: int) -> dict[str, Any]:
    """One contender's row: seconds a round, ratios to the yardstick, samples and FLOPs a second."""
    median = statistics.median(times.wall)
    return {
        "rounds": len(times.wall),
        "wall_seconds": spread(times.wall),
        "cpu_seconds": spread(times.cpu),
        "ratio": ratio(yardstick.wall, times.wall),
        "cpu_ratio": ratio(yardstick.cpu, times.cpu),
        "samples_per_second": samples / median,
        "gflops": flops / median / 1e9,
    }


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """Seconds a round as a + b ceil((C + 1) / workers)."""

    a: float
    b: float
    workers: int

    def at(self, C: int) -> float:
        return self.a + self.b * self.steps(C)

    def steps(self, C: int) -> int:
        """Turns that the longest worker takes: C clients and the server, shared out."""
        return -(-(C + 1) // self.workers)


def fit_steps(seconds: Mapping[int, float], workers: int) -> StepFit:
    """Least squares of the relative errors over cohort sizes C, so that small cohorts count as much as large ones.

    Raises ValueError for fewer than two different numbers of turns.
    """
    bare = StepFit(a=0.0, b=0.0, workers=workers)
    design = np.array([[1.0 / t, bare.steps(C) / t] for C, t in seconds.items()])
    if len({bare.steps(C) for C in seconds}) < 2:
        raise ValueError("a line needs two different numbers of turns")
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(seconds)), rcond=None)
    return StepFit(a=float(a), b=float(b), workers=workers)
