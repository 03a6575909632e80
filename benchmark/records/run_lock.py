"""Lock a run for one process with the file `claim` in its folder.

    claim    {"token": a random name of this attempt, "machine": ..., "pid": ..., "started": ...}

The file is created with O_EXCL. Its modification time, which the owner updates, is the heartbeat.
If the owner's process on this machine has ended, or if there was no heartbeat for `PATIENCE`
seconds, another process replaces the lock atomically. In the second case it first waits for a
heartbeat, since a clock that jumps makes earlier heartbeats look old. The owner checks that the
file still has its token before each save and before it publishes. If not, because the lock was
taken over or the folder was removed or renamed, it ends with exit code 75.

A run is normally done once. If a process that was presumed dead wakes up, two processes compute the
same numbers, and one result remains: runs are deterministic, so that this wastes time but does no
harm.
"""

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import DataError, RunningElsewhere
from benchmark.files import TEMPORARY, cannot_write, read_json, write_atomically
from benchmark.records.cpu_clock import PROC, fields_of

NAME = "claim"
BEAT = 10.0  # seconds between heartbeats
PATIENCE = 120.0  # seconds without a heartbeat; network file systems delay modification times by up to 60 s
SECONDS_TO_SETTLE = 0.2  # two processes may take a lock over at the same moment: the second one gets it
AT_IT = "another process is working on this run; wait for it or stop it"
SILENT = "no heartbeat"


class RunLockLost(RunningElsewhere):
    """Raised if another process has taken the run over, or its folder is gone, so that this
    process's work no longer counts.
    """


@dataclass(frozen=True)
class RunLock:
    """The right to work on the run in `folder`. `after` is the reason why the previous owner lost
    it, or None without one.
    """

    folder: Path
    token: str
    after: str | None

    def is_own(self) -> bool:
        """Return whether the file has this lock's token; opening it also queries the server of a network folder."""
        return (read(self.folder) or {}).get("token") == self.token

    def check(self) -> None:
        """Raise RunLockLost if the lock belongs to another process."""
        if not self.is_own():
            raise RunLockLost(
                f"another process took over the run in {self.folder}, or its folder was removed; type the command again"
            )


def read(folder: Path) -> dict[str, Any] | None:
    """Return the content of the lock's file, {} if it is damaged or being written, and None without a file."""
    try:
        content: dict[str, Any] | None = read_json(folder / NAME)
        return content
    except (DataError, OSError):
        return {}


def is_held(folder: Path, patience: float = PATIENCE) -> bool:
    return _older_version(folder, patience) or (read(folder) is not None and not why_dead(folder, patience))


def refuse_if_held(folder: Path, patience: float) -> None:
    """Raise RunningElsewhere if another process is working on the run."""
    if is_held(folder, patience):
        raise RunningElsewhere(f"{folder}: {AT_IT}")


def why_dead(folder: Path, patience: float = PATIENCE) -> str | None:
    """Return why the owner of the lock counts as dead, or None if it is alive or does not exist."""
    if (content := read(folder)) is None:
        return None
    if is_gone(content):
        return "its process is gone"
    return None if _beats(folder / NAME, patience) else SILENT


def this_process() -> dict[str, Any]:
    """Return {"machine": a hash, "pid", "started": clock ticks since the machine's start}, without a host name.

    The start distinguishes a process from a later one with the same number.
    """
    pid = os.getpid()
    return {"machine": _machine(), "pid": pid, "started": _started(pid)}


def is_gone(process: Mapping[str, Any]) -> bool:
    """Return whether it is a process of this machine that has ended; False if it may be on another machine."""
    if process.get("machine") is None or process["machine"] != _machine():
        return False
    return process.get("started") is None or _started(process.get("pid")) != process["started"]


def _machine() -> str | None:
    """Return a hash that processes share if they see each other's numbers; None on a system without
    /proc.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


def _started(pid: object) -> int | None:
    """Return the process's start, or None if it has ended, even if its parent has not waited for it yet."""
    fields = fields_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


@contextlib.contextmanager
def locked(folder: Path, *, patience: float = PATIENCE, beat: float = BEAT) -> Iterator[RunLock]:
    """Lock the run's folder, with a heartbeat every `beat` seconds.

    Raise RunningElsewhere if another process is working on the run, RunLockLost if one has taken it
    over, and CannotWrite if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _take(folder, patience, min(patience, 1.5 * beat))
    except OSError as error:
        raise cannot_write(folder, error) from None
    ended = threading.Event()
    heart = threading.Thread(target=_keep_beating, args=(lock, beat, ended), daemon=True)
    heart.start()
    try:
        yield lock
    except Exception:
        lock.check()  # after a takeover, any error can be due to files that now belong to another process
        raise
    finally:
        ended.set()
        heart.join()
        with contextlib.suppress(OSError):
            if lock.is_own():
                (folder / NAME).unlink()


def _take(folder: Path, patience: float, watched: float) -> RunLock:
    """Create the lock, or take it over; a live owner beats within `watched` seconds.

    Raise RunningElsewhere, RunLockLost or OSError.
    """
    refuse_if_held(folder, patience)
    why = why_dead(folder, patience)
    if why == SILENT and _is_touched(folder / NAME, watched):
        raise RunningElsewhere(f"{folder}: {AT_IT}")
    lock = RunLock(folder, secrets.token_hex(8), why)
    content = json.dumps({"token": lock.token, **this_process()}).encode()
    if why is not None:
        write_atomically(folder / NAME, content)
        time.sleep(SECONDS_TO_SETTLE)
        lock.check()
        return lock
    try:
        with open(folder / NAME, "xb") as file:
            file.write(content)
    except FileExistsError:  # another process was faster
        raise RunningElsewhere(f"{folder}: {AT_IT}") from None
    except OSError:  # on a full disk, the file is created without its content
        (folder / NAME).unlink(missing_ok=True)
        raise
    return lock


def _older_version(folder: Path, patience: float) -> bool:
    """Return whether a process of version 0.1.0 is working on the run; its files under `leases`
    have heartbeats like a lock.
    """
    with contextlib.suppress(OSError):
        for path in (folder / "leases").glob("[0-9]*"):
            if b'"process"' in path.read_bytes() and _beats(path, patience):
                return True
    return False


def _beats(path: Path, patience: float) -> bool:
    """Return whether the file was touched less than `patience` seconds ago.

    Its age is relative to a file that is touched now on the same file system, so that the machines'
    clocks may differ. A time that far in the future was set before a clock was put back, and counts
    as old.
    """
    if (beat := _touched(path)) is None:
        return False
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now.", suffix=TEMPORARY) as file:
            os.utime(file.name)
            now = os.fstat(file.fileno()).st_mtime
    except OSError:  # the folder is not writable, so that nothing can be taken over
        now = time.time()
    return abs(now - beat) < patience


def _is_touched(path: Path, seconds: float) -> bool:
    """Return whether another process touches the file within this number of seconds."""
    first = _touched(path)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(0.2, seconds))
        if _touched(path) != first:
            return True
    return False


def _touched(path: Path) -> float | None:
    """Return when the file was last touched; opening it queries the server of a network folder."""
    try:
        with open(path) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def _keep_beating(lock: RunLock, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds):
        with contextlib.suppress(OSError):  # the folder is unavailable for a while, and the next heartbeat may reach it
            if lock.is_own():
                os.utime(lock.folder / NAME)
