"""Who may work at a run: numbered lease files in its folder, so that no two processes ever finish the same run.

    leases/000001    the first attempt; its content says which process it is, its file time is that process's heartbeat
    leases/000002    the second attempt, if the first was given up, died or fell silent; or the first one's result

Attempt n + 1 begins by creating its file, which the file system lets one process do. Attempt n publishes its result by
linking it under that same name, n + 1: so either the result is out, or another process has the run, and never both.
A launcher that gives a run up takes a number, too, and says so under it; whoever takes the run up has the one after.
The number is the fence: who finds the next one taken has lost the run, however long it stood still (SIGSTOP, a machine
asleep, a network folder away), and writes nothing any more. Lease files are kept; no number is ever given twice.

On one machine a process that is gone loses its lease at once, and one that is there keeps it unless it is stopped.
Otherwise heartbeats count: their age is taken against a file touched now on the same file system, so that clocks of
machines may differ. One from the future (a clock was put back) is set to now by who finds it, and has to move from then
on like any other. The patience has to be longer than a network file system holds back file times (NFS: 60 s).

What a process can still do that is woken between the check and the write behind it: put a checkpoint of its own beside
those of the next attempt, which takes nothing from them; append lines of rounds to a file that the next attempt has
replaced; and, where it stood still while it began, rename its manifest into place.
"""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite, DataError, RunningElsewhere
from benchmark.records.files import cannot_write, flush, json_object, written_beside

BEAT = 10.0  # seconds between heartbeats
GIVEN_UP = 0.0  # the file time of a lease that its process has given up
PATIENCE = 120.0  # seconds without a heartbeat after which a run is taken over
FOLDER, RESULT = "leases", "result.json"
PROC = Path("/proc")


class LeaseLost(RunningElsewhere):
    """Another process has taken the run over while this one stood still: what this one does no longer counts."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The newest lease file of a run."""

    path: Path
    content: dict[str, Any]  # empty while its process is writing it
    beat: float  # file time, seconds since 1970 by the clock of the file system
    damaged: bool = False  # it holds something else: its heartbeat counts

    @property
    def attempt(self) -> int:
        return int(self.path.name)

    @property
    def is_result(self) -> bool:
        return "status" in self.content

    @property
    def abandoned(self) -> str | None:
        """Why a launcher gave the run up (`abandon`); None where none did since the last attempt."""
        return self.content.get("abandoned")

    def held(self, patience: float) -> bool:
        """Whether its process counts as being at work."""
        if self.is_result or self.abandoned or self.beat == GIVEN_UP:
            return False
        there = self.process.is_working() if self.process else None
        if there is not None:
            return there
        silent = _now(self.path.parent) - self.beat
        if silent < -BEAT:
            with contextlib.suppress(OSError):
                os.utime(self.path)
        return silent < patience

    @property
    def process(self) -> "Process | None":
        """None where the file does not tell, or is damaged."""
        try:
            return Process(**self.content["process"])
        except (KeyError, TypeError):
            return None

    @property
    def end(self) -> str:
        """Why a lease that is not held is not."""
        if self.abandoned or self.beat == GIVEN_UP:
            return "given up"
        working = self.process.is_working() if self.process else None
        return "its process is gone" if working is False else "no heartbeat"


def newest(folder: Path) -> Found | None:
    """The newest lease of the run in `folder`, or None."""
    try:
        number = max((int(name) for name in os.listdir(folder / FOLDER) if name.isdecimal()), default=None)
        if number is None:
            return None
        path = _path(folder, number)
        text, beat = path.read_bytes(), path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:  # empty: created a moment ago, or by a machine that lost its power in that moment
        content = json_object(text or b"{}", path)
    except DataError:
        return Found(path=path, content={}, beat=beat, damaged=True)
    found = Found(path=path, content=content, beat=beat)
    return replace(found, damaged="process" in content and found.process is None)


def is_held(folder: Path, patience: float = PATIENCE) -> bool:
    """Whether another process is at this run."""
    found = newest(folder)
    return found is not None and found.held(patience)


def abandon(folder: Path, why: str, patience: float = PATIENCE) -> None:
    """Say for all to see that no more attempts are made at the run in `folder`, unless somebody is at it or has been
    faster. The next attempt, whoever makes it, takes that back. A disk that does not take it is passed over."""
    found = newest(folder)
    if found is None or found.is_result or found.held(patience):
        return
    with contextlib.suppress(OSError), open(_path(folder, found.attempt + 1), "x") as file:
        file.write(json.dumps({"abandoned": why}))


class Lease:
    """The right to work at the run in `folder`, while no other process has the next number."""

    def __init__(self, folder: Path, attempt: int, after: str | None = None) -> None:
        """`after`: how the attempt before this one ended (`Found.end`)."""
        self.folder, self.attempt, self.after = folder, attempt, after

    def check(self) -> None:
        """Raises LeaseLost where the next number is taken. Opening asks the server of a network folder, too."""
        try:
            os.close(os.open(_path(self.folder, self.attempt + 1), os.O_RDONLY))
        except OSError:
            return
        raise self.lost()

    def lost(self) -> LeaseLost:
        return LeaseLost(f"{self.folder}: another process took this run over; what this one did does not count")

    def publish(self, content: bytes) -> None:
        """Make `content` the run's result: at once, on disk, and only if the run is still this process's.

        Raises LeaseLost, and CannotWrite; no result is there then, unless the other process published one.
        """
        self.check()
        try:
            temporary = written_beside(self.folder / RESULT, content)
        except OSError as error:
            raise cannot_write(self.folder / RESULT, error) from None
        try:
            os.link(temporary, _path(self.folder, self.attempt + 1))
        except FileExistsError:
            raise self.lost() from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP):
                raise cannot_write(self.folder / RESULT, error) from None
            os.replace(temporary, self.folder / RESULT)  # a file system without links: only as good as the check above
            return
        finally:
            temporary.unlink(missing_ok=True)
        published = _path(self.folder, self.attempt + 1)
        _complete(self.folder, published)
        published.unlink()  # with the result where readers look for it, its number has done its work

    def give_up(self) -> None:
        """Say that the run may be taken up at once. It touches only this attempt's own file, and needs no room."""
        path = _path(self.folder, self.attempt)
        with contextlib.suppress(OSError):  # then the process's end says so, or its silence
            os.utime(path, (GIVEN_UP, GIVEN_UP))


@contextlib.contextmanager
def claimed(folder: Path, *, patience: float = PATIENCE, beat: float = BEAT) -> Iterator[Lease]:
    """Hold the run's folder, with a heartbeat every `beat` seconds; a lease of a process that is gone, or silent for
    `patience` seconds, is taken over.

    Raises RunningElsewhere where another process is at it, or has taken it over, CannotWrite where the folder cannot be
    written.
    """
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        lease = _claim(folder, patience)
    except OSError as error:
        raise CannotWrite(f"{folder}: cannot be written ({error.strerror}); --results FOLDER names another") from None
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(_path(folder, lease.attempt), beat, ended), daemon=True)
    heart.start()
    try:
        yield lease
    except Exception:
        lease.check()  # in a run that was taken over, whatever fails does so because its files are another's now
        raise
    finally:
        ended.set()
        heart.join()
        lease.give_up()


def _claim(folder: Path, patience: float) -> Lease:
    """The next number. Raises RunningElsewhere, OSError."""
    found = newest(folder)
    if found is not None and found.is_result and not (folder / RESULT).exists():
        _complete(folder, found.path)  # its process died between the two
    if found is not None and found.held(patience):
        raise RunningElsewhere(f"{folder}: another process is at this run; wait for it or stop it")
    lease = Lease(folder, found.attempt + 1, found.end) if found is not None else Lease(folder, 1)
    try:
        file = open(_path(folder, lease.attempt), "x")  # noqa: SIM115 - closed below
    except FileExistsError:
        raise RunningElsewhere(f"{folder}: another process has just begun this run; wait for it or stop it") from None
    try:
        with file:
            file.write(json.dumps({"process": vars(this_process())}))
    except OSError:  # a full disk takes a name, but no content
        lease.give_up()
        raise
    return lease


def _complete(folder: Path, published: Path) -> None:
    """Put a published result where readers look for it."""
    with contextlib.suppress(FileExistsError):
        os.link(published, folder / RESULT)
    flush(folder)


def _now(leases: Path) -> float:
    """Seconds since 1970 by the clock that stamps files in this folder; by this machine's where nothing can be written,
    and so nothing be taken over."""
    try:
        with tempfile.NamedTemporaryFile(dir=leases, prefix=".now.") as file:
            os.utime(file.name)
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _beat(path: Path, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds):
        with contextlib.suppress(OSError):  # a folder that is away for a while: the next beat may reach it
            os.utime(path)


def _path(folder: Path, attempt: int) -> Path:
    return folder / FOLDER / f"{attempt:06d}"


# Which process a lease belongs to


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process among all that machines sharing a folder ever ran. It names no host and no person."""

    machine: str | None  # a hash of this boot and of the process numbers' name space; None: this system does not tell
    pid: int
    started: int  # clock ticks since the machine's start: tells it from a later process with the same number

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
