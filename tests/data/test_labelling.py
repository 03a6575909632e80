"""Label settings: every image once, and the rules of each setting by hand.

Shapes: N images, K clients, d classes.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.data.partition import ClassSkew, Dirichlet, Iid
from benchmark.data.split import Split, SplitSpec, assign_labels, split
from benchmark.errors import ConfigError

LABELS_N = np.tile(np.arange(5), 60)


def hand_made(*clients: list[int], d: int = 3) -> tuple[Split, np.ndarray]:
    """Make a split with the listed number of images of each class at each client, and its labels."""
    labels_N = np.concatenate([np.repeat(np.arange(d), counts) for counts in clients])
    ends = np.cumsum([sum(counts) for counts in clients])
    arrays = tuple(np.arange(end - sum(counts), end) for counts, end in zip(clients, ends, strict=True))
    nothing_N = np.empty(0, dtype=np.int64)
    whole = Split(server_N=nothing_N, validation_N=nothing_N, clients=arrays, num_classes=d, partition=Iid(), seed=0)
    return whole, labels_N


@given(
    setting=st.sampled_from(("server", "every_client", "some_clients", "share", "one_more_client")),
    K=st.integers(2, 12),
    share=st.floats(0.01, 0.99),
    labelled_clients=st.integers(1, 11),
    choice=st.sampled_from(["first", "balanced"]),
    rule=st.sampled_from([Iid(), ClassSkew(R=0.8), Dirichlet(alpha=0.5, min_size=1)]),
)
def test_nothing_lost_and_nothing_twice(setting, K, share, labelled_clients, choice, rule):
    """What the clients hold (and the server's images, where they are a client's) comes once, labelled or unlabelled."""
    at_clients = 2 if setting == "every_client" else 0
    spec = SplitSpec(num_classes=5, N_s=20, K=K, partition=rule, seed=1, N_validation=10, labels_per_client=at_clients)
    whole = split(LABELS_N, spec)
    actual = assign_labels(
        whole,
        LABELS_N,
        setting,
        labelled_clients=min(labelled_clients, K),
        labelled_choice=choice,
        labelled_share=share,
    )
    clients = K + 1 if setting == "one_more_client" else K
    assert len(actual.labelled) == len(actual.unlabelled) == clients and actual.hidden
    server = whole.server_N if setting == "one_more_client" else whole.server_N[:0]
    given_N = np.sort(np.concatenate([*whole.clients, *whole.labelled, server]))
    np.testing.assert_array_equal(np.sort(np.concatenate([*actual.labelled, *actual.unlabelled])), given_N)
    assert len(np.unique(given_N)) == len(given_N)
    for images_N in (*actual.labelled, *actual.unlabelled):
        assert images_N.dtype == np.int64 and (np.diff(images_N) > 0).all()
    if setting in ("some_clients", "share"):  # a client's images stay with it
        for own, one, other in zip(whole.clients, actual.labelled, actual.unlabelled, strict=True):
            np.testing.assert_array_equal(np.sort(np.concatenate([one, other])), own)


def test_balanced_clients_are_complete_and_of_mean_size():
    """64 images, 4 clients, N/K = 16. Client 0 lacks a class; clients 1 and 3 lack none with 8 and 24 images, that is
    8 off each, so the lower number goes first; client 2 lacks none and has 15, 1 off. Order: 2, 1, 3, 0."""
    whole, labels_N = hand_made([17, 0, 0], [3, 3, 2], [5, 5, 5], [8, 8, 8])
    for choice, count, expected in (
        ("balanced", 1, [2]),
        ("balanced", 2, [1, 2]),
        ("balanced", 3, [1, 2, 3]),
        ("first", 2, [0, 1]),
    ):
        actual = assign_labels(whole, labels_N, "some_clients", labelled_clients=count, labelled_choice=choice)
        assert [client for client, images_N in enumerate(actual.labelled) if len(images_N)] == expected
    assert [len(images_N) for images_N in actual.unlabelled] == [0, 0, 15, 24]


@given(
    half=st.integers(1, 6),
    share=st.floats(0.1, 0.9),
    rule=st.sampled_from([Iid(), Dirichlet(alpha=0.5, rule="sage", min_size=1), Dirichlet(alpha=0.5, min_size=1)]),
    seed=st.integers(0, 9),
)
def test_labels_drawn_apart_are_among_the_unlabelled_images_too(half, share, rule, seed):
    """floor(share x 40) of each class, 40 images of the rarest, are dealt out by the rule, and so are the others."""
    labels_N = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [60, 40, 50, 70]))
    spec = SplitSpec(num_classes=4, N_s=0, K=2 * half, partition=rule, seed=seed, labelled_share=share)
    whole = split(labels_N, spec)
    actual = assign_labels(whole, labels_N, "drawn_apart")
    m = int(40 * share)
    assert whole.counts(labels_N, whole.labelled).sum(axis=0).tolist() == [m] * 4 and actual.hidden
    assert sorted(np.concatenate([*whole.clients, *actual.labelled])) == list(range(220))  # each once
    for labelled_N, own_N, unlabelled_N in zip(actual.labelled, whole.clients, actual.unlabelled, strict=True):
        assert len(labelled_N)
        np.testing.assert_array_equal(unlabelled_N, np.union1d(labelled_N, own_N))
    if rule != Dirichlet(alpha=0.5, min_size=1):  # the two rules with equal clients
        assert np.ptp([len(images_N) for images_N in actual.labelled]) <= 1


@pytest.mark.parametrize(
    ("client", "share", "expected"),
    [
        # 5.5 -> 6 images; exact 2.5, 1.6, 1.4: 2 + 1 + 1 and the two largest remainders, 0.6 and 0.5.
        ([25, 16, 14], 0.1, [3, 2, 1]),
        # 0.3 images are raised to one: remainders 0.1, 0.2, 0: the second class.
        ([1, 2, 0], 0.1, [0, 1, 0]),
        # 1.5 -> 2 of 3, a half goes up; three remainders of 0.5.
        ([1, 1, 1], 0.5, [1, 1, 0]),
        # 2 of 20: exact 0.5, 1.5: of equal remainders the larger class's.
        ([5, 15, 0], 0.1, [0, 2, 0]),
    ],
)
def test_a_share_of_each_client_by_hand(client, share, expected):
    whole, labels_N = hand_made(client, [10, 10, 10])
    actual = assign_labels(whole, labels_N, "share", labelled_share=share)
    assert np.bincount(labels_N[actual.labelled[0]], minlength=3).tolist() == expected


def test_settings_that_cannot_be():
    whole = split(LABELS_N, SplitSpec(num_classes=5, N_s=0, K=3, partition=Iid(), seed=0))
    with pytest.raises(ConfigError, match="labelled_clients is 4, .*K=3; choose 1 to 3"):
        assign_labels(whole, LABELS_N, "some_clients", labelled_clients=4)
    with pytest.raises(ConfigError, match="N_s"):
        assign_labels(whole, LABELS_N, "one_more_client")
