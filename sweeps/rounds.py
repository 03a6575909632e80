"""A sum over many rounds from some of them: rounds of a method differ at a few places, or in a short rhythm."""

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from operator import add

from sweeps.work import Shape, Work

ALL = 48  # up to so many rounds, each is counted
WINDOW = 20  # rounds in a row before the last: shows a rhythm (FedMatch's helpers, every tenth round), random cohorts


def over_rounds(count: Callable[[int], tuple[Work, Shape]], rounds: int) -> tuple[Work, bool]:
    """The sum of `count(1)` to `count(rounds)`, and whether it is exact.

    Where a window before the last round changes at most once, the places at which rounds change (a warm start's end, a
    last round) are found by halving: exact for counts that are constant in stretches. Else the window's mean stands for
    the uncounted rounds of its shapes, as an estimate. A method's state is that of the round counted before.
    """
    if rounds <= ALL:
        return reduce(add, (count(round_number)[0] for round_number in range(1, rounds + 1))), True
    return _Sampled(count, rounds).total()


class _Sampled:
    """Counts of some rounds and what stands for the others."""

    def __init__(self, count: Callable[[int], tuple[Work, Shape]], rounds: int) -> None:
        self._count = count
        window = range(rounds - WINDOW, rounds)
        self._seen = {number: count(number) for number in (1, 2, *window, rounds)}
        works = [self._seen[number][0] for number in window]
        self._steady = sum(one != other for one, other in pairwise(works)) <= 1
        self._usual = reduce(add, works).scaled(1 / WINDOW)
        self._usual_shapes = {self._seen[number][1] for number in window}

    def total(self) -> tuple[Work, bool]:
        while self._halve():
            pass
        total = reduce(add, (work for work, _ in self._seen.values()))
        for before, after in self._gaps():
            between = self._usual if self._stands_for(before) else self._seen[before][0]
            total = total + between.scaled(after - before - 1)
        return total, self._steady

    def _gaps(self) -> list[tuple[int, int]]:
        return [(a, b) for a, b in pairwise(sorted(self._seen)) if b - a > 1]

    def _halve(self) -> bool:
        """Count a round between two that differ; False where none is left."""
        for before, after in self._gaps():
            if not self._alike(before, after):
                self._seen[(before + after) // 2] = self._count((before + after) // 2)
                return True
        return False

    def _alike(self, before: int, after: int) -> bool:
        both = self._stands_for(before) and self._stands_for(after)
        return both or self._seen[before][0] == self._seen[after][0]

    def _stands_for(self, round_number: int) -> bool:
        """Whether the window's mean may be taken for rounds beside this one."""
        return not self._steady and self._seen[round_number][1] in self._usual_shapes
