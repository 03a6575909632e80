"""Label settings: which client holds labels of which images.

Sources: "server" SSFL, SemiFL, FedMatch and FedSwitch (labels at the server); "every_client" FedMatch and FedSwitch
(labels at the clients); "some_clients" and "share" RSCFed, Tables 1 to 4 and Table 5; "everywhere" the upper bounds.
"one_more_client" is ours: the server's labels as a client's, for comparisons with methods without server training.
"drawn_apart" SAGE: who holds a label does not follow from who holds the other images.

Departures: reports/rscfed/departures.md, entry 10. "share": RSCFed says 10 % of each client and no more; here of each
class as nearly as whole images allow.

Shapes: N images, K clients, d classes; index arrays are int64 into the training images, ascending.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from benchmark.data.split import Labels, Split, as_labels
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelAssignment:
    """Index arrays by client, labelled and unlabelled. K of each kind, or K + 1 under "one_more_client"; either kind
    may be empty for a client. The two kinds of a client are disjoint, except under "everywhere", where both are all its
    images, and "drawn_apart", where its labelled images are among the unlabelled ones, too."""

    labelled: tuple[IntArray, ...]
    unlabelled: tuple[IntArray, ...]
    hidden: bool  # whether the labels of `unlabelled` are out of the clients' sight


def assign_labels(
    split: Split,
    labels_N: Labels,
    setting: str,
    *,
    labelled_clients: int = 1,
    labelled_choice: str = "balanced",
    labelled_share: float = 0.1,
) -> LabelAssignment:
    """Each client's labelled and unlabelled images under one of the label settings.

    labelled_clients, labelled_choice: of "some_clients", how many and which ("first" or "balanced"). labelled_share:
    of "share", the part of each client's images, in (0, 1). Raises ConfigError for a setting that the split cannot
    give, and for labels at the clients (`split.labelled`) that the setting would leave unused.
    """
    if split.labelled and setting not in ("every_client", "drawn_apart"):
        raise ConfigError(
            f"label_setting: {setting!r} has no use for labels_per_client={len(split.labelled[0]) // split.num_classes}"
            "; choose label_setting every_client or labels_per_client 0"
        )
    all_N = as_labels(labels_N, split.num_classes)
    K, none = len(split.clients), np.empty(0, dtype=np.int64)
    labelled, unlabelled = (none,) * K, split.clients  # "server"
    if setting == "everywhere":
        labelled = split.clients
    elif setting == "every_client":
        if not split.labelled:
            raise ConfigError("label_setting: 'every_client' needs labels_per_client of 1 or more, it is 0")
        labelled = split.labelled
    elif setting == "drawn_apart":
        labelled = split.labelled
        pairs = zip(labelled, split.clients, strict=True)
        unlabelled = tuple(np.sort(np.concatenate(pair)) for pair in pairs)
    elif setting == "some_clients":
        if not 1 <= labelled_clients <= K:
            raise ConfigError(f"labelled_clients: {labelled_clients} of K={K} clients; choose 1 to {K}")
        order = range(K) if labelled_choice == "first" else _balanced(split.counts(all_N))
        chosen = set(order[:labelled_clients])
        labelled = tuple(own_N if client in chosen else none for client, own_N in enumerate(split.clients))
        unlabelled = tuple(none if client in chosen else own_N for client, own_N in enumerate(split.clients))
    elif setting == "share":
        share = Fraction(str(float(labelled_share)))  # 0.1 is 1/10, not the nearest double
        labelled = tuple(_labelled_part(split, client, all_N, share) for client in range(K))
        pairs = zip(split.clients, labelled, strict=True)
        unlabelled = tuple(np.setdiff1d(own_N, taken_N, assume_unique=True) for own_N, taken_N in pairs)
    elif setting == "one_more_client":
        if len(split.server_N) == 0:
            raise ConfigError("label_setting: 'one_more_client' makes a client of the server's labels, but N_s=0")
        labelled, unlabelled = (*labelled, split.server_N), (*unlabelled, none)
    return LabelAssignment(labelled=labelled, unlabelled=unlabelled, hidden=setting != "everywhere")


def _balanced(counts_Kd: IntArray) -> list[int]:
    """Clients in the order in which they are given labels. First those that miss the fewest classes, then those nearest
    to N/K images, then the lower number."""
    missing_K = (counts_Kd == 0).sum(axis=1)
    off_size_K = abs(len(counts_Kd) * counts_Kd.sum(axis=1) - counts_Kd.sum())  # K |n_k - N/K|, whole
    return np.lexsort((off_size_K, missing_K)).tolist()


def _labelled_part(split: Split, client: int, all_N: IntArray, share: Fraction) -> IntArray:
    """The client's labelled images, drawn class by class."""
    images_N = split.clients[client]
    labels_N = all_N[images_N]
    parts = []
    for label, count in enumerate(_stratified_counts(np.bincount(labels_N, minlength=split.num_classes), share)):
        stream = numpy_stream(split.seed, "labelling", "share", "client", client, "class", label)
        parts.append(shuffled(images_N[labels_N == label], stream)[:count])
    return np.sort(np.concatenate(parts))


def _stratified_counts(n_d: IntArray, share: Fraction) -> list[int]:
    """(d,) images of each class that are labelled. In all, `share` of the images, to the nearest whole number (half up)
    and at least one; of each class its share rounded down, and one more for the largest remainders (ties: the larger
    class, then the lower label)."""
    exact_d = [share * int(n) for n in n_d]
    total = max(1, int(share * int(n_d.sum()) + Fraction(1, 2)))
    counts_d = [int(exact) for exact in exact_d]
    order_d = sorted(range(len(exact_d)), key=lambda c: (counts_d[c] - exact_d[c], -int(n_d[c]), c))
    for label in order_d[: total - sum(counts_d)]:
        counts_d[label] += 1
    return counts_d
