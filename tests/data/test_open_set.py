"""The open-set label setting: who has images of unknown classes, and how many; refusals.

Shapes: N images, K clients, d classes, of which the first D are known.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.data.datasets import load
from benchmark.data.open_set import with_unknown
from benchmark.data.split import SplitSpec, split, with_unknown_share
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import Data, Experiment, from_json, to_json
from benchmark.federated.environment import prepare
from benchmark.methods.protocol import CENTRAL, SERVER
from benchmark.methods.registry import METHODS, method_name
from benchmark.papers.arena import OPEN
from tests.data.test_split import RULES
from tests.methods.watch import tiny_with

DIGITS = load("digits")


@given(
    n_d=st.lists(st.integers(40, 120), min_size=3, max_size=8),
    unknown=st.integers(1, 6),
    K=st.integers(1, 4),
    a_class=st.integers(1, 10),
    N_validation=st.integers(0, 20),
    share=st.floats(0.0, 0.95),
    rule=st.sampled_from(RULES),
    seed=st.integers(-5, 5),
)
def test_each_client_has_the_share_and_the_server_nothing_of_it(
    n_d, unknown, K, a_class, N_validation, share, rule, seed
):
    """No image twice; the server's and the validation images are known and as without unknown classes; |unknown - share
    n| < 1 at each client; and only whole images stop clients from using up the known or the unknown ones."""
    d = len(n_d)
    K = 2 * K
    unknown = min(unknown, d - 2)
    D = d - unknown
    labels_N = np.random.default_rng(0).permutation(np.repeat(np.arange(d), n_d))
    K = max(K, d)  # fewer shards than classes would be refused
    K += K % 2
    spec = SplitSpec(
        num_classes=d,
        N_s=a_class * D,
        K=K,
        partition=rule,
        seed=seed,
        N_validation=N_validation,
        unknown_classes=unknown,
        unknown_share=share,
    )
    whole = split(labels_N, spec)
    held = np.concatenate([whole.server_N, whole.validation_N, *whole.clients])
    assert len(np.unique(held)) == len(held)
    assert labels_N[whole.server_N].max() < D
    assert np.bincount(labels_N[whole.server_N], minlength=D).tolist() == [a_class] * D
    assert len(whole.validation_N) == N_validation and (labels_N[whole.validation_N] < D).all()
    closed_N = np.flatnonzero(labels_N < D)  # the set without the unknown classes
    closed = replace(spec, num_classes=D, K=1, partition=RULES[0], unknown_classes=0, unknown_share=0.0)
    alone = split(labels_N[closed_N], closed)
    np.testing.assert_array_equal(closed_N[alone.server_N], whole.server_N)
    counts_Kd = whole.counts(labels_N)
    exact = Fraction(str(share))
    for count_d in counts_Kd:
        assert abs(int(count_d[D:].sum()) - exact * int(count_d.sum())) < 1
    left_d = np.array(n_d) - np.bincount(labels_N[whole.server_N], minlength=d)
    left_d -= np.bincount(labels_N[whole.validation_N], minlength=d)
    unused = left_d - counts_Kd.sum(axis=0)
    assert (unused >= 0).all() and min(unused[:D].sum(), unused[D:].sum() if share else d * K) <= K


def test_a_share_by_hand():
    """Two clients of 10 and 30 images; two known classes with 24 images, two unknown ones with 16: 40 % are unknown.

    A quarter: at most 24 known of 3/4 of 40 = 30, so that clients keep 24/30 = 4/5 of their 10 and 30 images: 8 and 24,
    of which 2 and 6 are unknown. Client 0 has known images of class 0 only, and no unknown image: its 2 come from the
    two unknown classes, of which there are 8 each. Class 0 has 12 images: client 0 takes 6 of them, and client 1, which
    has 2 of class 0 and 12 of class 1, fills 18 with the 6 that are left.
    """
    counts_Kd = np.array([[10, 0, 0, 0], [2, 12, 8, 8]])
    assert with_unknown_share(counts_Kd, 2, 0.25).tolist() == [[6, 0, 1, 1], [6, 12, 3, 3]]
    assert with_unknown_share(counts_Kd, 2, 0.0).sum(axis=0).tolist() == [12, 12, 0, 0]
    with pytest.raises(ConfigError, match="leaves client 0 without an image; choose fewer clients"):
        with_unknown_share(np.array([[1, 0], [1, 90]]), 1, 0.5)


def test_classes_are_in_the_order_known_unknown():
    """1 and 8 of the digits are unknown: 0 stays 0, 2 to 7 become 1 to 6, 9 becomes 7, 1 and 8 become 8 and 9."""
    marked = with_unknown(DIGITS, (1, 8))
    assert marked.classes == tuple("02345679") and marked.unknown == ("1", "8") and marked.num_classes == 8
    expected_d = torch.tensor([0, 8, 1, 2, 3, 4, 5, 6, 9, 7])
    assert torch.equal(marked.train_labels_N, expected_d[DIGITS.train_labels_N])
    assert torch.equal(marked.test_labels_N, expected_d[DIGITS.test_labels_N])
    assert marked.train_images_NCHW is DIGITS.train_images_NCHW


@pytest.mark.parametrize("unknown", [(), (-1,), (10,), tuple(range(9))])
def test_impossible_unknown_classes_are_refused(unknown):
    with pytest.raises(ConfigError, match="unknown_classes"):
        with_unknown(DIGITS, unknown)


def test_a_test_set_without_unknown_images_is_refused():
    closed_N = DIGITS.test_labels_N != 9
    images_NCHW, labels_N = DIGITS.test_images_NCHW[closed_N], DIGITS.test_labels_N[closed_N]
    closed = replace(DIGITS, test_images_NCHW=images_NCHW, test_labels_N=labels_N)
    with pytest.raises(DataError, match="no test image of the unknown classes"):
        with_unknown(closed, (9,))


def test_no_label_of_an_unlabelled_image_is_visible_and_none_of_an_unknown_class_at_all():
    environment = prepare(tiny_with(METHODS["fedavg_fixmatch"](), "open"))
    assert environment.data.num_classes == 6 and environment.network()(torch.zeros(1, 1, 8, 8)).shape == (1, 6)
    for client in range(4):
        part = environment.part(client, "unlabelled")
        assert part.labels_N is None and not len(environment.part(client, "labelled"))
        assert part.truth_N is not None
        truth_N = part.truth_N[part.positions_N]
        original_N = DIGITS.train_labels_N[part.positions_N]
        assert torch.equal(truth_N, torch.where(original_N < 6, original_N, -1)) and (truth_N < 0).any()
    for holder in (SERVER, CENTRAL):
        part = environment.part(holder, "labelled")
        assert part.labels_N is not None
        assert len(part) == 18 and part.labels_N[part.positions_N].bincount().tolist() == [3] * 6


SUITED = {name for name, kind in METHODS.items() if OPEN in kind().needs}


@pytest.mark.parametrize("name", METHODS)
def test_methods_declare_whether_they_suit(name):
    """Only methods that can learn from labels at the server and unlabelled images at clients may suit."""
    method = METHODS[name]()
    if name in SUITED:
        assert "server" in method.needs and method_name(tiny_with(method, "open").method) == name
        return
    with pytest.raises(ConfigError, match="data.label_setting 'open' does not suit method"):
        tiny_with(method, "open")


def test_suited_methods():
    assert {"ssfl", "semifl", "flfl", "fedprox_fixmatch", "server_only", "fixmatch", "fedavg_energy"} <= SUITED
    assert not {"fedswitch", "rscfed", "sage", "supervised_fl"} & SUITED


def test_the_setting_has_one_key_and_fields_that_only_it_uses():
    """The order of classes does not matter; other settings do not have these fields in their keys, and refuse them."""
    e = tiny_with(METHODS["fedavg_fixmatch"](), "open")
    mixed, sorted_ = (replace(e, data=replace(e.data, unknown_classes=classes)) for classes in ((9, 1), (1, 9)))
    assert mixed.cell_key == sorted_.cell_key != e.cell_key
    assert from_json(to_json(mixed)) == sorted_
    closed = to_json(Experiment(), hashed=True)["data"]
    assert not {"unknown_classes", "unknown_share"} & closed.keys()
    with pytest.raises(ConfigError, match="unknown_share is 0.5, .* choose label_setting 'open'"):
        Data(unknown_share=0.5)
    with pytest.raises(ConfigError, match="N_s is 0"):
        Data(label_setting="open", N_s=0)
    with pytest.raises(ConfigError, match="not a multiple of the 6 known classes"):
        prepare(replace(e, data=replace(e.data, N_s=20)))
