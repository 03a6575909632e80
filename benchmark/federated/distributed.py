"""The engine for several devices or machines: a round's jobs on the ranks that torchrun started, bit-equal for any
number of them.

Rank 0 leads: it has the Trainer, the method and the record, and hands out jobs one by one, the longest first, to
whichever rank is free. Its own jobs run in a second thread. The other ranks keep nothing: private state comes with the
job and goes back with its outcome, and every distinct weight tensor goes once to each rank and call.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import ConfigError, DataError, RankLost
from benchmark.federated.bench import SecondThread
from benchmark.federated.engines import PLAIN, Speed
from benchmark.federated.environment import Environment
from benchmark.federated.leader import Hand, Leader
from benchmark.federated.ranks import Mail, Ranks

GRACE = 1.0  # seconds in which a signal that came to another rank comes to this one, if it was meant for all
ABANDONED_IN = 2.0  # seconds that a job of rank 0 may take to leave off

Identity = Mapping[str, str]  # what has to be the same on all ranks, by the name that errors give it


@dataclass(kw_only=True, eq=False)
class RankHand(Hand):
    """A rank that does jobs, as the leader sees it."""

    rank: int
    put: Callable[..., None]


class DistributedEngine(Leader[RankHand]):
    """The engine of rank 0. `identity` is what the other ranks are held against.

    Raises ConfigError or DataError where a rank has other code, another experiment or other data, and RankLost.
    """

    name = "distributed"
    elsewhere = "another rank"

    def __init__(self, environment: Environment, ranks: Ranks, identity: Identity, speed: Speed = PLAIN) -> None:
        super().__init__(environment)
        self._ranks, self._speed = ranks, speed
        agree(ranks, identity)
        for link in ranks.links.values():
            link.put(("begin", torch.get_num_threads(), speed))
        self._own = SecondThread(environment, speed, self._answer_own)
        others = [RankHand(rank=rank, put=link.put) for rank, link in ranks.links.items()]
        self._hands = [*others, RankHand(rank=0, put=self._own.put)]

    def __enter__(self) -> "DistributedEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def settings(self) -> Mapping[str, Any]:
        """The number of `ranks` does not decide its bits."""
        speed = {"plain": self._speed == PLAIN, "confident_only": self._speed.confident_only}
        threads = torch.get_num_threads()
        return {"name": self.name, "threads": threads, "bit_equal": True, **speed, "ranks": self._ranks.size}

    @property
    def lost(self) -> str | None:
        """The rank that is gone, and how; None where all are there."""
        return self._ranks.lost

    def close(self) -> None:
        """End this rank's own work. The other ranks end with the connections (`Ranks.close`)."""
        self._own.close(ABANDONED_IN)

    def _deliver(self, hand: RankHand, message: tuple[Any, ...], tensors: Iterable[tuple[int, Tensor]] = ()) -> None:
        hand.put(message, list(tensors))

    def _take_in(self) -> None:
        mail = self._ranks.next()
        if mail.message[0] == "asked":
            time.sleep(GRACE)  # where all were asked, this process's own signal breaks it off, and counts
            self._ranks.lost = f"{self._ranks.names[mail.rank]}, which was asked to stop by {mail.message[1]}"
            raise RankLost(self._ranks.lost)
        (hand,) = [hand for hand in self._hands if hand.rank == mail.rank]
        self._enter(hand, mail.message, mail.tensors)

    def _answer_own(self, message: Any, tensors: Any = ()) -> None:
        self._ranks.inbox.put(Mail(rank=0, message=message, tensors=dict(tensors)))


def agree(ranks: Ranks, identity: Identity) -> None:
    """Wait until every rank has loaded what it works on. Raises what kept one from it, ConfigError or DataError where
    it is something else than here, and RankLost."""
    waited_for = set(ranks.links)
    while waited_for:
        mail = ranks.next()
        name = ranks.names[mail.rank]
        match mail.message:
            case ("ready", theirs):
                _compare(identity, theirs, str(ranks.names[0]), str(name))
                waited_for.discard(mail.rank)
            case ("failed", failure):
                raise failure.to_raise(f"the start of {name}")
            case ("asked", signal_name):
                time.sleep(GRACE)
                raise RankLost(f"{name} was asked to stop by {signal_name}")


def _compare(ours: Identity, theirs: Identity, us: str, them: str) -> None:
    for what in ours:
        if ours[what] != theirs.get(what):
            kind = DataError if what in ("data", "partition") else ConfigError
            raise kind(f"{what}: {theirs.get(what)} on {them}, {ours[what]} on {us}; the same on all would be right")
