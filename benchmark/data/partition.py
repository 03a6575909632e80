"""How the images of each class are shared among the clients: rules, each giving a table of counts.

`ClassSkew` is appendix A.2 of SSFL (gradient diversity and grouping), Eq. 9 and 10; `Dirichlet` is the family of
RSCFed, SemiFL and FedSwitch (`dirichlet.py`); `Shards` is SemiFL's other one and `FedMatchSkew` that of FedMatch, each
in a file of its own. A rule decides numbers only; which image goes where is drawn in `split.py`.

Departures from A.2 as printed:
* Main classes when K < d: a client's main is a set of classes, set sizes differing by at most one, and Eq. 9 is summed
  over the set. The paper runs such a case (Table F.1: EMNIST, K = 20 and 10) without saying how.
* Eq. 9 is not an integer: class by class the largest remainders are rounded up, then single images change hands until
  every client, too, holds its target rounded down or up. Every image is given exactly once.
* Eq. 10 prints q_j(1-R) for i = j and q_i(1-R) otherwise; both are the n_i(1-R)q_j/m_j of Eq. 9 over n_j/m_j.
* The released code gives equal sizes and hands images out twice when a class runs out (utils_v2.py:632-664): not here.

Shapes: K clients, d classes; `n_d` counts the images left in each class once the server has its own.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from benchmark.config import added, nearest
from benchmark.data.dirichlet import RULES
from benchmark.data.fedmatch import FedMatchSkew
from benchmark.data.shards import Shards
from benchmark.data.tables import BoolArray, IntArray, Shares, Table, round_table, stratified
from benchmark.errors import ConfigError


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
    """Proportions drawn from a Dirichlet distribution, in one of the three ways of `dirichlet.py`.

    alpha: concentration; small is heterogeneous. min_size: least number of images of a client (at least 1).
    max_redraws: how many draws may be thrown away for a client below `min_size`.
    rule: "rscfed": each class over the clients by Dirichlet(alpha, ..., alpha). "semifl": the same, but a client that
        holds N/K images gets nothing of further classes. "fedswitch": clients of equal size, each with its own
        proportions of the classes; its alpha is the sum of the concentrations, so alpha = 1 with ten equal classes
        is Dirichlet(0.1, ..., 0.1).
    """

    alpha: float
    min_size: int = 10
    max_redraws: int = 1000
    rule: Literal["rscfed", "semifl", "fedswitch"] = added("rscfed")

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"partition: alpha={self.alpha} must be a finite number above 0")
        if self.min_size < 1:
            raise ConfigError(f"partition: min_size={self.min_size} must be at least 1, as no client may hold none")
        if self.max_redraws < 0:
            raise ConfigError(f"partition: max_redraws={self.max_redraws} must be 0 or more")
        if self.rule not in RULES:
            raise ConfigError(f"partition: rule={self.rule!r} is not right; {nearest(self.rule, RULES)}")

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
            counts_Kd = RULES[self.rule](n_d, K, float(self.alpha), seed, redraw)
            smallest = int(counts_Kd.sum(axis=1).min())
            if smallest >= self.min_size:
                return Shares(counts_Kd, redraw)
            best = max(best, smallest)
        raise ConfigError(
            f"partition: alpha={self.alpha} with K={K} left a client below min_size={self.min_size} in each of "
            f"{self.max_redraws + 1} draws (smallest client at best {best} images): take a larger alpha, fewer clients"
            + (f" or min_size at most {best}" if best else "")
        )


Partition = Iid | ClassSkew | Dirichlet | Shards | FedMatchSkew


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
