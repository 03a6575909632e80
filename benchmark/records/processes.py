"""Tells processes apart among all machines that share a folder."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")


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


def fields_of(pid: object) -> list[str]:
    """The fields of /proc/PID/stat from proc(5)'s third on; empty where the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


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
    fields = fields_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None
