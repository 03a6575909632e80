"""Measures CPU seconds of processes and their children."""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")  # a second


def fields_of(pid: object) -> list[str]:
    """The fields of /proc/PID/stat from proc(5)'s third on; empty where the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def tree_seconds(pid: int) -> float:
    """User and system seconds of a process and of its children, living and ended; 0.0 where it is gone."""
    own = sum(int(field) for field in fields_of(pid)[11:15]) / _TICKS  # utime to cstime: with children that ended
    return own + sum(map(tree_seconds, _children(pid)))


def _children(pid: int) -> Iterator[int]:
    """The living children, whichever thread started them."""
    for path in glob.glob(f"{PROC}/{pid}/task/*/children"):
        with suppress(OSError):  # the thread has ended
            yield from map(int, Path(path).read_text().split())


class Clock(Protocol):
    """Says how many CPU seconds a run took since it was read last."""

    def lap(self) -> float: ...


class CpuClock:
    """CPU seconds of this process and its children since it was made, or since it was last read.

    Where the system does not tell of living children (no /proc), theirs are missing until they end.
    """

    def __init__(self) -> None:
        self._read = self._seconds()

    def lap(self) -> float:
        before, self._read = self._read, self._seconds()
        return max(0.0, self._read - before)

    def _seconds(self) -> float:
        return sum(os.times()[:4]) + sum(map(tree_seconds, _children(os.getpid())))
