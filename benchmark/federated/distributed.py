"""The engine for several devices or machines: a round's jobs on the ranks that torchrun started, bit-equal for any
number of them.

Rank 0 leads: it has the Trainer, the method and the record, and hands out jobs one by one, the longest first, to
whichever rank is free. Its own jobs run in a second thread. The other ranks keep nothing: private state comes with the
job and goes back with its outcome, and every distinct weight tensor goes once to each rank and call.
"""

import itertools
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmark.errors import ConfigError, DataError, FsslError, RankLost
from benchmark.federated.bench import SecondThread
from benchmark.federated.dispatch import Call, cost_of, name_of
from benchmark.federated.engines import PLAIN, Speed, keeper_of
from benchmark.federated.environment import Environment
from benchmark.federated.parcels import Numbers, pack, unpack
from benchmark.federated.ranks import Mail, Ranks
from benchmark.federated.worker import Order
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

AHEAD = 1  # jobs a rank has beside the one it runs
GRACE = 1.0  # seconds in which a signal that came to another rank comes to this one, if it was meant for all
ABANDONED_IN = 2.0  # seconds that a job of rank 0 may take to leave off

Identity = Mapping[str, str]  # what has to be the same on all ranks, by the name that errors give it


@dataclass(kw_only=True, eq=False)
class Hand:
    """A rank that does jobs, as the leader sees it."""

    rank: int
    put: Callable[..., None]
    orders: list[tuple[int, int]] = field(default_factory=list)  # (ticket, index) without an answer
    has: dict[int, set[int]] = field(default_factory=dict)  # tensors by ticket


class DistributedEngine:
    """The engine of rank 0. `identity` is what the other ranks are held against.

    Raises ConfigError or DataError where a rank has other code, another experiment or other data, and RankLost.
    """

    name = "distributed"

    def __init__(self, environment: Environment, ranks: Ranks, identity: Identity, speed: Speed = PLAIN) -> None:
        self._environment, self._ranks, self._speed = environment, ranks, speed
        self._tickets = itertools.count()
        self._calls: dict[int, Call] = {}
        agree(ranks, identity)
        for link in ranks.links.values():
            link.put(("begin", torch.get_num_threads(), speed))
        self._own = SecondThread(environment, speed, self._answer_own)
        others = [Hand(rank=rank, put=link.put) for rank, link in ranks.links.items()]
        self._hands = [*others, Hand(rank=0, put=self._own.put)]

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

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """As `CpuEngine.fit`: one outcome a job, in job order; raises what a job raised when its outcome is due.

        Raises RankLost, which names the rank, its host and its process, where one has ended or fallen silent.
        """
        for index, outcome in enumerate(self._results(jobs, round_number, kept)):
            if outcome.private is not None:
                kept[keeper_of(jobs[index])] = outcome.private
            yield outcome

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """As `ReferenceEngine.gradients`."""
        yield from self._results(jobs, round_number, None)

    def _results(self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree] | None) -> Iterator[Any]:
        costs = [cost_of(job, self._environment, round_number) for job in jobs]
        call = Call(ticket=next(self._tickets), jobs=jobs, round_number=round_number, costs=costs, kept=kept)
        self._calls[call.ticket] = call
        try:
            while call.due < len(jobs):
                self._hand_out(call)  # before the consumer works on this outcome, so that no rank waits for it
                while not call.is_due:
                    self._take_in(self._ranks.next())
                    self._hand_out(call)
                yield call.take()
        finally:
            self._forget(call)

    def _hand_out(self, call: Call) -> None:
        """Jobs to idle ranks; then one ahead to each, unless the last jobs should wait for whoever is free first."""
        for has in range(AHEAD + 1):
            for hand in self._hands:
                if len(hand.orders) != has or (has and call.to_start <= len(self._hands)):
                    continue
                index = call.next_job(len(self._hands))
                if index is None:
                    return
                self._give(hand, call, index)

    def _give(self, hand: Hand, call: Call, index: int) -> None:
        job, private_numbers = call.jobs[index], Numbers(first=-1, step=-1)
        try:
            packed, private = pack(job, call.numbers), pack(call.start(index), private_numbers)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise FsslError(
                f"{name_of(job, call.round_number)} cannot be sent to another rank: {error}; an update is a "
                "dataclass at the top level of a module"
            ) from error
        order = Order(
            ticket=call.ticket,
            index=index,
            gradient=call.gradient,
            round_number=call.round_number,
            job=packed.pickled,
            private=private.pickled,
        )
        has = hand.has.setdefault(call.ticket, set())
        new = {number: call.numbers.tensors[number] for number in packed.numbers if number not in has}
        has.update(new)
        hand.orders.append((call.ticket, index))
        hand.put(("job", order), [*new.items(), *private_numbers.tensors.items()])

    def _take_in(self, mail: Mail) -> None:
        if mail.message[0] == "asked":
            time.sleep(GRACE)  # where all were asked, this process's own signal breaks it off, and counts
            self._ranks.lost = f"{self._ranks.names[mail.rank]}, which was asked to stop by {mail.message[1]}"
            raise RankLost(self._ranks.lost)
        kind, ticket, index, *found = mail.message
        (hand,) = [hand for hand in self._hands if hand.rank == mail.rank]
        hand.orders.remove((ticket, index))
        call = self._calls.get(ticket)
        if call is not None and kind != "skipped":
            call.enter(index, unpack(found[0], mail.tensors) if kind == "done" else found[0])

    def _forget(self, call: Call) -> None:
        """Drop the call's tensors at the ranks, and what they have not begun of it."""
        self._calls.pop(call.ticket, None)
        for hand in self._hands:
            if hand.has.pop(call.ticket, None) is not None:
                hand.put(("end", call.ticket))

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
