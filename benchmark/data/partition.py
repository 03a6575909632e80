"""How the images of each class are shared among the clients: three rules, each giving a table of counts.

`ClassSkew` is appendix A.2 of SSFL (gradient diversity and grouping), Eq. 9 and 10; `Dirichlet` is the rule of
SemiFL, FedSwitch and RSCFed. A rule decides numbers only; which image goes where is drawn in `split.py`.

Departures from A.2 as printed:
* Main classes when K < d: a client's main is a set of classes, set sizes differing by at most one, and Eq. 9 is summed
  over the set. The paper runs such a case (Table F.1: EMNIST, K = 20 and 10) without saying how.
* Eq. 9 is not an integer: class by class the largest remainders are rounded up, then single images change hands until
  every client, too, holds its target rounded down or up. Every image is given exactly once.
* Eq. 10 prints q_j(1-R) for i = j and q_i(1-R) otherwise; both are the n_i(1-R)q_j/m_j of Eq. 9 over n_j/m_j.
* The released code gives equal sizes and hands images out twice when a class runs out (utils_v2.py:632-664): not here.
* Dirichlet: no cap on clients that already hold N/K images (SemiFL's data.py:123-179 has one); plain redraws instead.

Shapes: K clients, d classes; `n_d` counts the images left in each class once the server has its own.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Table = list[list[Fraction]]  # K rows of d exact numbers of images: rounding must not depend on a machine's float sums


class Shares(NamedTuple):
    """What a rule decides: images of each class for each client, and how many draws were thrown away for it."""

    counts_Kd: IntArray
    redraws: int


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Every client the same number of images (up to one) in the proportions of the whole (up to rounding).

    The released SSFL code shuffles and cuts instead, which leaves a realised R above 0.
    """

    @property
    def R_nominal(self) -> float | None:
        return 0.0

    def shares(self, n_d: IntArray, K: int, seed: int) -> Shares:
        """Counts for K clients; draws nothing."""
        return Shares(round_table(stratified(_equal_sizes(n_d, K), n_d)), 0)


@dataclass(frozen=True, kw_only=True)
class ClassSkew:
    """Main classes mixed into equal proportions: R of the way from stratified (0) to sorted by class (1), Eq. 9.

    R: the mixing parameter in [0, 1], the papers' nominal R. The realised R (Eq. 2) equals it for K <= d and is lower
        for K > d, since two clients with one main class are at distance 0.
    sizes: "paper": a client holds n_j/m_j images, m_j clients sharing main class j equally (unequal clients where
        classes are unequal or K is no multiple of d). "equal": every client N/K images up to one. A client then
        takes R N/K from its main class where the class holds as much; where it holds less, its main clients share
        R n_j equally and are filled up, like everyone, from what the larger classes have left. Where classes are
        equal and K is a multiple of d the two are the same.
    """

    R: float
    sizes: Literal["paper", "equal"] = "paper"

    def __post_init__(self) -> None:
        if not 0 <= self.R <= 1:
            raise ConfigError(f"partition: R={self.R} must lie between 0 (equal proportions) and 1 (one main class)")
        if self.sizes not in _SORTED_END:
            raise ConfigError(f"partition: sizes={self.sizes!r} must be 'paper' or 'equal'")

    @property
    def R_nominal(self) -> float | None:
        return float(self.R)

    def shares(self, n_d: IntArray, K: int, seed: int) -> Shares:
        """Counts for K clients; draws nothing."""
        sorted_Kd = _SORTED_END[self.sizes](n_d, main_classes(n_d, K))
        mixed_Kd = stratified([sum(row, Fraction(0)) for row in sorted_Kd], n_d)
        R = Fraction(str(float(self.R)))  # 0.4 is 2/5, not the nearest double
        for row, sorted_row in zip(mixed_Kd, sorted_Kd, strict=True):
            row[:] = [R * end + (1 - R) * start for start, end in zip(row, sorted_row, strict=True)]
        return Shares(round_table(mixed_Kd), 0)


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Each class is shared out in proportions drawn from Dirichlet(alpha, ..., alpha) over the clients.

    alpha: concentration; small is heterogeneous. min_size: least number of images of a client (at least 1).
    max_redraws: how many draws may be thrown away for a client below `min_size`.
    """

    alpha: float
    min_size: int = 10
    max_redraws: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"partition: alpha={self.alpha} must be a finite number above 0")
        if self.min_size < 1:
            raise ConfigError(f"partition: min_size={self.min_size} must be at least 1, as no client may hold none")
        if self.max_redraws < 0:
            raise ConfigError(f"partition: max_redraws={self.max_redraws} must be 0 or more")

    @property
    def R_nominal(self) -> float | None:
        return None

    def shares(self, n_d: IntArray, K: int, seed: int) -> Shares:
        """Counts for K clients. Raises ConfigError where no draw leaves every client `min_size` images."""
        most = int(n_d.sum()) // K
        if most < self.min_size:
            raise ConfigError(
                f"partition: min_size={self.min_size} for K={K} clients needs {K * self.min_size} images, "
                f"{int(n_d.sum())} are left: min_size can be at most {most}"
            )
        best = 0
        for redraw in range(self.max_redraws + 1):
            counts_Kd = np.stack([self._share_class(int(n), K, seed, redraw, c) for c, n in enumerate(n_d)], axis=1)
            smallest = int(counts_Kd.sum(axis=1).min())
            if smallest >= self.min_size:
                return Shares(counts_Kd, redraw)
            best = max(best, smallest)
        raise ConfigError(
            f"partition: alpha={self.alpha} with K={K} left a client below min_size={self.min_size} in each of "
            f"{self.max_redraws + 1} draws (smallest client at best {best} images): take a larger alpha, fewer clients"
            + (f" or min_size at most {best}" if best else "")
        )

    def _share_class(self, n: int, K: int, seed: int, redraw: int, label: int) -> IntArray:
        stream = numpy_stream(seed, "partition", "dirichlet", "redraw", redraw, "class", label)
        exact_K = stream.dirichlet(np.full(K, float(self.alpha))) * n
        counts_K = np.floor(exact_K).astype(np.int64)
        largest_first_K = np.argsort(counts_K - exact_K, kind="stable")
        counts_K[largest_first_K[: n - int(counts_K.sum())]] += 1
        return counts_K


Partition = Iid | ClassSkew | Dirichlet


def main_classes(n_d: IntArray, K: int) -> BoolArray:
    """(K, d) True where a class is a main class of a client.

    Classes are dealt out largest first (ties: lower label), so that the classes that get one client more are the ones
    that can feed it. K >= d: one class each, m_j differing by at most one. K < d: sets, sizes differing by at most one.
    """
    d = len(n_d)
    order = sorted(range(d), key=lambda label: (-int(n_d[label]), label))
    mains_Kd = np.zeros((K, d), dtype=bool)
    for turn in range(max(K, d)):
        mains_Kd[turn % K, order[turn % d]] = True
    return mains_Kd


def stratified(sizes_K: list[Fraction], n_d: IntArray) -> Table:
    """(K, d) clients of the given sizes, each in the proportions of the whole: the R = 0 end of Eq. 9."""
    share_d = [Fraction(int(n), int(n_d.sum())) for n in n_d]
    return [[size * share for share in share_d] for size in sizes_K]


def _equal_sizes(n_d: IntArray, K: int) -> list[Fraction]:
    return [Fraction(int(n_d.sum()), K)] * K


def _sorted_paper(n_d: IntArray, mains_Kd: BoolArray) -> Table:
    """(K, d) the R = 1 end of Eq. 9: each class shared equally by the clients it is a main class of."""
    share_d = [Fraction(int(n), int(m)) for n, m in zip(n_d, mains_Kd.sum(axis=0), strict=True)]
    return [[share if main else Fraction(0) for share, main in zip(share_d, mains, strict=True)] for mains in mains_Kd]


def _sorted_equal(n_d: IntArray, mains_Kd: BoolArray) -> Table:
    """(K, d) the R = 1 end with equal sizes: mains cut to N/K, and the clients short of it filled from what is left."""
    size = Fraction(int(n_d.sum()), len(mains_Kd))
    table = _sorted_paper(n_d, mains_Kd)
    for row in table:
        held = sum(row)
        if held > size:
            row[:] = [count * size / held for count in row]
    left_d = [int(n) - sum(column) for n, column in zip(n_d, zip(*table, strict=True), strict=True)]
    left = sum(left_d)
    for row in table:
        lacking = size - sum(row)
        if lacking:
            row[:] = [count + lacking * surplus / left for count, surplus in zip(row, left_d, strict=True)]
    return table


_SORTED_END = {"paper": _sorted_paper, "equal": _sorted_equal}


def round_table(exact_Kd: Table) -> IntArray:
    """(K, d) integers: each entry its target rounded down or up, column sums kept, row sums rounded down or up.

    Column sums must be whole numbers. Such a rounding always exists (a flow with whole capacities has a whole
    solution), so the repair below always finds its path.
    """
    floor_Kd = np.array([[math.floor(x) for x in row] for row in exact_Kd], dtype=np.int64)
    rest_Kd = np.array([[float(x - math.floor(x)) for x in row] for row in exact_Kd])
    extra_d = [int(sum(column)) for column in zip(*exact_Kd, strict=True)] - floor_Kd.sum(axis=0)
    sizes_K = [sum(row, Fraction(0)) for row in exact_Kd]
    low_K = np.array([math.floor(size) for size in sizes_K]) - floor_Kd.sum(axis=1)
    high_K = np.array([math.ceil(size) for size in sizes_K]) - floor_Kd.sum(axis=1)

    given_Kd = np.zeros(floor_Kd.shape, dtype=bool)
    owed_K = rest_Kd.sum(axis=1)
    for label, extra in enumerate(extra_d):
        # Largest remainder first; among equals the client that is owed most, else client 0 would win every tie.
        rank_K = np.lexsort((np.round(-(owed_K - given_Kd.sum(axis=1)), 6), -rest_Kd[:, label]))
        given_Kd[rank_K[:extra], label] = True
    _repair(given_Kd, rest_Kd > 0, low_K, high_K)
    return floor_Kd + given_Kd


def _repair(given_Kd: BoolArray, open_Kd: BoolArray, low_K: IntArray, high_K: IntArray) -> None:
    """Move single images along paths of clients, in place, until low <= row sum <= high everywhere."""
    while True:
        sums_K = given_Kd.sum(axis=1)
        if (sums_K > high_K).any():
            _shift(given_Kd, open_Kd, givers_K=sums_K > high_K, takers_K=sums_K < high_K)
        elif (sums_K < low_K).any():
            _shift(given_Kd, open_Kd, givers_K=sums_K > low_K, takers_K=sums_K < low_K)
        else:
            return


def _shift(given_Kd: BoolArray, open_Kd: BoolArray, *, givers_K: BoolArray, takers_K: BoolArray) -> None:
    """One image less for a giver and one more for a taker: breadth first over clients that can pass one on."""
    free_Kd = open_Kd & ~given_Kd
    came_from_K = np.where(givers_K, -1, -2)  # -1: a giver, where paths begin; -2: not reached
    queue = np.flatnonzero(givers_K).tolist()
    for client in queue:  # grows while it is walked
        if takers_K[client]:
            break
        new_K = free_Kd[:, given_Kd[client]].any(axis=1) & (came_from_K == -2)
        came_from_K[new_K] = client
        queue += np.flatnonzero(new_K).tolist()
    else:
        raise AssertionError("no whole rounding of a table whose columns are whole")
    while (giver := int(came_from_K[client])) >= 0:
        label = int(np.flatnonzero(given_Kd[giver] & free_Kd[client])[0])
        given_Kd[giver, label], given_Kd[client, label] = False, True
        client = giver
