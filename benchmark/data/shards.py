"""Shards: every client a few pieces of the sorted images, so that it sees few classes (SemiFL "Non-IID, K = 2").

Source: SemiFL, data.py, `non_iid`, tag "l": with 100 clients, 2 shards each and 10 classes, 20 shards a class.

Departures from the released code:
* K x classes_per_client need not be a multiple of d: the largest classes are then cut into one shard more.
* It permutes the shards, so that a client may get two of one class (distinct=False here); the paper says "at most K
  classes", and distinct=True exchanges such a shard with another client's.

Shapes: K clients, d classes, S shards of a client; `n_d` counts the images left in each class.
"""

from dataclasses import dataclass

import numpy as np

from benchmark.data.shuffle import shuffled
from benchmark.data.tables import IntArray, Shares
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream


@dataclass(frozen=True, kw_only=True)
class Shards:
    """K x classes_per_client shards, as many of each class (up to one), dealt out at random.

    classes_per_client: shards of a client. distinct: each of another class; else the same class may come twice.
    """

    classes_per_client: int = 2
    distinct: bool = True

    def __post_init__(self) -> None:
        if self.classes_per_client < 1:
            raise ConfigError(f"partition: classes_per_client={self.classes_per_client} must be at least 1")

    @property
    def R_nominal(self) -> float | None:
        return None

    def shares(self, n_d: IntArray, K: int, seed: int) -> Shares:
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
        return Shares(counts_Kd, 0)

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
    """Exchange shards between clients, in place, until no client holds two of one class.

    Each exchange lowers the number of repeats, so there is an end. One that does so always exists: class x, twice at
    client a, has at most K shards, so that some client b has none. Either b holds a class that a lacks, and a gains a
    class while b loses one at most and gains x; or b's S shards are all of the S - 2 or fewer other classes of a, so
    that b holds one of them twice, and b gains x for it while a gains and loses none.
    """
    for client in range(len(dealt_KS)):
        while _repeats(dealt_KS[client]):
            _exchange(dealt_KS, client, shuffled(np.arange(len(dealt_KS)), stream))


def _exchange(dealt_KS: IntArray, client: int, partners: IntArray) -> None:
    """Swap a shard that the client holds twice with the first partner's that leaves fewer repeats."""
    labels, numbers = np.unique(dealt_KS[client], return_counts=True)
    slot = int(np.flatnonzero(dealt_KS[client] == labels[numbers.argmax()])[0])
    for partner in partners.tolist():
        if dealt_KS[client, slot] in dealt_KS[partner]:
            continue
        before = _repeats(dealt_KS[client]) + _repeats(dealt_KS[partner])
        for other in range(dealt_KS.shape[1]):
            _swap(dealt_KS, (client, slot), (partner, other))
            if _repeats(dealt_KS[client]) + _repeats(dealt_KS[partner]) < before:
                return
            _swap(dealt_KS, (client, slot), (partner, other))
    raise AssertionError("no exchange lowers the number of repeats")


def _swap(dealt_KS: IntArray, one: tuple[int, int], other: tuple[int, int]) -> None:
    dealt_KS[one], dealt_KS[other] = dealt_KS[other], dealt_KS[one]


def _repeats(held_S: IntArray) -> int:
    return len(held_S) - len(np.unique(held_S))
