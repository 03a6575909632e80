"""Assign each training image to the server or a client, and decide which participants have its label.

SSFL appendix A.2 (1): the server gets N_s/d images of each class. "N_s of each class" in the paper is a slip; the
released code, utils_v2.py:477-487, divides by d. The other images go to the clients by a rule of `partition.py`.

FedMatch and FedSwitch with labels at the clients: each client has some labelled images of every class, in addition to
the images that the rule assigns to it (FedMatch, data/generator.py, `split_s_and_u`: 5 of each class). SAGE labels
equally many images of each class, and the rule also assigns these to clients, in a separate draw (SAGE.py:309-323).

If fewer images are used than the set has (`images`), they are the first images in the order of each class, the same
share of each class.

The order of a class's images is one named draw. The images of the server, the validation images, the clients' labelled
images and their other images are cut from it one after the other. The server's images therefore depend only on the seed
and N_s, and runs that differ in K, R, alpha or `images` are paired by seed.

Label settings: "server", with labels at the server, is used by SSFL, SemiFL, FedMatch and FedSwitch; "every_client",
with labels at the clients, by FedMatch and FedSwitch; "some_clients" and "share" by RSCFed, Tables 1 to 4 and Table 5.
With "everywhere", clients have all labels, for upper bounds. "one_more_client", a setting of this suite, gives the
server's labels to an additional client, for comparisons with methods without server training. "drawn_apart" (SAGE)
draws the clients that have labelled images independently of the clients that have the other images. "open" is the
open-set setting of FedOpenMatch and OpenFL (ICLR 2026; see open_set.py): labels at the server, and unlabelled images at
clients that partly belong to classes without images at the server.

With "open", the partition rule distributes the images of all classes. Each client then gets a number of images in
proportion to the rule's counts. The share `unknown_share` of them belongs to unknown classes, up to rounding. The
sources only state that clients' data are heterogeneous; the share is exact in this suite, so that it can be varied
independently.

Deviations: reports/rscfed/departures.md, entry 10. "share": RSCFed only specifies 10 % of each client; this module
labels 10 % of each class of a client, as nearly as whole images allow.

Shapes: N training images, K clients, H participants, d classes. Index arrays are ascending int64 indices into the
training images.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from benchmark.data.partition import ClassSkew, Dirichlet, Partition, take_in_proportion
from benchmark.data.tables import IntArray, fractions, largest_remainders
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled, stream_seed


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Index arrays into the training images, which together contain every used image exactly once.

    `num_classes` includes unknown classes.
    """

    server_N: IntArray
    validation_N: IntArray  # labelled images at the server that are never trained on
    clients: tuple[IntArray, ...]
    num_classes: int
    partition: Partition
    seed: int
    labelled: tuple[IntArray, ...] = ()  # per client, in addition to `clients`; empty if clients have no labels

    def hash(self) -> str:
        """Return the sha256 (hex) of the assignment of images to participants.

        It is equal on every machine, and does not depend on the order of a participant's images.
        """
        digest = hashlib.sha256()
        participants = (self.server_N, self.validation_N, *self.clients)
        for participant, indices_N in enumerate((*participants, *self.labelled)):
            if participant == len(participants):
                digest.update(b"labelled")  # distinguishes the labelled images from further clients
            digest.update(len(indices_N).to_bytes(8, "little"))
            digest.update(np.sort(indices_N).astype("<i8").tobytes())
        return digest.hexdigest()

    def counts(self, labels_N: IntArray, participants: Sequence[IntArray] | None = None) -> IntArray:
        """Count the images of each class at these participants, (H, d); default: `clients`, without `labelled`."""
        held = self.clients if participants is None else participants
        counts = [np.bincount(labels_N[held_N], minlength=self.num_classes) for held_N in held]
        return np.array(counts, dtype=np.int64).reshape(-1, self.num_classes)


def mean_total_variation(counts_Kd: IntArray) -> float:
    """Compute Eq. 2 from counts: the sum over pairs k < m of |P_k - P_m|_1 / 2, divided by K(K-1)/2, or 0 for K = 1.

    For each class, the sum over pairs of |p_k - p_m| is sum_k (2k - K + 1) p_(k) over the ascending p, with K log K
    instead of K^2 operations.
    """
    K = len(counts_Kd)
    if K == 1:
        return 0.0
    ascending_Kd = np.sort(counts_Kd / counts_Kd.sum(axis=1, keepdims=True), axis=0)
    weights_K = 2 * np.arange(K) - K + 1
    total = float((weights_K[:, None] * ascending_Kd).sum()) / 2
    return min(max(round(total / (K * (K - 1) / 2), 12), 0.0), 1.0)  # further digits are rounding errors of the sum


@dataclass(frozen=True, kw_only=True)
class SplitSpec:
    """The rules by which `split` distributes training images."""

    num_classes: int
    N_s: int  # labelled images at the server
    K: int
    partition: Partition
    seed: int
    N_validation: int = 0  # labelled images at the server that are never trained on
    labels_per_client: int = 0  # labelled images of each class at each client
    images: int = 0  # largest number of images that are used, the same share of each class; 0: all
    # If above 0, this share of the rarest class is the number of images of each class that the partition rule first
    # distributes as labelled images.
    labelled_share: float = 0.0
    # The last classes are unknown: server and validation get no image of them, and they are `unknown_share` of each
    # client's images.
    unknown_classes: int = 0
    unknown_share: float = 0.0


def split(labels_N: IntArray, spec: SplitSpec) -> Split:
    """Distribute N training images among the server and K clients.

    The partition rule distributes the images that are left after those of the server, of the validation and of the
    clients' labels. Raise ConfigError if there are not enough labelled images for the numbers in `spec`.
    """
    K, partition, seed = spec.K, spec.partition, spec.seed
    n_d = class_counts_in_use(np.bincount(labels_N, minlength=spec.num_classes), spec.images)
    D = spec.num_classes - spec.unknown_classes
    server_d, validation_d = np.zeros_like(n_d), np.zeros_like(n_d)
    least_of_others = spec.N_validation + K * max(1, D * spec.labels_per_client)
    classes = "known classes" if spec.unknown_classes else "classes"
    server_d[:D] = _server_counts(n_d[:D], spec.N_s, others=least_of_others, classes=classes)
    validation_d[:D] = _validation_counts(n_d[:D] - server_d[:D], spec.N_validation)
    left_d = n_d - server_d - validation_d
    if spec.labelled_share:
        labelled_Kd = _labelled_apart(left_d, K, partition, seed, spec.labelled_share)
    else:
        labelled_Kd = _labelled_alike(left_d, K, spec.labels_per_client)
    left_d -= labelled_Kd.sum(axis=0)
    counts_Kd = _shares(left_d, K, partition, seed)
    if spec.unknown_classes:
        counts_Kd = with_unknown_share(counts_Kd, D, spec.unknown_share)
    server, validation, *of_clients = _deal(labels_N, np.vstack([server_d, validation_d, labelled_Kd, counts_Kd]), seed)
    return Split(
        server_N=server,
        validation_N=validation,
        labelled=tuple(of_clients[: len(labelled_Kd)]),
        clients=tuple(of_clients[len(labelled_Kd) :]),
        num_classes=spec.num_classes,
        partition=partition,
        seed=seed,
    )


def _shares(n_d: IntArray, K: int, partition: Partition, seed: int) -> IntArray:
    _check_clients(int(n_d.sum()), K)
    counts_Kd = partition.shares(n_d, K, seed)
    empty_K = np.flatnonzero(counts_Kd.sum(axis=1) == 0)
    if len(empty_K):
        raise ConfigError(
            f"{partition} with K={K} leaves {len(empty_K)} clients without an image (first client {empty_K[0]}); "
            "choose fewer clients" + (" or sizes='equal'" if isinstance(partition, ClassSkew) else "")
        )
    return counts_Kd


def _check_clients(left: int, K: int) -> None:
    if left < K:
        raise ConfigError(f"K={K} clients share {left} images, but each client needs one; K can be at most {left}")


def _labelled_alike(left_d: IntArray, K: int, labels_per_client: int) -> IntArray:
    """Return (K, d) counts with `labels_per_client` labelled images of each class at each client; (0, d) for none."""
    scarce = int(left_d.argmin())
    if labels_per_client * K > left_d[scarce]:
        raise ConfigError(
            f"labels_per_client={labels_per_client} needs {labels_per_client * K} images of each class for K={K} "
            f"clients, but class {scarce} has {left_d[scarce]} left; it can be at most {int(left_d[scarce]) // K}"
        )
    return np.full((K if labels_per_client else 0, len(left_d)), labels_per_client, dtype=np.int64)


def _labelled_apart(left_d: IntArray, K: int, partition: Partition, seed: int, share: float) -> IntArray:
    """Draw the (K, d) counts of labelled images of each class at each client.

    `min_size` of a Dirichlet partition applies to the other images, so that it is 1 in this draw.
    """
    scarce = int(left_d.argmin())
    a_class = int(Fraction(str(float(share))) * int(left_d[scarce]))  # 0.29 of 100 are 29, not 28
    if not a_class:
        raise ConfigError(
            f"labelled_share={share:g} of class {scarce} is 0 of its {left_d[scarce]} images; choose a larger share"
        )
    if isinstance(partition, Dirichlet):
        partition = replace(partition, min_size=1)
    try:
        return _shares(np.full_like(left_d, a_class), K, partition, stream_seed(seed, "labelled"))
    except ConfigError as error:
        raise ConfigError(f"{a_class} labelled images of each class (labelled_share={share:g}): {error}") from error


def with_unknown_share(counts_Kd: IntArray, D: int, share: float) -> IntArray:
    """Return (K, d) counts of clients that each have this share of images of unknown classes, the classes from D on.

    All clients keep the same part of the sizes in `counts_Kd`: the largest part for which there are enough known and
    unknown images. Other images are not used. Both numbers of a client are rounded down, so that its number of unknown
    images differs from `share` of its images by less than one. Within the known and within the unknown images, a client
    has the classes in the proportions of its row of `counts_Kd`, as far as these classes last; clients are served in
    their order. Raise ConfigError if a client would have no image.
    """
    n_d = counts_Kd.sum(axis=0)
    share_of = Fraction(str(float(share)))  # 0.4 is 2/5, not the nearest double
    parts = ((slice(None, D), 1 - share_of), (slice(D, None), share_of))
    N = int(n_d.sum())
    limits = [Fraction(int(n_d[part].sum()), N) / of_all for part, of_all in parts if of_all]
    kept = min(Fraction(1), *limits)
    result_Kd = np.zeros_like(counts_Kd)
    for part, of_all in parts:
        stock_d = n_d[part].copy()
        wanted_K = [int(of_all * kept * int(size)) for size in counts_Kd.sum(axis=1)]
        for client, wanted in enumerate(wanted_K):
            # A class that the rule does not give to the client only fills up the gaps of its own classes.
            weights_d = counts_Kd[client, part] + 1e-6 * n_d[part]
            with np.errstate(divide="ignore"):
                log_weights_d = np.log(weights_d)
            result_Kd[client, part] = take_in_proportion(wanted, log_weights_d, stock_d)
            stock_d -= result_Kd[client, part]
    empty_K = np.flatnonzero(result_Kd.sum(axis=1) == 0)
    if len(empty_K):
        raise ConfigError(
            f"unknown_share={share:g} with K={len(counts_Kd)} leaves client {empty_K[0]} without an image; "
            "choose fewer clients"
        )
    return result_Kd


def class_counts_in_use(n_d: IntArray, images: int) -> IntArray:
    """Return the (d,) numbers of images of each class if at most `images` are used; 0 means all.

    The share of each class is the same, rounded down, plus one image for the largest remainders, with ties to the lower
    label.
    """
    N = int(n_d.sum())
    return largest_remainders(fractions(images * n_d, N), images) if 0 < images < N else n_d


def share_unlabelled(N: int, K: int, seed: int, images: int = 0) -> tuple[IntArray, ...]:
    """Distribute N shuffled images without labels among K clients, in equal numbers up to one.

    STL-10 has such images (SSFL appendix I). `images` is the largest number of images that are used; 0 means all. Raise
    ConfigError if K is larger than this number.
    """
    in_use = min(images or N, N)
    _check_clients(in_use, K)
    order_N = shuffled(np.arange(N), numpy_stream(seed, "partition", "unlabelled"))[:in_use]
    return tuple(np.sort(order_N[client::K]) for client in range(K))


def _deal(labels_N: IntArray, sizes_Hd: IntArray, seed: int) -> list[IntArray]:
    """Cut the shuffled images of each class among H participants, in their order; return ascending indices for each."""
    owner_N = np.full(len(labels_N), -1)  # -1: not used
    for label, sizes_H in enumerate(sizes_Hd.T):
        order_N = shuffled(np.flatnonzero(labels_N == label), numpy_stream(seed, "partition", "class", label))
        owner_N[order_N[: sizes_H.sum()]] = np.repeat(np.arange(len(sizes_H)), sizes_H)
    return [np.flatnonzero(owner_N == participant) for participant in range(len(sizes_Hd))]


def _server_counts(n_d: IntArray, N_s: int, *, others: int, classes: str) -> IntArray:
    """Return the (d,) numbers of labelled images of each class at the server.

    `others` is the least number of images that clients and validation need, and `classes` names the classes in errors.
    Raise ConfigError, which names the nearest possible values, if N_s is not possible.
    """
    d = len(n_d)
    scarce = int(n_d.argmin())
    if N_s % d:
        wrong = f"is not a multiple of the {d} {classes}"
    elif N_s // d > n_d[scarce]:
        wrong = f"needs {N_s // d} images of each class, but class {scarce} has {n_d[scarce]}"
    else:
        return np.full(d, N_s // d, dtype=np.int64)
    most = max(min(int(n_d[scarce]), (int(n_d.sum()) - others) // d), 0) * d
    below = N_s // d * d
    possible = " or ".join(str(number) for number in (below, below + d) if 0 < number <= most)
    raise ConfigError(f"N_s={N_s} {wrong}; type --data.N_s={possible or f'{most}, the most that is possible'}")


def _validation_counts(n_d: IntArray, N_validation: int) -> IntArray:
    """Return the (d,) numbers of validation images of each class, as equal as the classes allow.

    One image of each class is taken in turn, from the largest class first.
    """
    if N_validation > n_d.sum():
        raise ConfigError(
            f"N_validation={N_validation}, but only {n_d.sum()} images are left after N_s; choose a smaller number"
        )
    label_N = np.repeat(np.arange(len(n_d)), n_d)
    turn_N = np.concatenate([np.arange(n) for n in n_d])
    first_N = np.lexsort((label_N, -n_d[label_N], turn_N))[:N_validation]
    return np.bincount(label_N[first_N], minlength=len(n_d))


# Labels


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelAssignment:
    """Index arrays of the labelled and unlabelled images of each client.

    There are K arrays of each kind, or K + 1 with "one_more_client". The two arrays of a client are disjoint, with two
    exceptions: with "everywhere", both contain all its images, and with "drawn_apart", its labelled images are also
    among the unlabelled ones.
    """

    labelled: tuple[IntArray, ...]
    unlabelled: tuple[IntArray, ...]
    hidden: bool  # whether the labels of `unlabelled` are hidden from the clients


def assign_labels(
    split: Split,
    labels_N: IntArray,
    setting: str,
    *,
    labelled_clients: int = 1,
    labelled_choice: str = "balanced",
    labelled_share: float = 0.1,
) -> LabelAssignment:
    """Return each client's labelled and unlabelled images in a label setting.

    With "some_clients", `labelled_clients` and `labelled_choice` decide how many and which clients have labels. With
    "share", `labelled_share` is the labelled share of each client's images. Raise ConfigError if the split does not
    have enough clients or labels for the setting.
    """
    K = len(split.clients)
    none = np.empty(0, dtype=np.int64)
    labelled, unlabelled = (none,) * K, split.clients  # "server" and "open"
    if setting == "everywhere":
        labelled = split.clients
    elif setting in ("every_client", "drawn_apart"):
        labelled = split.labelled
        if setting == "drawn_apart":
            unlabelled = tuple(np.sort(np.concatenate(pair)) for pair in zip(labelled, unlabelled, strict=True))
    elif setting == "some_clients":
        if labelled_clients > K:
            raise ConfigError(f"labelled_clients is {labelled_clients}, but K={K}; choose 1 to {K}")
        order = range(K) if labelled_choice == "first" else _balanced(split.counts(labels_N))
        chosen = set(order[:labelled_clients])
        labelled = tuple(own_N if client in chosen else none for client, own_N in enumerate(split.clients))
        unlabelled = tuple(none if client in chosen else own_N for client, own_N in enumerate(split.clients))
    elif setting == "share":
        share = Fraction(str(float(labelled_share)))  # 0.1 is 1/10, not the nearest double
        labelled = tuple(_labelled_part(split, client, labels_N, share) for client in range(K))
        pairs = zip(split.clients, labelled, strict=True)
        unlabelled = tuple(np.setdiff1d(own_N, taken_N, assume_unique=True) for own_N, taken_N in pairs)
    elif setting == "one_more_client":
        if len(split.server_N) == 0:
            raise ConfigError("label_setting is 'one_more_client', but the server has no labels; choose N_s 1 or more")
        labelled, unlabelled = (*labelled, split.server_N), (*unlabelled, none)
    return LabelAssignment(labelled=labelled, unlabelled=unlabelled, hidden=setting != "everywhere")


def with_extra(assigned: LabelAssignment, K: int, N: int, seed: int, images: int = 0) -> LabelAssignment:
    """Replace the K clients' unlabelled training images by equal shares of N images without labels.

    `images` is the largest number of images that are used; 0 means all. Raise ConfigError if K is larger than this
    number.
    """
    shares = share_unlabelled(N, K, seed, images)
    return replace(assigned, unlabelled=(*shares, *assigned.unlabelled[K:]))


def _balanced(counts_Kd: IntArray) -> list[int]:
    """Return the clients in the order of getting labels.

    Clients that lack the fewest classes are first. Ties go to the client nearest to N/K images, then to the lower
    number.
    """
    missing_K = (counts_Kd == 0).sum(axis=1)
    off_size_K = abs(len(counts_Kd) * counts_Kd.sum(axis=1) - counts_Kd.sum())  # K |n_k - N/K|, an integer
    return np.lexsort((off_size_K, missing_K)).tolist()


def _labelled_part(split: Split, client: int, labels_N: IntArray, share: Fraction) -> IntArray:
    """Draw the client's labelled images, class by class."""
    own_N = split.clients[client]
    of_class_N = labels_N[own_N]
    parts = []
    for label, count in enumerate(_stratified_counts(np.bincount(of_class_N, minlength=split.num_classes), share)):
        stream = numpy_stream(split.seed, "labelling", "share", "client", client, "class", label)
        parts.append(shuffled(own_N[of_class_N == label], stream)[:count])
    return np.sort(np.concatenate(parts))


def _stratified_counts(n_d: IntArray, share: Fraction) -> IntArray:
    """Return the (d,) numbers of labelled images of each class.

    Their total is `share` of all images, rounded to the nearest integer (half up), and at least 1. Each class gets its
    share rounded down, plus one image for the largest remainders, with ties to the larger class, then to the lower
    label.
    """
    total = max(1, int(share * int(n_d.sum()) + Fraction(1, 2)))
    exact_d = share * fractions(n_d, 1)
    counts_d = np.zeros_like(n_d)
    larger_first_d = np.argsort(-n_d, kind="stable")
    counts_d[larger_first_d] = largest_remainders(exact_d[larger_first_d], total)
    return counts_d
