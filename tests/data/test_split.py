"""Who holds which image: conservation, the server's share, realised R by Eq. 2, hashes, refusals.

Shapes: N images, K clients, d classes.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.data.partition import ClassSkew, Dirichlet, FedMatchSkew, Iid, Shards
from benchmark.data.split import SplitSpec, class_counts_in_use, mean_total_variation, share_unlabelled, split
from benchmark.errors import ConfigError

BALANCED_N = np.tile(np.arange(10), 600)  # interleaved by class, as packed cifar10 is
RULES = (
    Iid(),
    ClassSkew(R=0.4),
    ClassSkew(R=0.7, sizes="equal"),
    Dirichlet(alpha=0.8, min_size=1),
    Dirichlet(alpha=0.8, min_size=1, rule="limited"),
    Dirichlet(alpha=0.8, min_size=1, rule="fedswitch"),
    Dirichlet(alpha=0.8, min_size=1, rule="fedswitch_at_once"),
    Dirichlet(alpha=0.8, min_size=1, rule="sage"),
    Shards(classes_per_client=2, distinct=False),
)


@given(
    n_d=st.lists(st.integers(30, 120), min_size=2, max_size=8),
    K=st.integers(1, 8),
    a_class=st.integers(0, 10),
    N_validation=st.integers(0, 40),
    rule=st.sampled_from(RULES),
    seed=st.integers(-5, 5),
)
def test_nothing_lost_and_nothing_given_twice(n_d, K, a_class, N_validation, rule, seed):
    K = max(K, len(n_d)) if isinstance(rule, Shards) else 2 * K  # fewer shards than classes would be refused
    labels_N = np.random.default_rng(0).permutation(np.repeat(np.arange(len(n_d)), n_d))
    d = len(n_d)
    spec = SplitSpec(num_classes=d, N_s=a_class * d, K=K, partition=rule, seed=seed, N_validation=N_validation)
    shared = split(labels_N, spec)
    held = np.concatenate([shared.server_N, shared.validation_N, *shared.clients])
    np.testing.assert_array_equal(np.sort(held), np.arange(len(labels_N)))
    assert shared.counts(labels_N, [shared.server_N]).tolist() == [[a_class] * len(n_d)]
    validation_d = np.bincount(labels_N[shared.validation_N], minlength=len(n_d))
    assert validation_d.sum() == N_validation
    if N_validation <= 20 * len(n_d):  # no class runs out
        assert validation_d.max() - validation_d.min() <= 1
    assert len(shared.clients) == K and all(len(client) for client in shared.clients)


@given(
    per_client=st.integers(1, 4),
    K=st.sampled_from([6, 12]),
    N_s=st.sampled_from([0, 30]),
    N_validation=st.integers(0, 40),
    rule=st.sampled_from([*RULES, FedMatchSkew()]),
    seed=st.integers(0, 5),
)
def test_labels_at_the_clients_move_neither_server_nor_validation(per_client, K, N_s, N_validation, rule, seed):
    """And they are in the hash: without them, or as further clients' images, it is another one."""
    labels_N = BALANCED_N[:900]
    spec = SplitSpec(num_classes=10, N_s=N_s, K=K, partition=rule, seed=seed, N_validation=N_validation)
    without = split(labels_N, spec)
    shared = split(labels_N, replace(spec, labels_per_client=per_client))
    np.testing.assert_array_equal(shared.server_N, without.server_N)
    np.testing.assert_array_equal(shared.validation_N, without.validation_N)
    np.testing.assert_array_equal(shared.counts(labels_N, shared.labelled), np.full((K, 10), per_client))
    everything = [shared.server_N, shared.validation_N, *shared.labelled, *shared.clients]
    np.testing.assert_array_equal(np.sort(np.concatenate(everything)), np.arange(900))
    assert without.labelled == () and without.counts(labels_N, without.labelled).shape == (0, 10)
    further = replace(shared, labelled=(), clients=(*shared.clients, *shared.labelled))
    assert len({shared.hash(), further.hash(), replace(shared, labelled=()).hash()}) == 3


def test_the_hash_sees_a_move_but_not_an_order():
    """Swapping an image of client 0 with one of client 1 changes the hash; reversing a client's list does not."""
    shared = split(BALANCED_N, SplitSpec(num_classes=10, N_s=100, K=4, partition=Iid(), seed=0))
    first, second, *others = shared.clients
    assert replace(shared, clients=(first[::-1], second, *others)).hash() == shared.hash()
    assert replace(shared, clients=(second, first, *others)).hash() != shared.hash()
    joined = np.concatenate([first, second])
    assert replace(shared, clients=(joined[:1], joined[1:], *others)).hash() != shared.hash()


@given(st.integers(2, 8), st.integers(1, 6), st.integers(0, 10**6))
def test_realised_R_is_definition_2(K, d, seed):
    """Against Eq. 2 written as its double sum over pairs."""
    counts_Kd = np.random.default_rng(seed).integers(0, 50, (K, d)) + np.eye(K, d, dtype=int) + 1
    P_Kd = counts_Kd / counts_Kd.sum(axis=1, keepdims=True)
    pairs = [abs(P_Kd[k] - P_Kd[m]).sum() / 2 for k, m in combinations(range(K), 2)]
    assert mean_total_variation(counts_Kd) == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"N_s": 105}, "N_s=105 is not a multiple of the 10 classes; type --data.N_s=100 or 110"),
        ({"N_s": 7}, "type --data.N_s=10$"),
        ({"N_s": 10**400}, "class 0 has 600; type --data.N_s=5990, the most that is possible"),
        ({"N_s": 6010}, "class 0 has 600; type --data.N_s=5990, the most that is possible"),
        ({"K": 5901}, "K can be at most 5900"),
        ({"N_validation": 5901}, "N_validation=5901, .* 5900 images are left"),
        ({"N_validation": 5895}, "K=10 clients share 5 images"),
        ({"labels_per_client": 60}, "600 images of each class for K=10 clients, .* 590 left; .* at most 59"),
        ({"labelled_share": 0.001}, "labelled_share=0.001 of class 0 is 0 of its 590 images"),
        ({"labelled_share": 0.01, "K": 51}, r"5 labelled images of each class \(labelled_share=0.01\): .* at most 50"),
        ({"num_classes": 11, "N_s": 110}, "class 10 has 0"),
    ],
)
def test_numbers_the_labels_cannot_give(changed, words):
    setting = {"num_classes": 10, "N_s": 100, "K": 10, "partition": Iid(), "seed": 0} | changed
    with pytest.raises(ConfigError, match=words):
        split(BALANCED_N, SplitSpec(**setting))


def test_clients_without_images_are_refused():
    """R = 1, K = 5, classes of 5 and 1 images: class 1 is main of two clients, and one image cannot feed both."""
    labels_N = np.array([0, 0, 0, 0, 0, 1])
    with pytest.raises(ConfigError, match=r"K=5 leaves 1 clients without an image .*or sizes='equal'"):
        split(labels_N, SplitSpec(num_classes=2, N_s=0, K=5, partition=ClassSkew(R=1), seed=0))
    of_one_class = SplitSpec(num_classes=10, N_s=0, K=20, partition=FedMatchSkew(), seed=0)
    with pytest.raises(ConfigError, match=r"FedMatchSkew\(\) with K=20 leaves \d+ clients without an image"):
        split(np.zeros(20, dtype=int), of_one_class)  # 20 x 0.02 / 2 = 0.2 images for type 5
    shared = split(labels_N, SplitSpec(num_classes=2, N_s=0, K=5, partition=ClassSkew(R=1, sizes="equal"), seed=0))
    assert sorted(len(client) for client in shared.clients) == [1, 1, 1, 1, 2]


@given(K=st.integers(1, 30), more=st.integers(0, 50))
def test_unlabelled_images_are_shared_equally(K, more):
    clients = share_unlabelled(K + more, K, 0)
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(K + more))
    assert max(map(len, clients)) - min(map(len, clients)) <= 1
    with pytest.raises(ConfigError, match="at most 3"):
        share_unlabelled(3, 4, 0)


@given(n_d=st.lists(st.integers(1, 90), min_size=2, max_size=8).map(np.array), images=st.integers(1, 800))
def test_a_cap_takes_the_same_share_of_each_class(n_d, images):
    """Every class keeps its exact share, images n_c / N, rounded down or up; together they are the cap."""
    used_d = class_counts_in_use(n_d, images)
    assert used_d.sum() == min(images, n_d.sum())
    assert (abs(used_d - n_d * min(images / n_d.sum(), 1.0)) < 1 + 1e-9).all()


@pytest.mark.parametrize("rule", [Iid(), Dirichlet(alpha=0.8)])
def test_server_and_clients_see_no_image_beyond_the_cap(rule):
    """1,000 of 6,000 images: 100 of each class; the server's and held-out images stay the same."""
    spec = SplitSpec(num_classes=10, N_s=100, K=10, partition=rule, seed=3, N_validation=50)
    whole = split(BALANCED_N, spec)
    capped = split(BALANCED_N, replace(spec, images=1000))
    assert capped.hash() != whole.hash()
    np.testing.assert_array_equal(capped.server_N, whole.server_N)
    np.testing.assert_array_equal(capped.validation_N, whole.validation_N)
    in_use = np.concatenate([capped.server_N, capped.validation_N, *capped.clients])
    assert len(np.unique(in_use)) == len(in_use) == 1000
    assert np.bincount(BALANCED_N[in_use]).tolist() == [100] * 10
