"""The lock of a run: the file `claim` in its folder, which names the process that works at the run.

    claim    {"token": a random name of this attempt, "machine": ..., "pid": ..., "started": ...}

It is made by O_EXCL. Its file time, moved by its holder, is the heartbeat. Where the holder is gone from this machine,
or silent for `PATIENCE` seconds, another process takes the lock over by an atomic replace; of a silent one it waits
for a beat first, since a clock that jumps makes each beat before it look old. The holder looks for its own token before
each save and before it publishes, and ends with 75 where it is gone: taken over, or the folder was removed or renamed.

A run is done once as a rule. Where a process was held for dead and wakes, the same numbers are computed twice, and one
result stands: runs are deterministic, so that this wastes time and harms nothing.
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
PATIENCE = 120.0  # seconds without a heartbeat; network file systems hold file times back for 60 s
SECONDS_TO_SETTLE = 0.2  # two processes may take a lock over in the same moment: the second one has it
AT_IT, SILENT = "another process is at this run; wait for it or stop it", "no heartbeat"


class RunLockLost(RunningElsewhere):
    """The run is another process's now, or its folder is gone: what this process does no longer counts."""


@dataclass(frozen=True)
class RunLock:
    """The right to work at the run in `folder`. `after`: why the holder before lost it (None: there was none)."""

    folder: Path
    token: str
    after: str | None

    def is_own(self) -> bool:
        """Opening the file asks the server of a network folder, too."""
        return (read(self.folder) or {}).get("token") == self.token

    def check(self) -> None:
        """Raises RunLockLost."""
        if not self.is_own():
            raise RunLockLost(
                f"{self.folder}: another process took this run over, or its folder was removed; call again"
            )


def read(folder: Path) -> dict[str, Any] | None:
    """Return the content of the lock's file; None without one, {} if it is damaged or just being written."""
    try:
        content: dict[str, Any] | None = read_json(folder / NAME)
        return content
    except (DataError, OSError):
        return {}


def is_held(folder: Path, patience: float = PATIENCE) -> bool:
    return _older_version(folder, patience) or (read(folder) is not None and not why_dead(folder, patience))


def refuse_if_held(folder: Path, patience: float) -> None:
    """Raises RunningElsewhere where another process is at the run."""
    if is_held(folder, patience):
        raise RunningElsewhere(f"{folder}: {AT_IT}")


def why_dead(folder: Path, patience: float = PATIENCE) -> str | None:
    """Why the run's holder counts as dead; None where it does not, or there is none."""
    if (content := read(folder)) is None:
        return None
    if is_gone(content):
        return "its process is gone"
    return None if _beats(folder / NAME, patience) else SILENT


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
    fields = fields_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


@contextlib.contextmanager
def locked(folder: Path, *, patience: float = PATIENCE, beat: float = BEAT) -> Iterator[RunLock]:
    """Hold the run's folder, with a heartbeat each `beat` seconds.

    Raises RunningElsewhere where another process is at the run, ClaimLost where one has taken it over, CannotWrite
    where the folder cannot be written.
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
        lock.check()  # whatever fails in a run that was taken over does so because its files are another's
        raise
    finally:
        ended.set()
        heart.join()
        with contextlib.suppress(OSError):
            if lock.is_own():
                (folder / NAME).unlink()


def _take(folder: Path, patience: float, watched: float) -> RunLock:
    """`watched`: seconds in which a live holder beats. Raises RunningElsewhere, RunLockLost, OSError."""
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
    except OSError:  # a full disk takes a name, but no content
        (folder / NAME).unlink(missing_ok=True)
        raise
    return lock


def _older_version(folder: Path, patience: float) -> bool:
    """Whether a process of version 0.1.0 is at the run. Its numbered files under `leases` beat as a lock does."""
    with contextlib.suppress(OSError):
        for path in (folder / "leases").glob("[0-9]*"):
            if b'"process"' in path.read_bytes() and _beats(path, patience):
                return True
    return False


def _beats(path: Path, patience: float) -> bool:
    """Whether the file was touched less than `patience` seconds ago.

    Ages are taken against a file touched now on the same file system, so that clocks of machines may differ. A time
    that far in the future was set before a clock was put back, and counts as little as an old one.
    """
    if (beat := _touched(path)) is None:
        return False
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now.", suffix=TEMPORARY) as file:
            os.utime(file.name)
            now = os.fstat(file.fileno()).st_mtime
    except OSError:  # nothing can be written here, and so nothing be taken over
        now = time.time()
    return abs(now - beat) < patience


def _is_touched(path: Path, seconds: float) -> bool:
    """Whether another process touches the file within so many seconds."""
    first, until = _touched(path), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(0.2, seconds))
        if _touched(path) != first:
            return True
    return False


def _touched(path: Path) -> float | None:
    """When it was touched last; opening it asks the server of a network folder."""
    try:
        with open(path) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def _keep_beating(lock: RunLock, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds):
        with contextlib.suppress(OSError):  # a folder that is away for a while: the next beat may reach it
            if lock.is_own():
                os.utime(lock.folder / NAME)
