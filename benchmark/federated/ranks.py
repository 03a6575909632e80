"""The ranks of a run: processes that torchrun started, one of which (rank 0) leads while the others do its jobs.

Lightning has no part in this: the Trainer of rank 0 sees one process on one device, and the other ranks have none.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from benchmark.errors import ConfigError, RankLost
from benchmark.federated.links import FAREWELL, Groups, Link

STARTED_BY = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets them for every process
FOR_EVER = timedelta(days=365)  # links have heartbeats of their own: torch's limit would be an hour without a round
SILENCE = 15.0  # seconds without a sign of life after which a rank counts as lost
BYTES_PER_SECOND = 5e6  # the slowest line on which a message still counts as on its way
LOOKS = 0.5  # seconds between two looks for signs of life
MEETING = timedelta(minutes=5)  # for the ranks to find each other
PATIENCE = 3.0  # seconds that are waited for the other ranks' farewell

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of how many this process is."""

    rank: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Name:
    """A rank as errors call it."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, process {self.pid})"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What a link leaves in the inbox when it ends."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Mail:
    """What came from a rank."""

    rank: int
    message: Any
    tensors: Mapping[int, Tensor]


def place_of(environ: Mapping[str, str]) -> Place | None:
    """This process's place among the ranks; None where nobody started ranks. Raises ConfigError."""
    if not all(name in environ for name in STARTED_BY):
        return None
    try:
        return Place(rank=int(environ["RANK"]), size=int(environ["WORLD_SIZE"]))
    except ValueError:
        said = f"RANK={environ['RANK']!r}, WORLD_SIZE={environ['WORLD_SIZE']!r}"
        raise ConfigError(
            f"the environment says {said}; whole numbers, as torchrun sets them, would be right"
        ) from None


class Ranks:
    """The connections of this process: from rank 0 to every other one, and from those to rank 0.

    What comes is in `inbox`, in the order in which it came, unless something else is there to `receive` it (in a thread
    of the link). Use it as a context: leaving it says farewell.
    """

    def __init__(
        self, names: Sequence[Name], groups: Groups | None, rank: int, receive: Callable[[Mail], None] | None = None
    ) -> None:
        self.names, self.rank = names, rank
        self.inbox: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self.lost: str | None = None  # the first rank that ended, or fell silent, and how
        self._receive = receive or self.inbox.put
        others = range(1, len(names)) if rank == 0 else (0,)
        self.links = {other: self._link(other, groups) for other in others} if groups is not None else {}
        self._watch = Watch(self.links)

    @property
    def size(self) -> int:
        return len(self.names)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Farewell to all, waited for at most `PATIENCE` seconds; a rank that is lost is not waited for."""
        until = time.monotonic() + PATIENCE
        for link in self.links.values():
            link.farewell()
        closed = [link.is_closed(max(0.0, until - time.monotonic())) for link in self.links.values()]
        if all(closed) and dist.is_initialized():
            dist.destroy_process_group()  # with a thread in the midst of it, it would not return
        self.links = {}

    def next(self) -> Mail:
        """What came, waited for with an ear open for signals. Raises RankLost, with the rank's name."""
        while True:
            try:
                mail = self.inbox.get(timeout=LOOKS)
            except queue.Empty:
                mail = None
            silent = self._watch.look()
            if mail is None and silent is not None:
                self._note_lost(silent, f"has given no sign of life for {SILENCE:g} s")
            elif mail is not None and mail.message == FAREWELL:
                self._note_lost(mail.rank, "has left")
            elif mail is not None and not isinstance(mail.message, Lost):
                return mail
            if self.lost is not None:
                raise RankLost(self.lost)

    def _note_lost(self, rank: int, why: str) -> None:
        self.lost = self.lost or f"{self.names[rank]}, which {why}"

    def _link(self, other: int, groups: Groups) -> Link:
        def heard(message: Any, tensors: Mapping[int, Tensor]) -> None:
            self._receive(Mail(rank=other, message=message, tensors=tensors))

        def ended(reason: str) -> None:
            self._note_lost(other, f"has ended ({reason})")
            heard(Lost(reason=reason), {})

        return Link(other, groups, heard, ended)


class Watch:
    """Notices links that fall silent, by counting this process's own looks: while this process was stopped itself
    (Ctrl-Z, a suspended machine), nobody was silent."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = links
        self._beats = {rank: 0 for rank in links}
        self._silent_looks = {rank: 0 for rank in links}
        self._looked_at = time.monotonic()

    def look(self) -> int | None:
        """A rank that has been silent for too long, if there is one."""
        if time.monotonic() - self._looked_at < LOOKS * 0.9:
            return None
        self._looked_at = time.monotonic()
        for rank, link in self._links.items():
            self._silent_looks[rank] = 0 if link.beats != self._beats[rank] else self._silent_looks[rank] + 1
            self._beats[rank] = link.beats
            if self._silent_looks[rank] * LOOKS > SILENCE + link.expected_bytes / BYTES_PER_SECOND:
                return rank
        return None


def join(place: Place, *, receive: Callable[[Mail], None] | None = None, device: torch.device | None = None) -> Ranks:
    """Meet the other ranks. `device` is where the tensors of messages lie (default: the CPU). Raises ConfigError."""
    own = Name(rank=place.rank, host=socket.gethostname(), pid=os.getpid())
    if place.size == 1:
        return Ranks([own], None, 0)
    device = device or torch.device("cpu")

    def meet() -> tuple[list[Name], Groups]:
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=MEETING)
        down, up = (dist.new_group(backend=backend, timeout=FOR_EVER) for _ in range(2))
        assert isinstance(down, dist.ProcessGroup) and isinstance(up, dist.ProcessGroup)  # every rank is in both
        names: list[Any] = [None] * place.size
        dist.all_gather_object(names, own, group=down)
        return names, Groups(down=down, up=up, device=device)

    names, groups = within_a_thread(meet)
    return Ranks(names, groups, place.rank, receive)


def within_a_thread(work: Callable[[], Found]) -> Found:
    """The work's result, waited for with an ear open for signals, which torch's own waiting is deaf to."""
    found: queue.SimpleQueue[tuple[Found | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put((work(), None))
        except BaseException as error:
            found.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    result, error = found.get()
    if error is not None:
        raise ConfigError(f"the ranks cannot meet ({str(error).partition(chr(10))[0]})") from error
    return result  # type: ignore[return-value]  # no error, so there is a result
