"""Which process something belongs to, so that another one on the same machine can tell whether it is still there."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process among all that machines sharing a folder ever ran. It names no host and no person."""

    machine: str | None  # a hash of this boot and of the process numbers' name space; None: this system does not tell
    pid: int
    started: int  # clock ticks since the machine's start: tells it from a later process with the same number

    def to_json(self) -> dict[str, Any]:
        return {"machine": self.machine, "pid": self.pid, "started": self.started}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Process":
        return cls(machine=data["machine"], pid=data["pid"], started=data["started"])

    def is_working(self) -> bool | None:
        """False where it is gone, True where it is there; None where that cannot be told from here: another machine's,
        or one that is stopped (SIGSTOP), which may go on or never."""
        if self.machine is None or self.machine != machine():
            return None
        found = _state_and_start(self.pid)
        if found is None or found[0] in "ZX" or found[1] != self.started:
            return False
        return None if found[0] in "Tt" else True


def this_process() -> Process:
    found = _state_and_start(os.getpid())
    return Process(machine=machine() if found else None, pid=os.getpid(), started=found[1] if found else 0)


def machine() -> str | None:
    """16 hexadecimal digits, the same for processes that see each other's numbers."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        names = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {names}".encode()).hexdigest()[:16]


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """The state's letter and the start in clock ticks (proc(5), fields 3 and 22); None where there is none."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
