"""The claim of a run: one file in its folder says whose it is, and its file time is the holder's heartbeat.

    claim    {"token": a random name of this attempt, "machine": ..., "pid": ..., "started": ...}

It is made by O_EXCL and taken over by an atomic replace. Its holder looks for its own token before each save and before
the result is published, and ends with 75 where it is gone: taken over, or the folder removed or renamed.

A run is done once as a rule. Where a process was held for dead and wakes, the same numbers are computed twice, and one
result stands: runs are deterministic, so that this wastes time and harms nothing.

On its own machine a holder that is gone loses its claim at once, and one that is there keeps it unless it is stopped.
Otherwise its heartbeat counts. Ages are taken against a file touched now on the same file system, so that clocks of
machines may differ. The patience is longer than a network file system holds back file times (NFS: 60 s).
"""

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite, DataError, RunningElsewhere
from benchmark.records.files import TEMPORARY, bytes_of, json_object, write_atomically

NAME = "claim"
BEAT = 10.0  # seconds between heartbeats
PATIENCE = 120.0  # seconds without a heartbeat after which a run is taken over
SECONDS_TO_SETTLE = 0.2  # two processes that take a claim over in the same moment: the second one has it
PROC = Path("/proc")


class ClaimLost(RunningElsewhere):
    """The run is another process's now, or its folder is gone: what this process does no longer counts."""


class Claim:
    """The right to work at the run in `folder`. `after`: why the holder before lost it (None: there was none)."""

    def __init__(self, folder: Path, token: str, after: str | None = None) -> None:
        self.folder, self.token, self.after = folder, token, after

    def check(self) -> None:
        """Raises ClaimLost. Opening the file asks the server of a network folder, too."""
        if not self.is_own():
            raise ClaimLost(f"{self.folder}: another process took this run over, or its folder was removed; call again")

    def is_own(self) -> bool:
        return (read(self.folder) or {}).get("token") == self.token


def read(folder: Path) -> dict[str, Any] | None:
    """The claim's content; None where there is no claim, nothing for one that is damaged or just being written."""
    try:
        content = bytes_of(folder / NAME)
        return None if content is None else json_object(content, folder / NAME)
    except (DataError, OSError):
        return {}


def holder_of(folder: Path, patience: float = PATIENCE) -> str | None:
    """Who is at the run, in words; None where nobody is."""
    return None if _why_free(folder, patience) else _older_version(folder, patience) or "another process is at this run"


def is_held(folder: Path, patience: float = PATIENCE) -> bool:
    return holder_of(folder, patience) is not None


def why_dead(folder: Path, patience: float = PATIENCE) -> str | None:
    """Why the run's holder counts as dead; None where it does not, or there is none."""
    return _why_free(folder, patience) if read(folder) is not None else None


@contextlib.contextmanager
def claimed(folder: Path, *, patience: float = PATIENCE, beat: float = BEAT) -> Iterator[Claim]:
    """Hold the run's folder, with a heartbeat every `beat` seconds; a holder that is gone, or silent for `patience`
    seconds, loses it.

    Raises RunningElsewhere where another process is at the run, ClaimLost where one has taken it over, CannotWrite
    where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim = _take(folder, patience)
    except OSError as error:
        raise CannotWrite(f"{folder}: cannot be written ({error.strerror}); --results FOLDER names another") from None
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(claim, beat, ended), daemon=True)
    heart.start()
    try:
        yield claim
    except Exception:
        claim.check()  # whatever fails in a run that was taken over does so because its files are another's
        raise
    finally:
        ended.set()
        heart.join()
        with contextlib.suppress(OSError):
            if claim.is_own():
                (folder / NAME).unlink()


def _take(folder: Path, patience: float) -> Claim:
    """Raises RunningElsewhere, OSError."""
    if who := _older_version(folder, patience):
        raise RunningElsewhere(f"{folder}: {who}; wait for it or stop it")
    token = secrets.token_hex(8)
    content = json.dumps({"token": token, **this_process()}).encode()
    try:
        handle = os.open(folder / NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return _take_over(folder, token, content, patience)
    try:
        with open(handle, "wb") as file:
            file.write(content)
    except OSError:  # a full disk takes a name, but no content
        (folder / NAME).unlink()
        raise
    return Claim(folder, token)


def _take_over(folder: Path, token: str, content: bytes, patience: float) -> Claim:
    after = _why_free(folder, patience)
    if after is None:
        raise RunningElsewhere(f"{folder}: another process is at this run; wait for it or stop it")
    write_atomically(folder / NAME, content)
    time.sleep(SECONDS_TO_SETTLE)
    claim = Claim(folder, token, after)
    claim.check()
    return claim


def _why_free(folder: Path, patience: float) -> str | None:
    """Why the run may be taken; None where somebody is at it."""
    content = read(folder)
    if content is None:
        return None if _older_version(folder, patience) else "nobody has claimed it"
    working = is_working(content)
    if working is not None:
        return None if working else "its process is gone"
    silent = _silence(folder / NAME)
    if silent < -BEAT:  # a clock was put back: from now on it has to move like any other
        with contextlib.suppress(OSError):
            os.utime(folder / NAME)
    return None if silent < patience else "no heartbeat"


def _older_version(folder: Path, patience: float) -> str | None:
    """Older versions have numbered files under `leases`, and beat the newest one in the same way."""
    with contextlib.suppress(OSError):
        for path in (folder / "leases").glob("[0-9]*"):
            if b'"process"' in (bytes_of(path) or b"") and _silence(path) < patience:
                return "a process of an older version is at this run, or was until a moment ago"
    return None


def _silence(path: Path) -> float:
    """Seconds since the file was touched, by the clock of its file system; by this machine's where nothing can be
    written, and so nothing be taken over."""
    try:
        beat = path.stat().st_mtime
    except OSError:
        return float("inf")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now.", suffix=TEMPORARY) as file:
            os.utime(file.name)
            return os.fstat(file.fileno()).st_mtime - beat
    except OSError:
        return time.time() - beat


def _beat(claim: Claim, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds):
        with contextlib.suppress(OSError):  # a folder that is away for a while: the next beat may reach it
            if claim.is_own():
                os.utime(claim.folder / NAME)


# Which process holds it


def this_process() -> dict[str, Any]:
    """{"machine", "pid", "started"}: one process among all that machines sharing a folder ever ran. No host is named.

    `started`: clock ticks since the machine's start, which tells it from a later process with the same number.
    """
    state = _state_and_start(os.getpid())
    return {"machine": machine(), "pid": os.getpid(), "started": state[1] if state else None}


def is_working(process: dict[str, Any]) -> bool | None:
    """False where it is gone, True where it is there; None where that cannot be told from here: another machine's, or
    one that is stopped (SIGSTOP), which may go on or never."""
    if process.get("machine") is None or process["machine"] != machine():
        return None
    found = _state_and_start(process.get("pid"))
    if found is None or found[0] in "ZX" or found[1] != process.get("started"):
        return False
    return None if found[0] in "Tt" else True


def machine() -> str | None:
    """16 hexadecimal digits, the same for processes that see each other's numbers; None: this system does not tell."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        names = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {names}".encode()).hexdigest()[:16]


def _state_and_start(pid: object) -> tuple[str, int] | None:
    """The state's letter and the start in clock ticks (proc(5), fields 3 and 22); None where there is no process."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
