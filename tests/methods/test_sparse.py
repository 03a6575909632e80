"""Weights sent as changes: bytes by hand, and what arrives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.federated.ledger import tree_bytes
from benchmark.methods.fedmatch import applied, changes, hard_threshold

NUMBERS = st.floats(-4, 4, width=32)


@pytest.mark.parametrize(
    ("changed", "form", "size"),
    [
        (0, None, 0),
        (1, "positions", 8),
        (2, "bits", 16),  # 8 bytes of 64 bits and 2 x 4; as positions also 16: of equals the positions
        (3, "bits", 20),  # as positions 24
        (61, "bits", 252),
        (62, "dense", 256),  # 8 + 62 x 4 = 256: of equals the tensor itself
        (64, "dense", 256),
    ],
)
def test_bytes_by_hand(changed, form, size):
    """A tensor of 8 x 8 entries of four bytes: 256 whole; positions 8 each; bits 8 and 4 each."""
    before = {"w": torch.zeros(8, 8)}
    after = {"w": torch.cat([torch.ones(changed), torch.zeros(64 - changed)]).reshape(8, 8)}
    sent = changes(before, after, 0.5)
    assert tree_bytes(sent) == size
    if form == "dense":
        assert isinstance(sent["w"], torch.Tensor)
    elif form:
        assert form in sent["w"] or changed == 2
    assert torch.equal(applied(before, sent)["w"], after["w"])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=80), st.sampled_from([0.0, 0.3, 2.0]))
def test_entries_that_moved_take_the_new_value_and_others_the_old(pairs, threshold):
    old, new = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    before, after = {"w": old, "same": torch.ones(3)}, {"w": new, "same": torch.ones(3)}
    sent = changes(before, after, threshold)
    got = applied(before, sent)["w"]
    far = (new - old).abs() > threshold
    assert torch.equal(got[far], new[far]) and torch.equal(got[~far], old[~far])
    assert "same" not in sent and tree_bytes(sent) <= tree_bytes({"w": new})
    if threshold == 0.0:
        assert torch.equal(got, new)


def test_what_is_not_finite_is_sent():
    """So that a divergence is seen where it is, and not taken for an entry that did not move."""
    before, after = {"w": torch.zeros(3)}, {"w": torch.tensor([0.0, math.nan, math.inf])}
    got = applied(before, changes(before, after, 1e9))["w"]
    assert got[0] == 0 and got[1].isnan() and got[2].isinf()


def test_hard_threshold_by_hand():
    kept = hard_threshold({"w": torch.tensor([-0.5, -0.2, 0.0, 0.2, 0.3])}, 0.2)
    assert torch.equal(kept["w"], torch.tensor([-0.5, 0.0, 0.0, 0.0, 0.3]))
