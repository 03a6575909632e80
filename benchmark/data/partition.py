"""Partition rules: how many images of each class each client gets.

`ClassSkew` is appendix A.2 of SSFL (gradient diversity and grouping), Eq. 9 and 10; `Dirichlet` is the family of
RSCFed, SemiFL and FedSwitch; `Shards` is SemiFL's other one and `FedMatchSkew` that of FedMatch. A rule gives a table
of counts; which image goes where is drawn in `split.py`.

Departures of ClassSkew from A.2 as printed:
* Main classes when K < d: a client's main is a set of classes, set sizes differing by at most one, and Eq. 9 is summed
  over the set. The paper runs such a case (Table F.1: EMNIST, K = 20 and 10) without saying how.
* Eq. 9 is not an integer: class by class the largest remainders are rounded up, then single images are exchanged until
  every client, too, has its target rounded down or up. Every image is given exactly once.
* Eq. 10 prints q_j(1-R) for i = j and q_i(1-R) otherwise; both are the n_i(1-R)q_j/m_j of Eq. 9 over n_j/m_j.
* The released code gives equal sizes and hands images out twice when a class runs out (utils_v2.py:632-664): not here.

Shapes: K clients, d classes, M holders among whom something is shared, S shards of a client; `n_d` counts the images
left in each class after the server's are taken.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from benchmark.config import Checked, Count, PositiveOfAnySize, Share, Whole, added
from benchmark.data.tables import (
    BoolArray,
    FloatArray,
    IntArray,
    Table,
    fractions,
    largest_remainders,
    round_table,
    rounded_to_sums,
    stratified,
)
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Equal clients, each in the proportions of the whole. Both up to rounding. The released SSFL code shuffles and
    cuts instead, which leaves a realised R above 0."""

    R_nominal: ClassVar[float | None] = 0.0

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Counts for K clients; draws nothing."""
        return round_table(stratified(_equal_sizes(n_d, K), n_d))


@dataclass(frozen=True, kw_only=True)
class ClassSkew(Checked):
    """R of the way from stratified clients (0) to clients sorted by class (1).

    Eq. 9: each client's main classes are mixed into equal proportions.
    R: the papers' nominal R. The realised R (Eq. 2) equals it for K <= d and is lower for K > d, since two clients with
    one main class are at distance 0.
    sizes: "paper": a client has n_j/m_j images, m_j clients sharing main class j equally. "equal": every client N/K
    images up to one: a main class with too few is shared equally, and its clients are filled up from what the larger
    classes have left. Where classes are equal and K is a multiple of d the two are the same.
    """

    R: Share  # mixing: 0 stratified, 1 sorted by class
    sizes: Literal["paper", "equal"] = "paper"  # of clients

    @property
    def R_nominal(self) -> float | None:
        return float(self.R)

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Counts for K clients; draws nothing."""
        sorted_Kd = self._sorted_end(n_d, main_classes(n_d, K))
        R = Fraction(str(float(self.R)))  # 0.4 is 2/5, not the nearest double
        return round_table(R * sorted_Kd + (1 - R) * stratified(sorted_Kd.sum(axis=1), n_d))

    def _sorted_end(self, n_d: IntArray, mains_Kd: BoolArray) -> Table:
        """(K, d) the R = 1 end of Eq. 9: each class shared equally by the clients it is a main class of."""
        sorted_Kd = mains_Kd * fractions(n_d, mains_Kd.sum(axis=0))
        if self.sizes == "paper":
            return sorted_Kd
        size_K = _equal_sizes(n_d, len(mains_Kd))
        sorted_Kd *= (size_K / np.maximum(sorted_Kd.sum(axis=1), size_K))[:, None]
        left_d = n_d - sorted_Kd.sum(axis=0)
        return sorted_Kd + np.outer(size_K - sorted_Kd.sum(axis=1), left_d / (left_d.sum() or 1))


def _equal_sizes(n_d: IntArray, K: int) -> Table:
    return np.full(K, Fraction(int(n_d.sum()), K))


def main_classes(n_d: IntArray, K: int) -> BoolArray:
    """(K, d) True where a class is a main class of a client. Classes are dealt out largest first (ties: lower label).
    K >= d: one class each, m_j differing by at most one. K < d: sets, sizes differing by at most one."""
    d = len(n_d)
    turns = np.arange(max(K, d))
    mains_Kd = np.zeros((K, d), dtype=bool)
    mains_Kd[turns % K, np.argsort(-n_d, kind="stable")[turns % d]] = True
    return mains_Kd


Streams = Callable[..., np.random.Generator]  # by name
Rule = Callable[[IntArray, int, float, Streams], IntArray]  # (n_d, K, alpha, streams) -> counts_Kd


def class_by_class(n_d: IntArray, K: int, alpha: float, streams: Streams, limited: bool = False) -> IntArray:
    """(K, d) each class in its own proportions over the clients. `limited`: those with less than N/K images so far,
    of whom there are some while images are left."""
    counts_Kd, open_K = np.zeros((K, len(n_d)), dtype=np.int64), np.ones(K, dtype=bool)
    for label, n in enumerate(n_d.tolist()):
        if n:
            if limited:
                open_K = counts_Kd.sum(axis=1) * K < n_d.sum()
            exact_M = streams("class", label).dirichlet(np.full(int(open_K.sum()), alpha)) * n
            counts_Kd[open_K, label] = largest_remainders(exact_M, n)
    return counts_Kd


def equal_clients(n_d: IntArray, K: int, alpha: float, streams: Streams) -> IntArray:
    """(K, d) equal clients, each in its own proportions. Sizes are equal up to one image; proportions are of the
    classes that are left."""
    counts_Kd = np.zeros((K, len(n_d)), dtype=np.int64)
    size, larger = divmod(int(n_d.sum()), K)
    concentration_d = alpha * n_d / n_d.sum()
    stock_d = n_d.astype(np.int64)
    for client in range(K):
        log_weights_d = _log_gamma_draws(concentration_d, streams("client", client))
        counts_Kd[client] = take_in_proportion(size + (client < larger), log_weights_d, stock_d)
        stock_d -= counts_Kd[client]
    return counts_Kd


def equal_clients_at_once(n_d: IntArray, K: int, alpha: float, streams: Streams) -> IntArray:
    """(K, d) as `equal_clients`, with the same draws, but all clients take at the same pace."""
    concentration_d = alpha * n_d / n_d.sum()
    log_weights_Kd = np.stack([_log_gamma_draws(concentration_d, streams("client", client)) for client in range(K)])
    exact_Kd, left_d, wanted = np.zeros((K, len(n_d))), n_d.astype(np.float64), n_d.sum() / K
    while (open_d := left_d > 1e-6).any() and wanted > 1e-6:  # images; a class is used up in each turn but the last
        top_K = log_weights_Kd[:, open_d].max(axis=1, keepdims=True)
        weights_Kd = np.exp(log_weights_Kd - top_K, where=open_d, out=np.zeros_like(exact_Kd))
        weights_Kd /= weights_Kd.sum(axis=1, keepdims=True)
        pace_d = weights_Kd.sum(axis=0)[open_d]
        taken = min(wanted, float((left_d[open_d] / np.maximum(pace_d, 1e-300)).min()))  # by each client
        exact_Kd += taken * weights_Kd
        left_d -= taken * weights_Kd.sum(axis=0)
        wanted -= taken
    size, larger = divmod(int(n_d.sum()), K)
    return rounded_to_sums(exact_Kd, size + (np.arange(K) < larger), n_d)


def pairs_of_clients(n_d: IntArray, K: int, alpha: float, streams: Streams) -> IntArray:
    """(K, d) equal clients, in pairs that share a random slice of the images. What the first has beyond half of the
    slice, its last classes, is the second's; what it lacks, the second's first ones."""
    if K % 2:
        raise ConfigError(f"partition: rule 'sage' deals images to pairs of clients, K={K} is odd; choose K={K + 1}")
    ends = (np.arange(K + 1) * n_d.sum() // K).tolist()
    left_d, slices, counts_Kd = n_d.astype(np.int64), streams("slices"), []
    for first in range(0, K, 2):
        begin, middle, end = ends[first : first + 3]
        slice_d = slices.multivariate_hypergeometric(left_d, end - begin)  # of shuffled images, a cut
        left_d -= slice_d
        row_D = _shared_by_two(slice_d, alpha, streams("pair", first)).ravel()
        of_first_D = np.clip(middle - begin - (row_D.cumsum() - row_D), 0, row_D)
        counts_Kd += [of_first_D.reshape(2, -1).sum(axis=0), (row_D - of_first_D).reshape(2, -1).sum(axis=0)]
    return np.stack(counts_Kd)


def _shared_by_two(n_d: IntArray, alpha: float, stream: np.random.Generator) -> IntArray:
    """(2, d) each class in its own proportions, but none for a client with half of the images. Drawn until both have a
    quarter. Cut down to whole images as released: rounded, fewer clients would hold a single image of a class."""
    for _ in range(1000):
        counts_2d = np.zeros((2, len(n_d)), dtype=np.int64)
        for label, (n, share) in enumerate(zip(n_d.tolist(), stream.beta(alpha, alpha, len(n_d)), strict=True)):
            open_2 = 2 * counts_2d.sum(axis=1) < n_d.sum()
            of_first = int(n * (share if open_2.all() else open_2[0]))
            counts_2d[:, label] = of_first, n - of_first
        if counts_2d.sum(axis=1).min() >= n_d.sum() // 4:
            return counts_2d
    raise ConfigError(
        f"partition: alpha={alpha} left one of two clients below a quarter of their images in each of 1,000 draws: "
        "take a larger alpha"
    )


RULES: Mapping[str, Rule] = {
    "plain": class_by_class,
    "limited": partial(class_by_class, limited=True),
    "fedswitch": equal_clients,
    "fedswitch_at_once": equal_clients_at_once,
    "sage": pairs_of_clients,
}


def _log_gamma_draws(concentration_d: FloatArray, stream: np.random.Generator) -> FloatArray:
    """(d,) logarithms of Gamma(concentration) draws, -inf where it is 0. Normalised, they are a Dirichlet draw.
    Logarithms, since at alpha = 0.01 most plain draws are 0 in floating point and what is left after a class is used up
    would be 0/0. Gamma(a) is Gamma(a + 1) U^(1/a) (Marsaglia and Tsang 2000, section 6)."""
    larger_d = stream.standard_gamma(concentration_d + 1)
    uniform_d = 1 - stream.random(len(concentration_d))  # in (0, 1]: its logarithm is finite
    with np.errstate(divide="ignore", invalid="ignore"):
        log_d = np.log(larger_d) + np.log(uniform_d) / concentration_d
    return np.where(concentration_d > 0, log_d, -np.inf)


def take_in_proportion(size: int, log_weights_d: FloatArray, stock_d: IntArray) -> IntArray:
    """(d,) `size` images in these proportions. A class that would run out is taken whole and the others are
    renormalised."""
    taken_d = np.zeros_like(stock_d)
    open_d = stock_d > 0
    while (wanted := size - int(taken_d.sum())) > 0:
        weights_d = np.exp(log_weights_d - log_weights_d[open_d].max(), where=open_d, out=np.zeros(len(stock_d)))
        exact_d = wanted * weights_d / weights_d.sum()
        short_d = open_d & (exact_d >= stock_d)
        if not short_d.any():
            return taken_d + largest_remainders(exact_d, wanted)
        taken_d[short_d] = stock_d[short_d]
        open_d &= ~short_d
    return taken_d


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Checked):
    """Proportions drawn from a Dirichlet distribution, by one of five rules.

    alpha: concentration; small is heterogeneous. min_size: least number of images of a client (at least 1).
    max_redraws: how many draws may be thrown away for a client below `min_size`.
    rule: which.
    * "plain" (the usual one): class by class, proportions over the clients from Dirichlet(alpha, ...).
    * "limited" (RSCFed, cifar_load.py, `partition_data_allnoniid`; SemiFL, data.py, `non_iid`, tag "d"; the two codes
      are alike): the same, but a client that holds N/K images or more gets proportion 0 of further classes, so that
      clients are of more equal size.
    * "fedswitch" (Hsu et al. 2019, arXiv 1909.06335, section 3.1): client by client, N/K images each, in proportions of
      the classes from Dirichlet(alpha p), p the proportions of the whole; used-up classes drop out of the later
      clients' draws. alpha = 1 with ten equal classes is Dirichlet(0.1, ..., 0.1).
    * "fedswitch_at_once" (ours): the same draws, and all clients take at once; in "fedswitch" the last clients get what
      the others left, and stay skewed at a large alpha.
    * "sage" (SAGE, sample_dirichlet.py:29-115): images are cut at random into equal slices, one for every two clients,
      who share it much as in "limited"; all is then strung together and cut into equal clients. So every two clients
      hold all classes, and alpha = 0.1 is about as mild as 0.8 of "plain" (K = 20, ten equal classes).

    Departures:
    * plain, limited: the released codes cut at floor(cumulated proportion x n); here the largest remainders are rounded
      up, and so they are in fedswitch, for which there is no released code.
    * limited: the released codes zero the full clients' proportions and renormalise. The rest of a Dirichlet draw,
      renormalised, is a Dirichlet draw over the rest, so that one is drawn: the same distribution, and never 0/0.
    * limited: SemiFL's released code shares out all training images and then takes the server's back from the clients
      that have them, so that its N counts them; here the server's come first and N counts the clients' images.
    * limited: RSCFed's released code shares out ten classes whatever the data set; its CIFAR-100 comes as a file.
    """

    alpha: PositiveOfAnySize
    min_size: Count = 10
    max_redraws: Whole = 1000
    rule: Literal["plain", "limited", "fedswitch", "fedswitch_at_once", "sage"] = added(
        "plain", former={"plain": "rscfed", "limited": "semifl"}
    )

    R_nominal: ClassVar[float | None] = None

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Counts for K clients. Raises ConfigError where no draw leaves every client `min_size` images."""
        most = int(n_d.sum()) // K
        if most < self.min_size:
            raise ConfigError(
                f"partition: min_size={self.min_size} for K={K} clients needs {K * self.min_size} images, "
                f"{int(n_d.sum())} are left: min_size can be at most {most}"
            )
        best = 0
        for redraw in range(self.max_redraws + 1):
            streams = partial(numpy_stream, seed, "partition", "dirichlet", "redraw", redraw)
            counts_Kd = RULES[self.rule](n_d, K, float(self.alpha), streams)
            smallest = int(counts_Kd.sum(axis=1).min())
            if smallest >= self.min_size:
                return counts_Kd
            best = max(best, smallest)
        raise ConfigError(
            f"partition: alpha={self.alpha} with K={K} left a client below min_size={self.min_size} in each of "
            f"{self.max_redraws + 1} draws (smallest client at best {best} images): take a larger alpha, fewer clients"
            + (f" or min_size at most {best}" if best else "")
        )


@dataclass(frozen=True, kw_only=True)
class Shards(Checked):
    """Equal shards of the sorted images, so that a client sees few classes.

    There are K x classes_per_client of them, as many of each class (up to one), dealt out at random. Source: SemiFL,
    data.py, `non_iid`, tag "l" ("Non-IID, K = 2"): with 100 clients, 2 shards each and 10 classes, 20 shards a class.

    Departures from the released code: K x classes_per_client need not be a multiple of d (the largest classes are then
    cut into one shard more). The code permutes the shards, so that a client may get two of one class (distinct=False
    here); the paper says "at most K classes", and distinct=True exchanges such a shard with another client's.
    """

    classes_per_client: Count = 2  # shards of a client
    distinct: bool = True  # each of another class

    R_nominal: ClassVar[float | None] = None

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Counts for K clients. Raises ConfigError where the classes cannot be cut into such shards."""
        shards_d = self._shards_of_classes(n_d, K)
        stream = numpy_stream(seed, "partition", "shards")
        dealt_KS = shuffled(np.repeat(np.arange(len(n_d)), shards_d), stream).reshape(K, self.classes_per_client)
        if self.distinct:
            _make_distinct(dealt_KS, stream)
        counts_Kd = np.zeros((K, len(n_d)), dtype=np.int64)
        for label, (n, shards) in enumerate(zip(n_d.tolist(), shards_d.tolist(), strict=True)):
            holders = shuffled(np.nonzero(dealt_KS == label)[0], stream)  # a client comes once for each shard
            sizes = n // shards + (np.arange(shards) < n % shards)
            np.add.at(counts_Kd[:, label], holders, sizes)
        return counts_Kd

    def _shards_of_classes(self, n_d: IntArray, K: int) -> IntArray:
        d, wanted = len(n_d), self.classes_per_client
        if self.distinct and wanted > d:
            raise ConfigError(
                f"partition: classes_per_client={wanted} distinct classes of {d}: take at most {d}, or distinct=False"
            )
        if K * wanted < d:
            raise ConfigError(
                f"partition: K={K} clients with classes_per_client={wanted} hold {K * wanted} shards, fewer than the "
                f"{d} classes: take classes_per_client={-(-d // K)} or more"
            )
        shards_d = np.full(d, K * wanted // d, dtype=np.int64)
        shards_d[np.argsort(-n_d, kind="stable")[: K * wanted % d]] += 1
        scarce = int((n_d - shards_d).argmin())
        if n_d[scarce] < shards_d[scarce]:
            raise ConfigError(
                f"partition: classes_per_client={wanted} with K={K} cuts class {scarce} into {shards_d[scarce]} "
                f"shards, it has {n_d[scarce]} images left: take fewer clients or fewer classes per client"
            )
        return shards_d


def _make_distinct(dealt_KS: IntArray, stream: np.random.Generator) -> None:
    """Exchange shards, in place, until no client has two of one class. Each exchange lowers the number of repeats, so
    it ends. One that does so always exists: class x, twice at client a, has at most K shards, so that some client b has
    none. Either b has a class that a lacks, and a gains a class while b loses one at most and gains x; or b's S shards
    are all of the S - 2 or fewer other classes of a, so that b has one of them twice, and b gains x for it while a
    gains and loses none."""
    for client in range(len(dealt_KS)):
        while len(np.unique(dealt_KS[client])) < dealt_KS.shape[1]:
            _exchange(dealt_KS, client, shuffled(np.arange(len(dealt_KS)), stream))


def _exchange(dealt_KS: IntArray, client: int, partners: IntArray) -> None:
    """Swap a repeated shard with the first partner that leaves fewer repeats."""
    labels, numbers = np.unique(dealt_KS[client], return_counts=True)
    twice = labels[numbers.argmax()]
    slot = int(np.flatnonzero(dealt_KS[client] == twice)[0])
    for partner in partners.tolist():
        held_S = dealt_KS[partner]
        for other, label in enumerate(held_S.tolist()):
            gains = label not in dealt_KS[client] or (held_S == label).sum() > 1
            if gains and twice not in held_S:
                dealt_KS[client, slot], held_S[other] = label, twice
                return
    raise AssertionError("no exchange lowers the number of repeats")


# Of type 0, in hundredths; type t is this moved t places to the right.
PERCENT_10 = (50, 15, 3, 3, 3, 2, 3, 3, 3, 15)


@dataclass(frozen=True, kw_only=True)
class FedMatchSkew:
    """FedMatch's "batch non-i.i.d.": one main class, two neighbours, one rare class.

    Jeong et al. 2021; FedSwitch's labelled settings use it, too. Client k is of type k mod 10: its main class has 0.50,
    two neighbours 0.15 each, six others 0.03 each and one 0.02. Source: data/generator.py, `split_u` (the table
    `ten_types_of_class_imbalanced_dist`).

    Departure: reports/fedswitch/departures.md, entry 11. Class j is shared in proportion to p_kj / sum_k p_kj, rounded.
    With K a multiple of ten and equal classes that is each client's N/K images in its proportions.
    """

    R_nominal: ClassVar[float | None] = None

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Counts for K clients; draws nothing. Raises ConfigError unless there are ten classes."""
        d = len(PERCENT_10)
        if len(n_d) != d:
            raise ConfigError(
                f"partition: FedMatchSkew is made for {d} classes, not {len(n_d)}: take ClassSkew(R=0.58)"
            )
        weights_Kd = np.array([np.roll(PERCENT_10, client) for client in range(K)])
        return round_table(weights_Kd * fractions(n_d, weights_Kd.sum(axis=0)))


Partition = Iid | ClassSkew | Dirichlet | Shards | FedMatchSkew
