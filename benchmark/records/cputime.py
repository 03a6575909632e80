"""CPU seconds of a process and of all that it started: what a run costs on a machine busy with other work."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from benchmark.records.processes import PROC, fields_of

_TICKS = os.sysconf("SC_CLK_TCK")  # a second


def cpu_seconds() -> float:
    """User and system seconds of this process and of its children, living and ended.

    Where the system does not tell of living children (no /proc), theirs are missing until they end.
    """
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in own) + sum(map(tree_seconds, _children(os.getpid())))


def tree_seconds(pid: int) -> float:
    """The same of another process; 0.0 where it is gone."""
    fields = fields_of(pid)
    own = sum(int(field) for field in fields[11:15]) / _TICKS  # utime to cstime: with children that ended
    return own + sum(map(tree_seconds, _children(pid)))


def _children(pid: int) -> Iterator[int]:
    """The living children, whichever thread started them."""
    try:
        threads: list[Path] = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            yield from map(int, (thread / "children").read_text().split())
        except OSError:
            continue


class CpuClock:
    """CPU seconds since it was made, or since it was last read."""

    def __init__(self) -> None:
        self._read = cpu_seconds()

    def lap(self) -> float:
        before, self._read = self._read, cpu_seconds()
        return max(0.0, self._read - before)
