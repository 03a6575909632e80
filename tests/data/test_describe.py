"""The JSON object of a split and its picture."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from benchmark.data.describe import describe, plot
from benchmark.data.partition import ClassSkew, Iid
from benchmark.data.split import split
from benchmark.errors import CannotWrite, ConfigError

LABELS_N = np.repeat(np.arange(2), 12)


def test_description_by_hand():
    """Two classes of 12; N_s = 4 takes 2 of each, leaving 10. R = 0.6, K = 2: 10 (0.6 + 0.4/2) = 8 and 10 x 0.4/2 = 2;
    the two clients are at distance (|.8-.2| + |.2-.8|)/2 = 0.6."""
    shared = split(LABELS_N, 2, 4, 2, ClassSkew(R=0.6), 0)
    described = json.loads(json.dumps(describe(shared, LABELS_N)))
    assert described == {
        "K": 2,
        "R_nominal": 0.6,
        "R_realised": pytest.approx(0.6),
        "counts": [[8, 2], [2, 8]],
        "server_counts": [2, 2],
        "hash": shared.hash(),
    }


def test_picture_says_what_it_shows(tmp_path):
    plot(split(LABELS_N, 2, 4, 2, ClassSkew(R=0.6), 0), LABELS_N, ("cat", "dog"), tmp_path / "a.svg")
    for name in ("a.pdf", "b.pdf"):
        plot(split(LABELS_N, 2, 4, 2, ClassSkew(R=0.6), 0), LABELS_N, ("cat", "dog"), tmp_path / name)
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()  # no clock
    words = " ".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    assert all(word in words for word in ("cat", "dog", "server", "client", "realised R = 0.600 (nominal 0.6)"))
    shared = split(LABELS_N, 2, 4, 2, Iid(), 0)
    for name, error, words in (("a.jpg", ConfigError, r"'\.jpg'"), ("absent/a.svg", CannotWrite, "No such file")):
        with pytest.raises(error, match=words):
            plot(shared, LABELS_N, ("cat", "dog"), tmp_path / name)
