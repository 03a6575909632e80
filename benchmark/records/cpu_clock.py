"""Processes: told apart among all machines that share a folder, and CPU seconds of them and their children."""

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")  # a second


def this_process() -> dict[str, Any]:
    """{"machine": a hash, "pid", "started": clock ticks since the machine's start}. No host is named.

    The start tells a process from a later one with the same number.
    """
    pid = os.getpid()
    return {"machine": _machine(), "pid": pid, "started": _started(pid)}


def is_gone(process: Mapping[str, Any]) -> bool:
    """Whether it is a process of this machine that has ended; False where it may be on another."""
    if process.get("machine") is None or process["machine"] != _machine():
        return False
    return process.get("started") is None or _started(process.get("pid")) != process["started"]


def _machine() -> str | None:
    """The same for processes that see each other's numbers; None where the system does not say (no /proc)."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


def _started(pid: object) -> int | None:
    """None where the process has ended, also where its parent has not waited for it yet."""
    fields = _fields_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def _fields_of(pid: object) -> list[str]:
    """The fields of /proc/PID/stat from proc(5)'s third on; empty where the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def tree_seconds(pid: int) -> float:
    """User and system seconds of a process and of its children, living and ended; 0.0 where it is gone."""
    own = sum(int(field) for field in _fields_of(pid)[11:15]) / _TICKS  # utime to cstime: with children that ended
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
