"""`fssl data partition` takes the fields of a run, or a paper's cell, and refuses what a run refuses."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from benchmark.cli.data import describe, plot
from benchmark.cli.main import main
from benchmark.data.datasets import load
from benchmark.data.partition import ClassSkew, Dirichlet
from benchmark.data.split import SplitSpec, split
from benchmark.errors import CannotWrite, ConfigError
from tests.data.places import save_images

LABELS_N = np.repeat(np.arange(2), 12)
SIX = ["data", "partition", "--federation.K=6"]


def test_it_is_the_split_of_the_run_with_a_picture(printed, tmp_path):
    rule = ["--partition=dirichlet", "--partition.alpha=0.9", "--partition.rule=limited"]
    words = ["--data=digits", "--data.N_s=100", "--seed=3", "--json", "--plot", str(tmp_path / "a.svg")]
    actual = json.loads(printed(*SIX, *rule, *words))
    labels_N = load("digits").train_labels_N.numpy()
    limited = Dirichlet(alpha=0.9, rule="limited")
    expected = split(labels_N, SplitSpec(num_classes=10, N_s=100, K=6, partition=limited, seed=3))
    assert actual == json.loads(json.dumps(describe(expected, labels_N)))
    text = " ".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    assert all(word in text for word in ("server", "client", "realised R = 0."))


def test_names_are_printed_as_they_are(printed, tmp_path):
    """Square brackets, too, which the printer of tables takes for colours."""
    for name, grey in (("cat [wild]", 10), ("dog", 200)):
        save_images(tmp_path / "pets[old]" / name, 8, "L", (8, 8), red=grey)
    sizes = ["--data.N_s=4", "--federation.K=2", "--federation.C=1"]
    said = printed("data", "partition", f"--data=folder:{tmp_path}/pets[old]", *sizes)
    assert "cat [wild]" in said and "pets[old]: R = " in said


def test_a_description_by_hand():
    """Two classes of 12; N_s = 4 takes 2 of each, leaving 10. R = 0.6, K = 2: 10 (0.6 + 0.4/2) = 8 and 10 x 0.4/2 = 2;
    the two clients are at distance (|.8-.2| + |.2-.8|)/2 = 0.6."""
    shared = split(LABELS_N, SplitSpec(num_classes=2, N_s=4, K=2, partition=ClassSkew(R=0.6), seed=0))
    described = describe(shared, LABELS_N)
    assert described["R_nominal"] == 0.6 and described["R_realised"] == pytest.approx(0.6)
    assert described["counts"] == [[8, 2], [2, 8]] and described["server_counts"] == [2, 2]
    assert described["K"] == 2 and described["hash"] == shared.hash()


def test_a_picture_has_no_clock_and_goes_where_it_can(tmp_path):
    shared = split(LABELS_N, SplitSpec(num_classes=2, N_s=4, K=2, partition=ClassSkew(R=0.6), seed=0))
    described = describe(shared, LABELS_N)
    for name in ("a.pdf", "b.pdf", "a.png", "b.png"):
        plot(described, ("cat", "dog"), tmp_path / name)
    for kind in ("pdf", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    for name, error, words in (("a.jpg", ConfigError, r"'\.jpg'"), ("a.pdf/a.svg", CannotWrite, "File exists")):
        with pytest.raises(error, match=words):
            plot(described, ("cat", "dog"), tmp_path / name)


def test_a_cell_s_partition(printed):
    """SSFL's Table 2 has R = .4 and as many clients as its stand-in says."""
    described = json.loads(printed("data", "partition", "--cell", "ssfl/tab2:FedAvg/full", "--json"))
    assert described["R_nominal"] == 0.4 and len(described["counts"]) == described["K"] == 4


def test_few_clients_need_no_cohort(printed):
    """One that is not given is at most all clients; one that is given is checked."""
    assert len(json.loads(printed("data", "partition", "--federation.K=2", "--json"))["counts"]) == 2
    assert main(["data", "partition", "--federation.K=2", "--federation.C=3"]) == 65


def test_labels_at_the_clients(printed):
    at_clients = "--method=fed_consist --data.label_setting=every_client --data.labels_per_client=2 --data.N_s=0"
    words = [*SIX, *at_clients.split(), "--partition=iid"]
    actual = json.loads(printed(*words, "--json"))
    assert actual["labelled_counts"] == [[2] * 10] * 6 and sum(actual["server_counts"]) == 0
    assert np.sum(actual["counts"]) + 6 * 10 * 2 == 1397
    assert "client 5, labelled" in printed(*words)
