"""What the engines do alike that share a round's jobs among workers: hand out jobs, take in results, in job order.

A hand is a worker as its leader sees it: a process (`workers`) or a rank (`distributed`).
"""

import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor

from benchmark.errors import FsslError
from benchmark.federated.dispatch import Call, cost_of, name_of
from benchmark.federated.engines import keeper_of
from benchmark.federated.environment import Environment
from benchmark.federated.parcels import Numbers, pack, unpack
from benchmark.federated.worker import Order
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

AHEAD = 1  # jobs a hand has beside the one it runs


@dataclass(kw_only=True, eq=False)
class Hand:
    """What a worker was given and has not answered, and which tensors it has."""

    orders: list[tuple[int, int]] = field(default_factory=list)  # (ticket, index)
    has: dict[int, set[int]] = field(default_factory=dict)  # tensors by ticket


H = TypeVar("H", bound=Hand)


class Leader(ABC, Generic[H]):
    """Jobs go to whoever is free, the longest first; every distinct weight tensor once to each hand and call. A hand
    keeps nothing: private state comes with the job and goes back with its outcome. Their number moves no bit.
    """

    elsewhere: str  # how errors name where a job is sent

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._tickets = itertools.count()
        self._calls: dict[int, Call] = {}
        self._hands: list[H] = []

    @abstractmethod
    def _deliver(self, hand: H, message: tuple[Any, ...], tensors: Iterable[tuple[int, Tensor]] = ()) -> None:
        """Send it. Raises where the hand has ended."""

    @abstractmethod
    def _take_in(self) -> None:
        """Wait for results, of whichever call, and `_enter` them. Raises where a hand has ended."""

    def _begin(self) -> None:
        """Before a call."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """One outcome a job, in job order. Jobs with one keeper run in list order, each on the state the last one left.

        Private state is written to `kept` when its outcome is handed out. Raises what a job raised when its outcome is
        due, and FsslError (RankLost) where a hand has ended, by its name. Leaving off half way is allowed: what is not
        begun is not done.
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
        self._begin()
        self._calls[call.ticket] = call
        try:
            while call.due < len(jobs):
                self._hand_out(call)  # before the consumer works on this outcome, so that no hand waits for it
                while not call.is_due:
                    self._take_in()
                    self._hand_out(call)
                yield call.take()
        finally:
            self._forget(call)

    def _hand_out(self, call: Call) -> None:
        """Jobs to idle hands; then one ahead to each, unless the last jobs should wait for whoever is free first."""
        for has in range(AHEAD + 1):
            for hand in self._hands:
                if len(hand.orders) != has or (has and call.to_start <= len(self._hands)):
                    continue
                index = call.next_job(len(self._hands))
                if index is None:
                    return
                self._give(hand, call, index)

    def _give(self, hand: H, call: Call, index: int) -> None:
        job, private_numbers = call.jobs[index], Numbers(first=-1, step=-1)
        try:
            packed, private = pack(job, call.numbers), pack(call.start(index), private_numbers)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise FsslError(
                f"{name_of(job, call.round_number)} cannot be sent to {self.elsewhere}: {error}; an update is a "
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
        self._deliver(hand, ("job", order), [*new.items(), *private_numbers.tensors.items()])

    def _enter(self, hand: H, message: Sequence[Any], tensors: Mapping[int, Tensor]) -> None:
        """A hand's answer: ("done", ticket, index, pickle), ("failed", ticket, index, Failure) or ("skipped", ...)."""
        kind, ticket, index, *found = message
        hand.orders.remove((ticket, index))
        call = self._calls.get(ticket)
        if call is not None and kind != "skipped":
            call.enter(index, unpack(found[0], tensors) if kind == "done" else found[0])

    def _forget(self, call: Call) -> None:
        """Drop the call's tensors at the hands, and what they have not begun of it."""
        self._calls.pop(call.ticket, None)
        for hand in list(self._hands):
            if hand.has.pop(call.ticket, None) is not None:
                self._deliver(hand, ("end", call.ticket))
