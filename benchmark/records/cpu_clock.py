"""Measure the CPU seconds of processes and their children."""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")  # per second


def fields_of(pid: object) -> list[str]:
    """Return the fields of /proc/PID/stat, from the third field of proc(5) on; empty if the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def tree_seconds(pid: int) -> float:
    """Return the user and system seconds of a process and its children, living and ended; 0.0 if it is gone."""
    # Utime to cstime, which include children that ended.
    own = sum(int(field) for field in fields_of(pid)[11:15]) / _TICKS
    return own + sum(map(tree_seconds, _children(pid)))


def _children(pid: int) -> Iterator[int]:
    """Yield the living children, whichever thread started them."""
    for path in glob.glob(f"{PROC}/{pid}/task/*/children"):
        with suppress(OSError):  # the thread has ended
            yield from map(int, Path(path).read_text().split())


class Clock(Protocol):
    """A clock that returns the CPU seconds of a run since its last reading."""

    def lap(self) -> float: ...


class CpuClock:
    """A clock for this process and its children, which starts when it is created.

    If the system does not list living children (no /proc), their time is missing until they end.
    """

    def __init__(self) -> None:
        self._read = self._seconds()

    def lap(self) -> float:
        before, self._read = self._read, self._seconds()
        return max(0.0, self._read - before)

    def _seconds(self) -> float:
        return sum(os.times()[:4]) + sum(map(tree_seconds, _children(os.getpid())))
