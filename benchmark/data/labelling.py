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

from benchmark.data.split import Split
from benchmark.data.tables import IntArray, fractions, largest_remainders
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelAssignment:
    """Index arrays by client, labelled and unlabelled. K of each kind, or K + 1 under "one_more_client". The two kinds
    of a client are disjoint, except under "everywhere", where both are all its images, and "drawn_apart", where its
    labelled images are among the unlabelled ones, too."""

    labelled: tuple[IntArray, ...]
    unlabelled: tuple[IntArray, ...]
    hidden: bool  # whether the labels of `unlabelled` are out of the clients' sight


def assign_labels(
    split: Split,
    labels_N: IntArray,
    setting: str,
    *,
    labelled_clients: int = 1,
    labelled_choice: str = "balanced",
    labelled_share: float = 0.1,
) -> LabelAssignment:
    """Each client's labelled and unlabelled images under one of the label settings.

    labelled_clients, labelled_choice: how many and which ("some_clients"). labelled_share: of each client's images
    ("share"). Raises ConfigError for a setting that the split cannot give.
    """
    K, none = len(split.clients), np.empty(0, dtype=np.int64)
    labelled, unlabelled = (none,) * K, split.clients  # "server"
    if setting == "everywhere":
        labelled = split.clients
    elif setting in ("every_client", "drawn_apart"):
        labelled = split.labelled
        if setting == "drawn_apart":
            unlabelled = tuple(np.sort(np.concatenate(pair)) for pair in zip(labelled, unlabelled, strict=True))
    elif setting == "some_clients":
        if labelled_clients > K:
            raise ConfigError(f"labelled_clients: {labelled_clients} of K={K} clients; choose 1 to {K}")
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
            raise ConfigError("label_setting: 'one_more_client' makes a client of the server's labels, but N_s=0")
        labelled, unlabelled = (*labelled, split.server_N), (*unlabelled, none)
    return LabelAssignment(labelled=labelled, unlabelled=unlabelled, hidden=setting != "everywhere")


def _balanced(counts_Kd: IntArray) -> list[int]:
    """Clients in the order in which they are given labels. First those that miss the fewest classes, then those nearest
    to N/K images, then the lower number."""
    missing_K = (counts_Kd == 0).sum(axis=1)
    off_size_K = abs(len(counts_Kd) * counts_Kd.sum(axis=1) - counts_Kd.sum())  # K |n_k - N/K|, whole
    return np.lexsort((off_size_K, missing_K)).tolist()


def _labelled_part(split: Split, client: int, labels_N: IntArray, share: Fraction) -> IntArray:
    """The client's labelled images, drawn class by class."""
    own_N = split.clients[client]
    of_class_N = labels_N[own_N]
    parts = []
    for label, count in enumerate(_stratified_counts(np.bincount(of_class_N, minlength=split.num_classes), share)):
        stream = numpy_stream(split.seed, "labelling", "share", "client", client, "class", label)
        parts.append(shuffled(own_N[of_class_N == label], stream)[:count])
    return np.sort(np.concatenate(parts))


def _stratified_counts(n_d: IntArray, share: Fraction) -> IntArray:
    """(d,) images of each class that are labelled. In all, `share` of the images, to the nearest whole number (half up)
    and at least one; of each class its share rounded down, and one more for the largest remainders (ties: the larger
    class, then the lower label)."""
    total = max(1, int(share * int(n_d.sum()) + Fraction(1, 2)))
    exact_d = share * fractions(n_d, 1)
    counts_d, larger_first_d = np.zeros_like(n_d), np.argsort(-n_d, kind="stable")
    counts_d[larger_first_d] = largest_remainders(exact_d[larger_first_d], total)
    return counts_d
