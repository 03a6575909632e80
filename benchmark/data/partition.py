"""Define the partition rules, which decide how many images of each class each client gets.

`ClassSkew` is appendix A.2 of SSFL (gradient diversity and grouping), Eqs. 9 and 10. `Dirichlet` is the family of rules
of RSCFed, SemiFL and FedSwitch. `Shards` is the second rule of SemiFL, and `FedMatchSkew` is the rule of FedMatch. A
rule computes a table of counts; `split.py` draws which image goes to which client.

Deviations of ClassSkew from the published A.2:
* If K < d, a client has a set of main classes; the sizes of these sets differ by at most one between clients, and Eq. 9
  is summed over the set. The paper reports such a case (Table F.1: EMNIST, K = 20 and 10), but does not describe it.
* Eq. 9 is not an integer. For each class, the largest remainders are rounded up. Then single images are exchanged until
  each client also has its target size, rounded down or up. Every image is assigned exactly once.
* Eq. 10 prints q_j(1-R) for i = j and q_i(1-R) for i != j; both are the n_i(1-R)q_j/m_j of Eq. 9 over n_j/m_j.
* The released code uses equal sizes and assigns images twice when a class runs out (utils_v2.py:632-664); this module
  does not.

Shapes: K clients, d classes, M clients that share a class, S shards of a client. `n_d` counts the images of each class
that remain after the server's images are taken.
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
    """Clients of equal size with equal class proportions, both up to rounding.

    The released SSFL code instead shuffles all images and cuts them, which leaves a realised R above 0.
    """

    R_nominal: ClassVar[float | None] = 0.0

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Compute the (K, d) counts without random draws."""
        return round_table(stratified(_equal_sizes(n_d, K), n_d))


@dataclass(frozen=True, kw_only=True)
class ClassSkew(Checked):
    """A mixture of stratified clients (R = 0) and clients sorted by class (R = 1), SSFL Eq. 9.

    R is the papers' nominal R: the share of its main classes in a client's images beyond equal proportions.
    The realised R (Eq. 2) equals it for K <= d, and is lower for K > d, because two clients with the same main class
    have distance 0.

    sizes = "paper": a client has n_j/m_j images, where m_j clients share main class j equally. sizes = "equal": every
    client has N/K images, up to one. A main class with too few images is shared equally, and its clients are filled up
    with remaining images of the larger classes. The two are the same if classes are equally large and K is a multiple
    of d.
    """

    R: Share  # degree of mixing: 0 is stratified, 1 is sorted by class
    sizes: Literal["paper", "equal"] = "paper"  # sizes of the clients

    @property
    def R_nominal(self) -> float | None:
        return float(self.R)

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Compute the (K, d) counts without random draws."""
        sorted_Kd = self._sorted_end(n_d, main_classes(n_d, K))
        R = Fraction(str(float(self.R)))  # 0.4 is 2/5, not the nearest double
        return round_table(R * sorted_Kd + (1 - R) * stratified(sorted_Kd.sum(axis=1), n_d))

    def _sorted_end(self, n_d: IntArray, mains_Kd: BoolArray) -> Table:
        """Compute the counts for R = 1 in Eq. 9, (K, d): the clients of a main class share it equally."""
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
    """Return a (K, d) array that is true if a class is a main class of a client.

    Classes are assigned in turn, the largest first, and the lower label first among equal ones. If K >= d, each client
    has one main class and the numbers m_j of clients per class differ by at most one. If K < d, each client has a set
    of main classes, and the sizes of the sets differ by at most one.
    """
    d = len(n_d)
    turns = np.arange(max(K, d))
    mains_Kd = np.zeros((K, d), dtype=bool)
    mains_Kd[turns % K, np.argsort(-n_d, kind="stable")[turns % d]] = True
    return mains_Kd


Streams = Callable[..., np.random.Generator]  # returns the stream with a name
Rule = Callable[[IntArray, int, float, Streams], IntArray]  # (n_d, K, alpha, streams) -> counts_Kd


def class_by_class(n_d: IntArray, K: int, alpha: float, streams: Streams, limited: bool = False) -> IntArray:
    """Compute (K, d) counts with random proportions over the clients for each class.

    If `limited`, only the clients with fewer than N/K images so far get images of a class. Such clients exist as long
    as images remain.
    """
    counts_Kd = np.zeros((K, len(n_d)), dtype=np.int64)
    open_K = np.ones(K, dtype=bool)
    for label, n in enumerate(n_d.tolist()):
        if n:
            if limited:
                open_K = counts_Kd.sum(axis=1) * K < n_d.sum()
            exact_M = streams("class", label).dirichlet(np.full(int(open_K.sum()), alpha)) * n
            counts_Kd[open_K, label] = largest_remainders(exact_M, n)
    return counts_Kd


def equal_clients(n_d: IntArray, K: int, alpha: float, streams: Streams) -> IntArray:
    """Compute (K, d) counts of clients that are equally large, up to one image, with random class proportions each.

    The proportions of a client apply to the classes that still have images.
    """
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
    """Compute (K, d) counts like `equal_clients`, with the same draws, but let all clients take images at once.

    All clients take images at the same pace until a class is used up; its share then goes to the remaining classes.
    """
    concentration_d = alpha * n_d / n_d.sum()
    log_weights_Kd = np.stack([_log_gamma_draws(concentration_d, streams("client", client)) for client in range(K)])
    exact_Kd = np.zeros((K, len(n_d)))
    left_d = n_d.astype(np.float64)
    wanted = n_d.sum() / K
    while (open_d := left_d > 1e-6).any() and wanted > 1e-6:  # in images; each turn but the last uses up a class
        top_K = log_weights_Kd[:, open_d].max(axis=1, keepdims=True)
        weights_Kd = np.exp(log_weights_Kd - top_K, where=open_d, out=np.zeros_like(exact_Kd))
        weights_Kd /= weights_Kd.sum(axis=1, keepdims=True)
        pace_d = weights_Kd.sum(axis=0)[open_d]
        taken = min(wanted, float((left_d[open_d] / np.maximum(pace_d, 1e-300)).min()))  # per client
        exact_Kd += taken * weights_Kd
        left_d -= taken * weights_Kd.sum(axis=0)
        wanted -= taken
    size, larger = divmod(int(n_d.sum()), K)
    return rounded_to_sums(exact_Kd, size + (np.arange(K) < larger), n_d)


def pairs_of_clients(n_d: IntArray, K: int, alpha: float, streams: Streams) -> IntArray:
    """Compute (K, d) counts of equally large clients; each pair shares a random slice of the images (SAGE).

    If the first client of a pair has more than half of the slice, its last classes go to the second client. If it has
    less than half, it gets the first classes of the second client.
    """
    if K % 2:
        raise ConfigError(f"partition: rule 'sage' assigns images to pairs, but K={K} is odd; choose K={K + 1}")
    ends = (np.arange(K + 1) * n_d.sum() // K).tolist()
    left_d = n_d.astype(np.int64)
    slices = streams("slices")
    counts_Kd = []
    for first in range(0, K, 2):
        begin, middle, end = ends[first : first + 3]
        slice_d = slices.multivariate_hypergeometric(left_d, end - begin)  # equals a cut of shuffled images
        left_d -= slice_d
        row_D = _shared_by_two(slice_d, alpha, streams("pair", first)).ravel()
        of_first_D = np.clip(middle - begin - (row_D.cumsum() - row_D), 0, row_D)
        counts_Kd += [of_first_D.reshape(2, -1).sum(axis=0), (row_D - of_first_D).reshape(2, -1).sum(axis=0)]
    return np.stack(counts_Kd)


def _shared_by_two(n_d: IntArray, alpha: float, stream: np.random.Generator) -> IntArray:
    """Draw (2, d) counts with random proportions per class, but no images for a client with half of all images.

    Draw again until both clients have a quarter of the images. The counts are truncated to integers, as in the released
    code; with rounding, fewer clients would have a single image of a class. Raise ConfigError after 1,000 draws.
    """
    for _ in range(1000):
        counts_2d = np.zeros((2, len(n_d)), dtype=np.int64)
        for label, (n, share) in enumerate(zip(n_d.tolist(), stream.beta(alpha, alpha, len(n_d)), strict=True)):
            open_2 = 2 * counts_2d.sum(axis=1) < n_d.sum()
            of_first = int(n * (share if open_2.all() else open_2[0]))
            counts_2d[:, label] = of_first, n - of_first
        if counts_2d.sum(axis=1).min() >= n_d.sum() // 4:
            return counts_2d
    raise ConfigError(
        f"partition: alpha={alpha} left one client of a pair with less than a quarter of their images in each of 1,000 "
        "draws; choose a larger alpha"
    )


RULES: Mapping[str, Rule] = {
    "plain": class_by_class,
    "limited": partial(class_by_class, limited=True),
    "fedswitch": equal_clients,
    "fedswitch_at_once": equal_clients_at_once,
    "sage": pairs_of_clients,
}


def _log_gamma_draws(concentration_d: FloatArray, stream: np.random.Generator) -> FloatArray:
    """Return (d,) logarithms of Gamma(concentration) draws, or -inf for a concentration of 0.

    The normalised draws are a Dirichlet draw. Logarithms are needed because at alpha = 0.01 most plain draws are 0 in
    floating point, and the proportions would be 0/0 after a class is used up. Gamma(a) is Gamma(a + 1) U^(1/a)
    (Marsaglia and Tsang 2000, section 6).
    """
    larger_d = stream.standard_gamma(concentration_d + 1)
    uniform_d = 1 - stream.random(len(concentration_d))  # in (0, 1]: its logarithm is finite
    with np.errstate(divide="ignore", invalid="ignore"):
        log_d = np.log(larger_d) + np.log(uniform_d) / concentration_d
    return np.where(concentration_d > 0, log_d, -np.inf)


def take_in_proportion(size: int, log_weights_d: FloatArray, stock_d: IntArray) -> IntArray:
    """Return (d,) counts of `size` images with these log proportions.

    If a class would run out, all of its images are taken, and the proportions of the other classes are renormalised.
    """
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
    """Proportions that are drawn from a Dirichlet distribution, by one of five rules.

    alpha is the concentration; a small one is heterogeneous. min_size is the least number of images of a client (at
    least 1). max_redraws is the number of draws that may be discarded because a client is below `min_size`. The rules
    are:
    * "plain", the usual rule: for each class, the proportions over the clients are drawn from Dirichlet(alpha, ...).
    * "limited" (RSCFed, cifar_load.py, `partition_data_allnoniid`; SemiFL, data.py, `non_iid`, tag "d"; both codes do
      the same): like "plain", but a client with N/K images or more gets proportion 0 of further classes, so that the
      sizes of clients are more equal.
    * "fedswitch" (Hsu et al. 2019, arXiv 1909.06335, section 3.1): one client after the other draws N/K images, with
      class proportions from Dirichlet(alpha p), where p are the proportions of the whole set. Used-up classes drop out
      of the draws of later clients. alpha = 1 with ten equal classes is Dirichlet(0.1, ..., 0.1).
    * "fedswitch_at_once", a rule of this suite: the same draws, but all clients draw images at once. In "fedswitch",
      the last clients get the remaining images, and stay skewed at a large alpha.
    * "sage" (SAGE, sample_dirichlet.py:29-115): images are cut at random into equal slices, one for every two clients,
      which share it similarly to "limited". All images are then concatenated and cut into equal clients. Every two
      clients therefore have all classes, and alpha = 0.1 is about as mild as 0.8 for "plain" (K = 20, ten equal
      classes).

    Deviations:
    * plain, limited: the released codes cut at floor(cumulated proportion x n). This class rounds up the largest
      remainders, also for fedswitch, which has no released code.
    * limited: the released codes set the proportions of full clients to 0 and renormalise. The rest of a renormalised
      Dirichlet draw is a Dirichlet draw over the rest, so this class draws from the latter: the distribution is the
      same, and 0/0 cannot occur.
    * limited: SemiFL's released code partitions all training images and then removes the server's images from the
      clients, so that its N counts them. This class partitions the images that remain after the server's are taken, and
      N counts the clients' images.
    * limited: RSCFed's released code partitions ten classes for any data set; its partition of CIFAR-100 is a file.
    """

    alpha: PositiveOfAnySize
    min_size: Count = 10
    max_redraws: Whole = 1000
    rule: Literal["plain", "limited", "fedswitch", "fedswitch_at_once", "sage"] = added(
        "plain", former={"plain": "rscfed", "limited": "semifl"}
    )

    R_nominal: ClassVar[float | None] = None

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Draw the (K, d) counts. Raise ConfigError if no draw leaves every client at least `min_size` images."""
        most = int(n_d.sum()) // K
        if most < self.min_size:
            raise ConfigError(
                f"partition: min_size={self.min_size} for K={K} clients needs {K * self.min_size} images, "
                f"but only {int(n_d.sum())} are left; min_size can be at most {most}"
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
            f"{self.max_redraws + 1} draws (smallest client: at best {best} images); "
            "choose a larger alpha, fewer clients" + (f" or min_size at most {best}" if best else "")
        )


@dataclass(frozen=True, kw_only=True)
class Shards(Checked):
    """Equal shards of the sorted images, so that each client sees few classes.

    The K x classes_per_client shards are assigned at random; the numbers of shards per class differ by at most one.
    Source: SemiFL, data.py, `non_iid`, tag "l" ("Non-IID, K = 2"): 100 clients with 2 shards each and 10 classes give
    20 shards per class.

    Deviations from the released code: K x classes_per_client need not be a multiple of d; in this case, the largest
    classes are cut into one shard more. The code permutes the shards, so that a client may get two shards of one class,
    which is distinct=False. The paper writes "at most K classes"; distinct=True exchanges such a shard with a shard of
    a different client.
    """

    classes_per_client: Count = 2  # shards per client
    distinct: bool = True  # whether a client's shards are of different classes

    R_nominal: ClassVar[float | None] = None

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Draw the (K, d) counts. Raise ConfigError if the classes cannot be cut into such shards."""
        shards_d = self._shards_of_classes(n_d, K)
        stream = numpy_stream(seed, "partition", "shards")
        dealt_KS = shuffled(np.repeat(np.arange(len(n_d)), shards_d), stream).reshape(K, self.classes_per_client)
        if self.distinct:
            _make_distinct(dealt_KS, stream)
        counts_Kd = np.zeros((K, len(n_d)), dtype=np.int64)
        for label, (n, shards) in enumerate(zip(n_d.tolist(), shards_d.tolist(), strict=True)):
            holders = shuffled(np.nonzero(dealt_KS == label)[0], stream)  # a client appears once per shard
            sizes = n // shards + (np.arange(shards) < n % shards)
            np.add.at(counts_Kd[:, label], holders, sizes)
        return counts_Kd

    def _shards_of_classes(self, n_d: IntArray, K: int) -> IntArray:
        d = len(n_d)
        wanted = self.classes_per_client
        if self.distinct and wanted > d:
            raise ConfigError(
                f"partition: classes_per_client={wanted}, but there are only {d} distinct classes; "
                f"choose at most {d}, or distinct=False"
            )
        if K * wanted < d:
            raise ConfigError(
                f"partition: K={K} clients with classes_per_client={wanted} have {K * wanted} shards, fewer than the "
                f"{d} classes; choose classes_per_client={-(-d // K)} or more"
            )
        shards_d = np.full(d, K * wanted // d, dtype=np.int64)
        shards_d[np.argsort(-n_d, kind="stable")[: K * wanted % d]] += 1
        scarce = int((n_d - shards_d).argmin())
        if n_d[scarce] < shards_d[scarce]:
            raise ConfigError(
                f"partition: classes_per_client={wanted} with K={K} cuts class {scarce} into {shards_d[scarce]} "
                f"shards, but it has only {n_d[scarce]} images left; choose fewer clients or fewer classes per client"
            )
        return shards_d


def _make_distinct(dealt_KS: IntArray, stream: np.random.Generator) -> None:
    """Exchange shards in place until no client has two shards of one class.

    Each exchange lowers the number of repeats, so the loop ends. Such an exchange always exists: class x, which client
    a has twice, has at most K shards, so some client b has none of it. Either b has a class that a lacks; then a gains
    a class, while b loses at most one and gains x. Or all S shards of b belong to the S - 2 or fewer other classes of
    a, so that b has one of these classes twice; then b gains x for it, while a neither gains nor loses a class.
    """
    for client in range(len(dealt_KS)):
        while len(np.unique(dealt_KS[client])) < dealt_KS.shape[1]:
            _exchange(dealt_KS, client, shuffled(np.arange(len(dealt_KS)), stream))


def _exchange(dealt_KS: IntArray, client: int, partners: IntArray) -> None:
    """Exchange a repeated shard of the client with the first partner that leaves fewer repeats."""
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


# Class proportions of client type 0, in hundredths; type t is shifted t places to the right.
PERCENT_10 = (50, 15, 3, 3, 3, 2, 3, 3, 3, 15)


@dataclass(frozen=True, kw_only=True)
class FedMatchSkew:
    """FedMatch's "batch non-i.i.d.": one main class, two neighbours and one rare class per client.

    Jeong et al. 2021; FedSwitch's settings with labels at the clients also use it. Client k has type k mod 10: its main
    class has proportion 0.50, two neighbours have 0.15 each, six other classes have 0.03 each, and one has 0.02.
    Source: data/generator.py, `split_u` (the table `ten_types_of_class_imbalanced_dist`).

    Deviation: reports/fedswitch/departures.md, entry 11. The clients share class j in proportion to
    p_kj / sum_k p_kj, rounded. If K is a multiple of ten and classes are equally large, each client has N/K images in
    its proportions.
    """

    R_nominal: ClassVar[float | None] = None

    def shares(self, n_d: IntArray, K: int, seed: int) -> IntArray:
        """Compute the (K, d) counts without random draws. Raise ConfigError unless there are ten classes."""
        d = len(PERCENT_10)
        if len(n_d) != d:
            raise ConfigError(
                f"partition: FedMatchSkew needs {d} classes, but there are {len(n_d)}; choose ClassSkew(R=0.58)"
            )
        weights_Kd = np.array([np.roll(PERCENT_10, client) for client in range(K)])
        return round_table(weights_Kd * fractions(n_d, weights_Kd.sum(axis=0)))


Partition = Iid | ClassSkew | Dirichlet | Shards | FedMatchSkew
