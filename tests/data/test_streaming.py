"""Images that arrive in steps: every image once, in equal parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.data.streaming import arrivals
from benchmark.errors import ConfigError


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 15), more=st.integers(0, 200), seed=st.integers(0, 5), client=st.integers(0, 5))
def test_every_image_arrives_once_in_equal_steps(steps, more, seed, client):
    positions_N = np.arange(steps + more) * 3
    parts = arrivals(positions_N, steps, seed, client)
    assert len(parts) == steps and max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all((np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), positions_N)


def test_seed_and_client_decide_and_the_order_given_does_not():
    positions_N = np.arange(100)
    firsts = [arrivals(positions_N, 4, seed, client)[0].tobytes() for seed, client in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert len(set(firsts)) == 3
    assert arrivals(positions_N[::-1], 4, 0, 0)[0].tobytes() == firsts[0]


def test_more_steps_than_images_are_refused():
    with pytest.raises(ConfigError, match="streaming_steps: 10, but client 4 has 9 unlabelled images; choose 9"):
        arrivals(np.arange(9), 10, 0, 4)
